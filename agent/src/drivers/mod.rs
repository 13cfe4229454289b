//! The doors to the host: compute, networks, storage, images, VM records, host actions.
//!
//! Each class is a small trait in its own folder with a real implementation and a simulated one
//! that can inject faults.

pub mod builder;
pub mod cluster;
pub mod compute;
pub mod coordinators;
pub mod faults;
pub mod files;
pub mod host;
pub mod images;
pub mod network;
pub mod node;
pub mod settings;
pub mod storage;
mod trees;
pub mod untar;
pub mod zfs;

use std::error::Error;
use std::sync::Arc;

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;

use crate::failure::TaskFailure;

/// Why a driver could not do what was asked; cloned for callers that wait for one attempt together.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// Refused or impossible as asked; the caller's task fails with this code.
    #[error("{message}")]
    Refused {
        /// For programs, e.g. [`Code::VmNotRunning`].
        code: Code,
        /// For people, clients among them.
        message: String,
        /// What lies beneath, if that is not all.
        #[source]
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
    /// The host failed: a process, a file, a device.
    #[error("{action}")]
    Failed {
        /// What was attempted, on what.
        action: String,
        /// The cause.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}

/// An error beneath another, for the log only.
pub type Cause = Box<dyn Error + Send + Sync>;

impl DriverError {
    /// A refusal.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Self::Refused { code, message: message.into(), source: None }
    }

    /// A refusal because something else failed.
    pub fn refused_because(
        code: Code,
        message: impl Into<String>,
        source: impl Into<Cause>,
    ) -> Self {
        Self::Refused { code, message: message.into(), source: Some(Arc::from(source.into())) }
    }

    /// A failure of the host.
    pub fn failed(action: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Failed { action: action.into(), source: Arc::from(source.into()) }
    }
}

impl From<DriverError> for TaskFailure {
    fn from(error: DriverError) -> Self {
        let cause = error.source().map(|cause| Chain(cause).to_string());
        let failure = match error {
            DriverError::Refused { code, message, .. } => Self::new(code, message),
            DriverError::Failed { action, .. } => {
                let text = format!("{action}: the host failed, the agent's log has the cause");
                Self::new(Code::InternalError, text)
            }
        };
        Self { cause, ..failure }
    }
}
