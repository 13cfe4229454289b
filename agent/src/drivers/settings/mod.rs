//! Settings of the node that clients change: which NIC carries which network, and options.

mod file;
pub mod sim;

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::DriverError;

pub use file::{FileSettings, NIC_TAGS_FILE, NODE_CONF, option};

/// The option that says how far the node may be overcommitted.
pub const OVERPROVISION_RATIO: &str = "overprovision_ratio";

/// A tag and the NIC that carries its network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicTag {
    /// Its name.
    pub name: String,
    /// The NIC's address, or the name of a bond.
    pub mac: String,
    /// Largest packet, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The agent makes and keeps the bridge of its network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bridge: bool,
    /// Its id, where the network's inventory gave it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// Keeps the settings.
#[async_trait]
pub trait Settings: fmt::Debug + Send + Sync + 'static {
    /// Every NIC tag: of what was set, or else of what is configured by hand.
    ///
    /// # Errors
    /// They could not be read.
    async fn nic_tags(&self) -> Result<Vec<NicTag>, DriverError>;

    /// Replaces all NIC tags at once; durable when it returns.
    ///
    /// # Errors
    /// They could not be written; the old ones stay.
    async fn set_nic_tags(&self, tags: &[NicTag]) -> Result<(), DriverError>;

    /// Sets one option; durable when it returns.
    ///
    /// # Errors
    /// It could not be written; the old value stays.
    async fn set_option(&self, name: &str, value: &str) -> Result<(), DriverError>;
}
