//! VMs as servers report them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{ServerUuid, TaskId, VmUuid};
use crate::wire::status::{VmIndex, VmStatus};

/// A VM as its server reported it. Agents that POST their reports may leave out all but `uuid`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vm {
    /// Its name.
    pub uuid: VmUuid,
    /// Its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_uuid: Option<String>,
    /// `kvm`, `bhyve`, `joyent-minimal`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brand: Option<String>,
    /// Percent of one core; absent: uncapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_cap: Option<u64>,
    /// GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_physical_memory: Option<u64>,
    /// `running`, `stopped`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `running`, `installed`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_state: Option<String>,
    /// When it last changed, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

impl From<&VmStatus> for Vm {
    fn from(vm: &VmStatus) -> Self {
        let known = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            uuid: vm.uuid,
            owner_uuid: known(&vm.owner_uuid),
            brand: known(&vm.brand),
            cpu_cap: vm.cpu_cap,
            quota: vm.quota,
            max_physical_memory: Some(vm.max_physical_memory).filter(|mib| *mib > 0),
            state: known(&vm.state),
            zone_state: known(&vm.zone_state),
            last_modified: known(&vm.last_modified),
        }
    }
}

/// Whether a server is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    /// It is.
    Running,
    /// It is not.
    Unknown,
}

/// A VM, also while its server is away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetVm {
    /// What its server reported.
    #[serde(flatten)]
    pub vm: Vm,
    /// What Muster's agents report beside.
    #[serde(flatten)]
    pub index: VmIndex,
    /// Where it is.
    pub server_uuid: ServerUuid,
    /// Status of its server.
    pub server_status: Heard,
}

/// A VM that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmPlaced {
    /// The VM.
    pub vm_uuid: VmUuid,
    /// The task, see /tasks/{taskid}.
    pub id: TaskId,
    /// Where it is made.
    pub server_uuid: ServerUuid,
}

/// A TCP port with VNC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vnc {
    /// Address.
    pub host: String,
    /// Port.
    #[schema(minimum = 1)]
    pub port: u16,
}

/// How a command in a guest ended, and what it printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestExecuted {
    /// Its exit status, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i64>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i64>,
    /// It did not end in its time, and goes on in the guest.
    pub timed_out: bool,
    /// Base64 of what it printed, at most 256 KiB of it.
    pub stdout: String,
    /// Base64 of what it printed on its other output, likewise.
    pub stderr: String,
    /// `stdout` is not all of it.
    pub stdout_truncated: bool,
    /// `stderr` is not all of it.
    pub stderr_truncated: bool,
}

/// A piece of a file of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilePiece {
    /// Base64 of it.
    pub data: String,
}

/// A piece of a file of a guest was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// Its bytes.
    pub bytes: u64,
}
