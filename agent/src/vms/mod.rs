//! The VMs of this node: what it is meant to have, as durable records, and the state that follows
//! from record and observation.

pub mod copies;
pub mod files;
pub mod object;
pub mod orphans;
pub mod payload;
pub mod reconcile;
pub mod restart;
pub mod room;
pub mod sim;
pub mod startup;
pub mod state;
mod table;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::lenient;
use muster_shared::vm::json_bytes;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::drivers::DriverError;

pub use table::{Entry, VmTable};

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
            boot_id: None,
            power: restart::Power::default(),
            restarts: restart::Restarts::default(),
            machine_type: None,
            fingerprint: String::new(),
            last_modified: String::new(),
            properties,
        }
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

/// What is said about the node in records and VM objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Changes with every boot of the host.
    pub boot_id: String,
    /// The server.
    pub server_uuid: Option<ServerUuid>,
    /// Name of the datacentre, when configured.
    pub datacenter_name: Option<String>,
}

/// What was found where records are kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Every record that can be used.
    pub records: Vec<VmRecord>,
    /// VMs whose record can't.
    pub unusable: BTreeMap<VmUuid, Unusable>,
    /// VMs whose record was lost, and is that of the copy beside their disks.
    pub adopted: Vec<VmUuid>,
}

impl Loaded {
    /// VMs whose record another version of the agent can use.
    #[must_use]
    pub fn newer(&self) -> BTreeSet<VmUuid> {
        let newer = |problem: &Unusable| matches!(problem, Unusable::Newer(_));
        self.unusable.iter().filter(|(_, problem)| newer(problem)).map(|(vm, _)| *vm).collect()
    }
}

/// Why a record can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A newer version of the agent wrote it, in a form with this number. It is left alone.
    #[error("a newer version of the agent wrote it (schema {0}, this one knows {SCHEMA})")]
    Newer(u64),
    /// It is no record.
    #[error("{0}")]
    Damaged(String),
}

/// Where records are kept.
#[async_trait]
pub trait VmRecords: fmt::Debug + Send + Sync + 'static {
    /// Every record; damaged ones are set aside and reported.
    ///
    /// # Errors
    /// The folder could not be read.
    async fn load(&self) -> Result<Loaded, DriverError>;

    /// Refuses the record of a new VM when something of another VM of that name is here. Nothing is
    /// changed.
    ///
    /// # Errors
    /// `VmExists`; or the host could not be read.
    async fn check_new(&self, _record: &VmRecord) -> Result<(), DriverError> {
        Ok(())
    }

    /// Writes a record; durable when it returns.
    ///
    /// # Errors
    /// `VmExists` when `create` is set and there is one; `StoreFull`; what [`encode`] refuses.
    async fn put(&self, record: &VmRecord, create: bool) -> Result<(), DriverError>;

    /// Keeps a copy of a VM that is about to go, in place of an earlier one: its record and the
    /// end of what it printed on its console. Durable when it returns.
    ///
    /// # Errors
    /// It could not be written.
    async fn archive(&self, record: &VmRecord, console: &[u8]) -> Result<(), DriverError>;

    /// Removes a record; durable when it returns. A missing one is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn remove(&self, vm: VmUuid) -> Result<(), DriverError>;
}

/// Largest record, bytes of JSON: what is over it is neither written nor read. Properties are held
/// far below it (`MAX_VM_BYTES`), so that there is always room for what the agent notes itself.
pub const MAX_RECORD_BYTES: usize = 4 * 1024 * 1024;

/// The form in which records are written. A change of it that older agents would misread gets the
/// next number, and [`decode`] the step from the one before.
pub const SCHEMA: u32 = 1;

/// Records of the first agents carry no number.
fn first_schema() -> u32 {
    1
}

/// Reads a record.
///
/// # Errors
/// It is of a newer form, or none.
pub fn decode(json: &[u8]) -> Result<VmRecord, Unusable> {
    let value = serde_json::from_slice(json);
    from_value(value.map_err(|error| Unusable::Damaged(error.to_string()))?)
}

/// Reads a record that was parsed already. Its form is looked at before its members.
///
/// # Errors
/// As [`decode`].
pub fn from_value(record: Value) -> Result<VmRecord, Unusable> {
    let schema = record.get("schema").map_or(Some(u64::from(first_schema())), Value::as_u64);
    match schema {
        Some(schema) if schema > u64::from(SCHEMA) => Err(Unusable::Newer(schema)),
        Some(_) => {
            let record = serde_json::from_value(record);
            record.map_err(|error| Unusable::Damaged(error.to_string()))
        }
        None => Err(Unusable::Damaged("its schema is no number".to_owned())),
    }
}

/// Largest copy of a record, bytes of JSON: the record and its stamp.
pub const MAX_COPY_BYTES: usize = MAX_RECORD_BYTES + 64 * 1024;

/// A record as it is written.
///
/// # Errors
/// `InvalidParameters`, naming the largest property, when it could not be read again.
pub fn encode(record: &VmRecord) -> Result<Vec<u8>, DriverError> {
    let json = serde_json::to_vec(record)
        .map_err(|error| DriverError::failed("encode a VM record", error))?;
    if json.len() <= MAX_RECORD_BYTES {
        return Ok(json);
    }
    let largest = record.properties.iter().max_by_key(|(_, value)| json_bytes(*value));
    let name = largest.map_or("properties", |(name, _)| name.as_str());
    let text = format!(
        "{name}: the record of VM {} would have {} bytes, {MAX_RECORD_BYTES} are the limit",
        record.uuid,
        json.len()
    );
    Err(DriverError::refused(Code::InvalidParameters, text))
}

/// `VmExists`.
#[must_use]
pub fn exists(vm: VmUuid) -> DriverError {
    DriverError::refused(Code::VmExists, format!("Machine {vm} exists."))
}

/// `VmExists`, because something without a record has its name.
#[must_use]
pub fn orphaned(vm: VmUuid) -> DriverError {
    let text = format!(
        "Machine {vm} exists: a guest, disks or a copy of its record are on this server without a \
         record; adopt or remove them first, see `muster server orphans`"
    );
    DriverError::refused(Code::VmExists, text)
}

/// `VmNotFound`.
#[must_use]
pub fn not_found(vm: VmUuid) -> DriverError {
    DriverError::refused(Code::VmNotFound, format!("No such VM: {vm}"))
}
