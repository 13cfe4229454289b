//! What the link tells coordinators about this node, besides tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::status::{Report, VmReport};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::drivers::DriverError;

/// The sysinfo document as it is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SysinfoDocument {
    /// The document, in SmartOS's key names.
    pub sysinfo: Map<String, Value>,
    /// `[{name, version, …}]`.
    pub agents: Vec<Value>,
    /// SHA-256 (hex), see [`muster_shared::wire::Sysinfo::hash`]; empty while there is none.
    pub hash: String,
}

/// One sample of VMs and figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Every VM that is inventoried.
    pub vms: BTreeMap<VmUuid, VmReport>,
    /// The figures; `full`, `vms` and `digest` are not used.
    pub figures: Report,
    /// What is wrong with the node, for people.
    pub degraded: Vec<String>,
}

/// How new the figures of pools are to be in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAge {
    /// Asked for now. For that a pool is listed, which takes a program of ZFS.
    Fresh,
    /// The latest there are; a pool is asked only if it never was.
    Known,
}

/// Looks at the node.
#[async_trait]
pub trait Feed: fmt::Debug + Send + Sync + 'static {
    /// A fresh sample, with figures of pools as new as wanted.
    ///
    /// # Errors
    /// VMs or memory could not be read; nothing is sent then.
    async fn sample(&self, pools: PoolAge) -> Result<Sample, DriverError>;

    /// Changes when a VM or its state has changed.
    fn changed(&self) -> watch::Receiver<u64>;

    /// The current document, and its successors.
    fn sysinfo(&self) -> watch::Receiver<Arc<SysinfoDocument>>;

    /// Builds the document anew; [`Feed::sysinfo`] then holds it.
    async fn refresh(&self) -> Arc<SysinfoDocument>;
}
