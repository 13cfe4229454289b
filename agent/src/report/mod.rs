//! What this node tells about itself: sysinfo (rarely changes) and the status sample (VMs and
//! figures). [`Reporter`] is the link's feed of both.

mod aside;
mod canonical;
pub mod feed;
pub mod identity;
mod pool;
mod reporter;
pub mod setup;
pub mod sim;
mod status;
pub mod sysinfo;
pub mod usage;

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::wire::status::Meminfo;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

pub use aside::{ASIDE, aside};
pub use canonical::hash;
pub use reporter::{Reporter, ReporterParts};
pub use usage::UsageSampler;

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

    /// Whether the host has a systemd unit of this name, without `.service`.
    async fn has_service(&self, name: &str) -> bool {
        let _: &str = name;
        false
    }
}
