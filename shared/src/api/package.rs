//! Packages: sizes of VMs under a name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;

/// Sizes of VMs under a name. VMs that name it get them when they are made, and keep them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Package {
    /// Its name, which no other has; it lasts.
    pub name: String,
    /// Its uuid, the `billing_id` of VMs made from it.
    pub uuid: Uuid,
    /// Version, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Memory of the guest, MiB.
    pub max_physical_memory: u64,
    /// Disk, MiB; VMs get whole GiB, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// CPU limit, percent of one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_cap: Option<u64>,
    /// Memory and swap, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_swap: Option<u64>,
    /// Threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lwps: Option<u64>,
    /// Its weight among VMs that compete for disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zfs_io_priority: Option<u64>,
    /// How the allocator spreads its VMs: `min-ram`, `max-ram`, `random` or `min-owner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_server_spread: Option<String>,
    /// CPU overcommit ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub overprovision_cpu: Option<Number>,
    /// Of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub overprovision_memory: Option<Number>,
    /// Of disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub overprovision_storage: Option<Number>,
    /// Of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub overprovision_network: Option<Number>,
    /// Disk I/O overcommit ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub overprovision_io: Option<Number>,
    /// Oldest platform of servers for its VMs, by version of SDC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub min_platform: Option<Map<String, Value>>,
    /// Traits of the servers for its VMs: exactly these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traits: Option<Object>,
    /// What a newer coordinator says beside.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}
