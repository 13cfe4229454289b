//! The VM table: what VMs this node is meant to have, as durable records, with the state that
//! follows from record and observation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::{TaskId, VmUuid};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::drivers::DriverError;

/// The record of one VM, `data_dir/vms/<uuid>.json`: the properties of spec'd names in
/// `properties` plus what the agent itself needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmRecord {
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
    /// VM properties under vmadm's names (`brand`, `alias`, `ram`, `vcpus`, `disks`, `nics`, …).
    pub properties: Map<String, Value>,
}

/// Where records are kept.
#[async_trait]
pub trait VmRecords: fmt::Debug + Send + Sync + 'static {
    /// Every record; damaged ones are set aside and reported.
    ///
    /// # Errors
    /// The folder could not be read.
    async fn load(&self) -> Result<Vec<VmRecord>, DriverError>;

    /// Writes a record; durable when it returns.
    ///
    /// # Errors
    /// `VmExists` when `create` is set and there is one; `StoreFull`.
    async fn put(&self, record: &VmRecord, create: bool) -> Result<(), DriverError>;

    /// Removes a record; durable when it returns. A missing one is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn remove(&self, vm: VmUuid) -> Result<(), DriverError>;
}

/// All records in memory, written through to [`VmRecords`].
#[derive(Debug)]
pub struct VmTable {
    records: Arc<dyn VmRecords>,
    vms: Mutex<BTreeMap<VmUuid, VmRecord>>,
}

impl VmTable {
    /// A table over the given records; empty until they are loaded.
    #[must_use]
    pub fn new(records: Arc<dyn VmRecords>) -> Self {
        Self { records, vms: Mutex::default() }
    }

    /// The record of one VM.
    #[must_use]
    pub fn get(&self, vm: VmUuid) -> Option<VmRecord> {
        self.vms.lock().get(&vm).cloned()
    }

    /// Reads all records from where they are kept.
    ///
    /// # Errors
    /// The folder could not be read.
    pub async fn load(&self) -> Result<(), DriverError> {
        let loaded = self.records.load().await?;
        *self.vms.lock() = loaded.into_iter().map(|r| (r.uuid, r)).collect();
        Ok(())
    }
}
