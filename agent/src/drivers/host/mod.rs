//! Host actions: whatever changes the host beyond the agent's own guests goes through here.
//!
//! `host.actions = refuse` (the default) fails each with `HostActionsDisabled`; `sim` records it
//! and succeeds; `real` does it, and needs the marker file that only the package (or a guest
//! image made for tests) installs.

mod bridges;
mod pool;
pub mod real;
pub mod refuse;
pub mod reset;
pub mod sim;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::ServerUuid;
use muster_shared::wire::Code;
use serde_json::Value;

pub use self::bridges::NicBridge;
use self::reset::Reset;
use super::DriverError;
use super::network::links::Wires;
use crate::disk_layout::inventory::Found;
use crate::disk_layout::plan::PoolPlan;
use crate::host::SharedExec;

/// A change of the host.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HostAction {
    /// Restart the machine. Yields whether it is about to go down.
    Reboot,
    /// Switch it off.
    PowerOff,
    /// Set the host name.
    SetHostname(String),
    /// Make the pool that disks are kept in.
    CreatePool {
        /// The pool.
        plan: Box<PoolPlan>,
        /// It may have been begun before: what is on its disks is of that.
        again: bool,
        /// Names of disks that are wiped first.
        wipe: BTreeSet<String>,
    },
    /// Wipe the node at its next boot.
    FactoryReset(Box<Reset>),
    /// See what the reset takes away. Yields the devices of the pool, or null when that has lost its mark.
    BeginWipe(Box<Reset>),
    /// Take away what the reset does.
    Wipe(Box<Reset>),
    /// Run the script that ends a setup, as root.
    FinishSetup {
        /// The script, with its `#!` line.
        script: String,
    },
    /// Make the bridges of nic tags these, and no others that this agent has made. Yields what could
    /// not be, a text each.
    SetBridges(Vec<NicBridge>),
    /// Run a script as root.
    Execute {
        /// The script, with its `#!` line.
        script: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its whole environment.
        env: Vec<(String, String)>,
        /// Longest run time, ms; 0: the task's own limit.
        timeout_ms: u64,
    },
}

impl HostAction {
    /// For logs and refusals.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::PowerOff => "power off",
            Self::SetHostname(_) => "set the host name",
            Self::CreatePool { .. } => "make a pool",
            Self::FactoryReset(_) => "wipe the node at its next boot",
            Self::BeginWipe(_) | Self::Wipe(_) => "wipe the node",
            Self::FinishSetup { .. } => "run the script that ends the setup",
            Self::SetBridges(_) => "change the bridges of nic tags",
            Self::Execute { .. } => "run a script",
        }
    }
}

/// Does host actions, or refuses them.
#[async_trait]
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// Does it; returns what the action yields (`null` for most).
    ///
    /// # Errors
    /// `HostActionsDisabled` (the message names `host.actions`), or the host's failure.
    async fn act(&self, action: &HostAction) -> Result<Value, DriverError>;

    /// Whether [`Host::act`] would try it; does nothing.
    ///
    /// # Errors
    /// `HostActionsDisabled`, or `NotSupported` for what this host has no means for.
    async fn ready(&self, action: &HostAction) -> Result<(), DriverError>;

    /// The disks of the host, of which a pool can be made. Nothing is changed.
    ///
    /// # Errors
    /// `HostActionsDisabled`, or the host could not be read.
    async fn disks(&self) -> Result<Vec<Found>, DriverError>;
}

/// `HostActionsDisabled`, with the reason.
#[must_use]
pub fn disabled(action: &HostAction, why: &str) -> DriverError {
    let text = format!("refused to {}: {why}", action.name());
    DriverError::refused(Code::HostActionsDisabled, text)
}

/// The setting `host.actions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostActions {
    /// Done, where the marker file allows it.
    Real,
    /// Recorded, with success.
    Sim,
    /// Refused.
    #[default]
    Refuse,
}

/// The host's own links, and the server whose stamp is on what is made among them.
#[derive(Clone, Debug)]
pub struct Wiring {
    /// The links.
    pub wires: Arc<dyn Wires>,
    /// The server.
    pub server: ServerUuid,
}

/// The driver of a setting. `run_dir` holds scripts while they run, which is allowed by a setting
/// of its own.
#[must_use]
pub fn open(
    setting: HostActions,
    allow_execute: bool,
    exec: SharedExec,
    run_dir: &Path,
    wiring: Wiring,
) -> Arc<dyn Host> {
    let host: Arc<dyn Host> = match setting {
        HostActions::Real => {
            if !Path::new(real::MARKER).exists() {
                let marker = real::MARKER;
                tracing::warn!(marker, "without its marker file, host actions are refused");
            }
            Arc::new(real::RealHost::new(exec, run_dir, wiring))
        }
        HostActions::Sim => Arc::new(sim::SimHost::default()),
        HostActions::Refuse => Arc::new(refuse::RefuseHost),
    };
    if allow_execute { host } else { Arc::new(refuse::NoScripts(host)) }
}
