//! Transient units of systemd, asked for over the system's bus: no program is started for it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use zbus::Connection;
use zbus::zvariant::{DynamicType, Value};

use super::procfs;

/// systemd's name on the bus.
const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Longest wait for a unit; a host that needs longer is broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// Before the second look whether a process is in its scope; each later one is an eighth longer.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A scope around a process, a unit that is gone with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Its name, `….scope`.
    pub unit: String,
    /// Its parent, `….slice`.
    pub slice: String,
    /// What it has beside these.
    pub properties: Vec<UnitProperty>,
}

/// A property of a unit, as systemd calls it on its bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitProperty {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: UnitValue,
}

/// What a property of a unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitValue {
    /// Yes or no.
    Flag(bool),
    /// A figure in the property's own unit.
    Number(u64),
    /// No limit.
    Infinity,
    /// A text.
    Text(String),
    /// Names of units.
    Units(Vec<String>),
}

impl UnitProperty {
    /// A figure in the property's own unit.
    #[must_use]
    pub fn number(name: &'static str, number: u64) -> Self {
        Self { name, value: UnitValue::Number(number) }
    }

    fn sent(&self) -> (&'static str, Value<'_>) {
        let value = match &self.value {
            UnitValue::Flag(flag) => Value::new(*flag),
            UnitValue::Number(number) => Value::new(*number),
            UnitValue::Infinity => Value::new(u64::MAX),
            UnitValue::Text(text) => Value::new(text.as_str()),
            UnitValue::Units(names) => {
                Value::new(names.iter().map(String::as_str).collect::<Vec<_>>())
            }
        };
        (self.name, value)
    }
}

impl fmt::Display for UnitProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.name)?;
        match &self.value {
            UnitValue::Flag(flag) => flag.fmt(f),
            UnitValue::Number(number) => number.fmt(f),
            UnitValue::Infinity => f.write_str("infinity"),
            UnitValue::Text(text) => f.write_str(text),
            UnitValue::Units(names) => f.write_str(&names.join(" ")),
        }
    }
}

/// systemd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// This host has none.
    #[error("systemd is not PID 1 here")]
    Absent,
    /// It can't be talked to, or has refused.
    #[error("ask systemd over the system's bus")]
    Bus(#[from] zbus::Error),
    /// The process is gone, or nothing is known of it.
    #[error("the process has ended before it was in its scope")]
    Ended,
    /// The host could not be read.
    #[error("look for the process")]
    Process(#[from] std::io::Error),
    /// It has not answered.
    #[error("systemd has not answered for {} s", PATIENCE.as_secs())]
    Silent,
}

/// systemd, with a connection to its bus that is kept: each new one is news to everybody there.
#[derive(Debug, Default)]
pub(super) struct Systemd(Mutex<Option<Connection>>);

impl Systemd {
    /// Makes a scope around a process; returns once the process is in it. systemd answers before that,
    /// and would tell of the end on the bus, with all that happens to any other unit.
    pub(super) async fn make_scope(&self, scope: &Scope, pid: u32) -> Result<(), UnitError> {
        patiently(async {
            let mut properties = vec![
                ("PIDs", Value::new(vec![pid])),
                ("Slice", Value::new(scope.slice.as_str())),
                // One that has failed is gone as well.
                ("CollectMode", Value::new("inactive-or-failed")),
            ];
            properties.extend(scope.properties.iter().map(UnitProperty::sent));
            let others: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
            let arguments = (scope.unit.as_str(), "fail", properties, others);
            self.ask("StartTransientUnit", &arguments).await?;
            let mut pause = FIRST_PAUSE;
            while !procfs::cgroups(pid)?.ok_or(UnitError::Ended)?.contains(&scope.unit) {
                tokio::time::sleep(pause).await;
                pause = (pause * 9 / 8).min(LONGEST_PAUSE);
            }
            Ok(())
        })
        .await
    }

    /// Changes properties of a unit for as long as it is there.
    pub(super) async fn change(
        &self,
        unit: &str,
        properties: &[UnitProperty],
    ) -> Result<(), UnitError> {
        let properties: Vec<_> = properties.iter().map(UnitProperty::sent).collect();
        // For a transient unit "runtime" is where all of it is kept, until it ends.
        let arguments = (unit, true, properties);
        patiently(async { Ok(self.ask("SetUnitProperties", &arguments).await?) }).await
    }

    async fn ask(
        &self,
        method: &str,
        arguments: &(impl Serialize + DynamicType),
    ) -> zbus::Result<()> {
        let bus = self.bus().await?;
        let (to, interface) = (Some(SYSTEMD), Some(MANAGER));
        bus.call_method(to, MANAGER_PATH, interface, method, arguments).await.map(drop)
    }

    async fn bus(&self) -> zbus::Result<Connection> {
        let mut kept = self.0.lock().await;
        if let Some(bus) = kept.as_ref().filter(|bus| !bus.is_closed()) {
            return Ok(bus.clone());
        }
        Ok(kept.insert(Connection::system().await?).clone())
    }
}

async fn patiently(asked: impl Future<Output = Result<(), UnitError>>) -> Result<(), UnitError> {
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or(Err(UnitError::Silent))
}
