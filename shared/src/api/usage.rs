//! What VMs use.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::vm::Heard;
use crate::ids::{ServerUuid, VmUuid};
use crate::wire::usage::VmUsage;

/// What a VM uses, and what it has to be compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetVmUsage {
    /// The VM.
    pub uuid: VmUuid,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `running`, `stopped`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// MiB that it may have, overhead of the hypervisor included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_physical_memory: Option<u64>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// Where it is.
    pub server_uuid: ServerUuid,
    /// Its server's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Status of its server.
    pub server_status: Heard,
    /// Its usage as last reported; absent if it does not run or nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<VmUsage>,
    /// Age of these figures, ms; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}
