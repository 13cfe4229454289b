//! The sizes of a server, as its record or its reports have them, each checked when it arrives.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::num::{nonzero, num};
use crate::promises::DiskPromise;
use crate::schema::{self, FIGURES};

/// The sizes of a server, in the order of [`FIGURES`] and then the one that is not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    #[serde(with = "perhaps")]
    values: [f64; FIGURES.len()],
    pub(crate) zone_quota_used: f64,
    faults: [Option<Arc<str>>; FIGURES.len()],
}

/// JSON has no NaN, which stands for a size that is no number.
mod perhaps {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::FIGURES;

    type Values = [f64; FIGURES.len()];

    pub(super) fn serialize<S: Serializer>(
        values: &Values,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|x| x.is_finite().then_some(*x)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Values, D::Error> {
        let values = <[Option<f64>; FIGURES.len()]>::deserialize(deserializer)?;
        Ok(values.map(|x| x.unwrap_or(f64::NAN)))
    }
}

macro_rules! figures {
    ($($name:ident $index:literal)*) => {
        impl Figures {
            $(pub(crate) fn $name(&self) -> f64 { self.values[$index] })*
        }
    };
}

figures! {
    memory_total 1
    pool_size 2
    pool_alloc 3
    system_used 4
    images_used 5
    cores_used 6
    zone_quota 7
    zvol_volsize 9
}

/// Places in [`FIGURES`] of what promises add to.
const ZONE_QUOTA: usize = 7;
const ZVOL_VOLSIZE: usize = 9;
pub(crate) const ZONE_QUOTA_USED: &str = "disk_zone_quota_used_bytes";
/// What moves all the time, and no algorithm compares.
pub(crate) const MEMORY_AVAILABLE: &str = "memory_available_bytes";

impl Figures {
    /// No figure is known yet.
    pub(crate) fn unknown() -> Self {
        let mut figures = Self::default();
        for i in 0..FIGURES.len() {
            figures.set(i, None);
        }
        figures
    }

    fn set(&mut self, index: usize, value: Option<&Value>) {
        let (name, least) = FIGURES[index];
        self.values[index] = value.map_or(0.0, num);
        self.faults[index] = schema::check_figure(name, value, least).err().map(Into::into);
    }

    /// Takes the figures that a record has.
    pub(crate) fn read(&mut self, record: &Map<String, Value>) {
        for (i, (name, _)) in FIGURES.iter().enumerate() {
            if let Some(value) = record.get(*name) {
                self.set(i, Some(value));
            }
        }
        if let Some(value) = record.get(ZONE_QUOTA_USED) {
            self.zone_quota_used = nonzero(num(value)).unwrap_or(0.0);
        }
    }

    /// Takes the figures that are known.
    pub(crate) fn refresh(&mut self, figure: impl Fn(&str) -> Option<i64>) {
        for (i, (name, _)) in FIGURES.iter().enumerate() {
            if let Some(bytes) = figure(name) {
                self.set(i, Some(&bytes.into()));
            }
        }
        if let Some(bytes) = figure(ZONE_QUOTA_USED) {
            self.zone_quota_used = num(&bytes.into());
        }
    }

    /// A figure by its name in a record.
    pub(crate) fn by_name(&self, name: &str) -> Option<f64> {
        if name == ZONE_QUOTA_USED {
            return Some(self.zone_quota_used);
        }
        let index = FIGURES.iter().position(|(figure, _)| *figure == name)?;
        self.faults[index].is_none().then(|| self.values[index])
    }

    /// Counts bytes that promised VMs will take as taken.
    pub(crate) fn take(&mut self, promised: DiskPromise) {
        self.values[ZONE_QUOTA] += promised.zone_quota;
        self.values[ZVOL_VOLSIZE] += promised.zvol;
    }

    pub(crate) fn fault(&self) -> Option<&str> {
        self.faults.iter().flatten().next().map(AsRef::as_ref)
    }
}
