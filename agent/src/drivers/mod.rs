//! The doors to the host: compute, storage, images, VM records, host actions.
//!
//! Each class is a small trait in its own folder with a real implementation and a simulated one
//! that can inject faults. [`Drivers`] is what task steps get.

pub mod compute;
pub mod faults;
pub mod files;
pub mod host;
pub mod images;
pub mod node;
pub mod settings;
pub mod storage;

use std::sync::Arc;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;

use crate::report::Reporter;
use crate::tasks::TaskFailure;
use crate::vms::VmTable;

/// Everything a step may touch.
#[derive(Debug)]
pub struct Drivers {
    /// Time.
    pub clock: SharedClock,
    /// Randomness.
    pub entropy: SharedEntropy,
    /// Runs VMs.
    pub compute: Arc<dyn compute::Compute>,
    /// Holds disks.
    pub storage: Arc<dyn storage::Storage>,
    /// Holds images.
    pub images: Arc<dyn images::Images>,
    /// Changes the host itself.
    pub host: Arc<dyn host::Host>,
    /// Keeps the node's settings.
    pub settings: Arc<dyn settings::Settings>,
    /// What is kept about the node.
    pub node: Arc<dyn node::NodeDocuments>,
    /// What VMs there are meant to be.
    pub vms: Arc<VmTable>,
    /// What the node tells about itself.
    pub report: Arc<Reporter>,
}

/// Shared by all tasks.
pub type SharedDrivers = Arc<Drivers>;

/// Why a driver could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Refused or impossible as asked; the caller's task fails with this code.
    #[error("{message}")]
    Refused {
        /// For programs, e.g. `VmNotRunning`.
        code: &'static str,
        /// For people.
        message: String,
    },
    /// The host failed: a process, a file, a device.
    #[error("{action}")]
    Failed {
        /// What was attempted, on what.
        action: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DriverError {
    /// A refusal.
    pub fn refused(code: &'static str, message: impl Into<String>) -> Self {
        Self::Refused { code, message: message.into() }
    }

    /// A failure of the host.
    pub fn failed(
        action: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { action: action.into(), source: source.into() }
    }
}

impl From<DriverError> for TaskFailure {
    fn from(error: DriverError) -> Self {
        match &error {
            DriverError::Refused { code, message } => Self::new(code, message.clone()),
            DriverError::Failed { .. } => {
                Self::new("InternalError", muster_shared::error_chain::Chain(&error).to_string())
            }
        }
    }
}
