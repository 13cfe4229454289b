//! The node as its tasks see it: its doors, its VMs, and what it tells about itself; and what is
//! done with all of them together.

pub mod bridges;
pub mod builds;
pub mod orphans;
pub mod room;
pub mod startup;

use std::sync::Arc;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::telemetry::LogRing;

use crate::drivers::{
    builder, cluster, compute, coordinators, host, images, network, node, settings, storage, zfs,
};
use crate::guest_agent::GuestAgents;
use crate::report::Reporter;
use crate::sessions::Sessions;
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
    /// Connects NICs.
    pub networks: Arc<dyn network::Networks>,
    /// Holds disks.
    pub storage: Arc<dyn storage::Storage>,
    /// Holds images.
    pub images: Arc<dyn images::Images>,
    /// Changes the host itself.
    pub host: Arc<dyn host::Host>,
    /// Keeps the node's settings.
    pub settings: Arc<dyn settings::Settings>,
    /// Keeps the bridges of its nic tags.
    pub bridges: bridges::Bridges,
    /// Whoever gives it its work.
    pub coordinators: Arc<dyn coordinators::Coordinators>,
    /// What is kept about the node.
    pub node: Arc<dyn node::NodeDocuments>,
    /// The cluster it works for.
    pub cluster: Arc<cluster::Cluster>,
    /// What VMs there are meant to be.
    pub vms: Arc<VmTable>,
    /// What the node tells about itself.
    pub report: Arc<Reporter>,
    /// The node's ZFS, as far as it is the agent's.
    pub zfs: zfs::Delegated,
    /// Builds images of containers.
    pub builder: Arc<builder::Builder>,
    /// Opens ports to containers.
    pub sessions: Arc<Sessions>,
    /// Talks to the guest agents inside.
    pub guest_agents: Arc<GuestAgents>,
    /// What this process logged of late.
    pub log: Arc<LogRing>,
}

/// Shared by all tasks.
pub type SharedDrivers = Arc<Drivers>;
