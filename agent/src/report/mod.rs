//! What this node tells about itself: sysinfo (rarely changes) and the status sample (VMs and
//! figures). [`Reporter`] keeps the latest of both; the link sends them.

mod canonical;
pub mod identity;
mod reporter;
pub mod setup;
pub mod sim;
mod status;
pub mod sysinfo;

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::wire::Intake;
use muster_shared::wire::status::Meminfo;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

pub use canonical::hash;
pub use reporter::{Reporter, ReporterParts};
pub use status::Sample;

/// A sysinfo document as it is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SysinfoReport {
    /// The document, in SmartOS's key names.
    pub sysinfo: Map<String, Value>,
    /// `[{name, version, …}]`.
    pub agents: Vec<Value>,
    /// SHA-256 (hex) over canonical JSON without `Muster.agent_instance_id`.
    pub hash: String,
}

/// Figures of the host that change all the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Memory.
    pub meminfo: Meminfo,
    /// When the host booted.
    pub boot_time: Timestamp,
    /// Members of the status's `muster`: `load`, `pressure`, whatever is known.
    pub extra: Map<String, Value>,
}

/// Reads the host.
#[async_trait]
pub trait Facts: fmt::Debug + Send + Sync + 'static {
    /// Collects the whole document anew, within 6 s. What can't be read has its documented
    /// unknown value and is named in `Muster.degraded`.
    async fn sysinfo(&self) -> Map<String, Value>;

    /// Current figures.
    ///
    /// # Errors
    /// The memory of the host could not be read.
    async fn figures(&self) -> Result<Figures, DriverError>;

    /// Changes when the document should be collected again; cheap.
    async fn fingerprint(&self) -> String;
}

/// What the task engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityNow {
    /// Whether new work is accepted.
    pub intake: Intake,
    /// Tasks that run.
    pub active_tasks: usize,
    /// Tasks that wait.
    pub queued_tasks: usize,
}

/// Says what the task engine is doing; implemented by the engine.
pub trait Activity: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> ActivityNow;
}

/// For nodes without a task engine.
#[derive(Debug, Default)]
pub struct NoActivity;

impl Activity for NoActivity {
    fn now(&self) -> ActivityNow {
        ActivityNow::default()
    }
}
