//! The VMs of this node: what it is meant to have, as durable records, and the state that follows
//! from record and observation.

pub mod at_start;
mod conflicts;
pub mod copies;
pub mod files;
pub mod live_disks;
pub mod live_nics;
pub mod object;
pub mod payload;
pub mod reconcile;
pub mod restart;
pub mod sim;
pub mod state;
mod table;
pub mod told;
pub mod volumes;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::vm::json_bytes;
use muster_shared::wire::Code;
use serde_json::Value;

use crate::drivers::DriverError;

pub use table::{Entry, VmTable};

use crate::vm_record::first_schema;
pub use crate::vm_record::{
    MAX_COPY_BYTES, MAX_RECORD_BYTES, SCHEMA, SnapshotRecord, StorageState, VmRecord, VolumeRecord,
};

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
            let record: Result<VmRecord, _> = serde_json::from_value(record);
            let record = record.map_err(|error| Unusable::Damaged(error.to_string()))?;
            // Of the forms so far each only has more members than the one before.
            Ok(VmRecord { schema: SCHEMA, ..record })
        }
        None => Err(Unusable::Damaged("its schema is not a number".to_owned())),
    }
}

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
