//! What a VM is meant to be, as it is written down.

pub mod boot;
pub mod disks;
pub mod restart;
pub mod routes;
pub mod user_ids;
mod volume;

use std::collections::BTreeSet;

use muster_shared::export::Volume;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::lenient;
use muster_shared::vm::CONTAINER_BRANDS;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::host::idmap::IdRange;

pub use volume::{GoingDisk, Identity, VolumeRecord};

/// Largest record, bytes of JSON: what is over it is neither written nor read. Properties are held
/// far below it (`MAX_VM_BYTES`), so that there is always room for what the agent notes itself.
pub const MAX_RECORD_BYTES: usize = 4 * 1024 * 1024;

/// The form in which records are written. A change of it that older agents would misread gets the
/// next number, and `vms::decode` the step from the one before. 2: [`VmRecord::volumes`].
pub const SCHEMA: u32 = 2;

/// Records of the first agents carry no number.
pub(crate) fn first_schema() -> u32 {
    1
}

/// Largest copy of a record, bytes of JSON: the record and its stamp.
pub const MAX_COPY_BYTES: usize = MAX_RECORD_BYTES + 64 * 1024;

/// The record of one VM, `data_dir/vms/<uuid>.json`: the properties of spec'd names in
/// `properties` plus what the agent itself needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Version of the record's form, [`SCHEMA`] when it is written.
    #[serde(default = "first_schema")]
    pub schema: u32,
    /// The VM.
    pub uuid: VmUuid,
    /// The task that made it; only that task's undo may remove it.
    pub create_task: TaskId,
    /// True until `machine_create` has ended.
    #[serde(default)]
    pub provisioning: bool,
    /// Kept after a failed create; terminal until destroyed.
    #[serde(default)]
    pub failed: bool,
    /// A destroy has begun and will be finished, also after a restart.
    #[serde(default)]
    pub destroying: bool,
    /// Set while a shutdown is under way; ISO 8601 time of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_until: Option<String>,
    /// The task that started its process last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_task: Option<TaskId>,
    /// The `machine_reprovision` that replaced its boot disk last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reprovision_task: Option<TaskId>,
    /// Snapshots of all its disks, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotRecord>,
    /// The snapshot that its disks are being given. While it is set they may be of different
    /// moments, and the VM must not start: only a rollback that reached every disk takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_back_to: Option<String>,
    /// It ran when a rollback stopped it, and is to run again: with its disks as they were, or once
    /// all of them are rolled back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_when_rolled_back: bool,
    /// How far its disks are.
    #[serde(default)]
    pub storage: StorageState,
    /// What its disks are known by: a start takes no others. None of a VM whose record is older
    /// than volumes, until its agent has looked at its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumeRecord>>,
    /// Its disks are being filled with what another VM had; it is `provisioning` as long as that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importing: Option<Importing>,
    /// Disks that it has no more, and whose files are still to go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub going_disks: Vec<GoingDisk>,
    /// Boot of the host in which `autoboot` was last considered for it, or it was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// What it is to do, as its last start or stop wanted.
    #[serde(default)]
    pub power: restart::Power,
    /// How often it was started again because it ended.
    #[serde(default)]
    pub restarts: restart::Restarts,
    /// Its virtual hardware with the version, e.g. `pc-q35-7.2`: the same at every start, whatever
    /// the hypervisor was upgraded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// The host's ids that its own are, if it is a container with a user namespace; no other VM's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ids: Option<IdRange>,
    /// Of the properties that changed since its guest was started and that this sees only when it
    /// starts, what it was started with; `null` is nothing.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub started_with: Map<String, Value>,
    /// SHA-256 (hex) of the payload it was created from.
    #[serde(default)]
    pub fingerprint: String,
    /// When the record changed last, ISO 8601; kept by the table.
    #[serde(default)]
    pub last_modified: String,
    /// VM properties under vmadm's names (`brand`, `alias`, `ram`, `vcpus`, `disks`, `nics`, …).
    pub properties: Map<String, Value>,
}

impl VmRecord {
    /// A fresh record of a VM that `create_task` is making.
    #[must_use]
    pub fn new(uuid: VmUuid, create_task: TaskId, properties: Map<String, Value>) -> Self {
        Self {
            schema: SCHEMA,
            uuid,
            create_task,
            provisioning: true,
            failed: false,
            destroying: false,
            stopping_until: None,
            reprovision_task: None,
            snapshots: Vec::new(),
            rolling_back_to: None,
            start_task: None,
            start_when_rolled_back: false,
            storage: StorageState::None,
            volumes: Some(Vec::new()),
            importing: None,
            going_disks: Vec::new(),
            boot_id: None,
            power: restart::Power::default(),
            restarts: restart::Restarts::default(),
            machine_type: None,
            user_ids: None,
            started_with: Map::new(),
            fingerprint: String::new(),
            last_modified: String::new(),
            properties,
        }
    }

    /// The pools in which its volumes lie or are to lie, as far as they are named.
    #[must_use]
    pub fn pools(&self) -> BTreeSet<String> {
        let volumes = self.volumes.iter().flatten().map(|volume| volume.identity.pool.as_str());
        let of_disks = self.list("disks").iter().filter_map(|disk| disk.get("zpool")?.as_str());
        volumes.chain(of_disks).chain(self.text("zpool")).map(str::to_owned).collect()
    }

    /// Whether it is a container, and no hardware VM.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.text("brand").is_some_and(|brand| CONTAINER_BRANDS.contains(&brand))
    }

    /// Whether it is a container of docker's.
    #[must_use]
    pub fn is_docker(&self) -> bool {
        self.text("brand") == Some("docker") || self.flag("docker")
    }

    /// A text property.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.properties.get(name).and_then(Value::as_str)
    }

    /// A number property.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.properties.get(name).and_then(Value::as_u64)
    }

    /// A switch property; false when absent.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.properties.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A list property; empty when absent.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Value] {
        self.properties.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A value of `customer_metadata`.
    #[must_use]
    pub fn customer_metadata(&self, key: &str) -> Option<&Value> {
        self.properties.get("customer_metadata").and_then(|map| map.get(key))
    }

    /// Place in the order in which VMs start with the host, the lowest first; they leave in the
    /// reverse order. Those without one start last.
    #[must_use]
    pub fn boot_priority(&self) -> i64 {
        let wanted = self.internal_metadata("muster:boot_priority").and_then(|value| match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        });
        wanted.unwrap_or(i64::MAX)
    }

    /// Seconds that the guest has to shut down when the host does, if its record says so.
    #[must_use]
    pub fn shutdown_timeout_s(&self) -> Option<u64> {
        lenient::number(self.internal_metadata("muster:shutdown_timeout")?)
    }

    /// What becomes of it when its process ends unasked.
    #[must_use]
    pub fn restart_policy(&self) -> restart::Policy {
        let policy = self.internal_metadata(restart::POLICY_KEY).and_then(Value::as_str);
        policy.and_then(|policy| policy.parse().ok()).unwrap_or_default()
    }

    /// A value of `internal_metadata`.
    #[must_use]
    pub fn internal_metadata(&self, key: &str) -> Option<&Value> {
        self.properties.get("internal_metadata").and_then(|map| map.get(key))
    }
}

/// A snapshot of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// As its client named it.
    pub name: String,
    /// ISO 8601.
    pub created_at: String,
    /// The task that made it; only that task's undo may remove it.
    pub task: TaskId,
    /// False until every disk has it.
    #[serde(default)]
    pub complete: bool,
    /// When the agent deletes it by itself, ISO 8601; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// What is known of an import under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Importing {
    /// Names the export that it is of.
    pub export: String,
    /// Its volumes, in the order in which they are filled.
    pub volumes: Vec<Volume>,
    /// The volume up to which everything was filled durably, of those from 0.
    pub volume: usize,
    /// And up to where in it, bytes.
    pub offset: u64,
    /// When it is given up, ISO 8601. Each durable piece puts it off.
    pub until: String,
}

/// How far the disks of a VM are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageState {
    /// There are none.
    #[default]
    None,
    /// They are being made or removed.
    Incomplete,
    /// All are there.
    Complete,
}

/// The image of one entry of a VM's `disks`.
#[must_use]
pub fn image_of(disk: &Value) -> Option<ImageUuid> {
    disk.get("image_uuid")?.as_str()?.parse().ok()
}
