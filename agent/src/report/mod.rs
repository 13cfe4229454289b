//! What this node tells about itself: sysinfo (rarely changes) and the status sample (VMs and
//! figures). [`Reporter`] is the link's feed of both.

mod aside;
mod canonical;
pub mod feed;
pub mod identity;
pub mod lldp;
mod pool;
mod reporter;
pub mod setup;
pub mod sim;
mod status;
pub mod sysinfo;
pub mod usage;
mod zpools;

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::wire::status::Meminfo;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

pub use aside::{ASIDE, aside};
pub use canonical::hash;
pub use lldp::Neighbour;
pub use reporter::{Reporter, ReporterParts};
pub use usage::UsageSampler;
pub use zpools::Zpools;

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

/// An interface of the host, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// It is switched on and has a partner.
    pub up: bool,
    /// Mbit/s, where it is known.
    pub speed_mb: Option<u64>,
    /// What went wrong on it.
    pub counters: InterfaceCounters,
    /// Who is at the other end of its cable, where that is known.
    pub neighbour: Option<Neighbour>,
}

/// Packets of an interface that came to nothing, since the host booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InterfaceCounters {
    /// Received with an error.
    pub rx_errors: u64,
    /// Not sent because of an error.
    pub tx_errors: u64,
    /// Received and dropped, e.g. for want of memory, or because nobody here knows their protocol.
    pub rx_dropped: u64,
    /// Dropped before they were sent.
    pub tx_dropped: u64,
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

    /// The interfaces that the last document told of, as they are now.
    async fn interfaces(&self) -> Vec<Interface> {
        Vec::new()
    }

    /// Whether the host has a systemd unit of this name, without `.service`.
    async fn has_service(&self, name: &str) -> bool {
        let _: &str = name;
        false
    }
}
