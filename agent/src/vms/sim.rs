//! Simulated records: durable as far as a simulated host is, shared by the agents that follow one
//! another on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;

use super::{Loaded, VmRecord, VmRecords};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// The records of one simulated host; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SimVmRecords {
    records: Arc<Mutex<BTreeMap<VmUuid, VmRecord>>>,
    archived: Arc<Mutex<BTreeMap<VmUuid, VmRecord>>>,
    faults: Faults,
}

impl SimVmRecords {
    /// Operations in `faults`: `vms.load`, `vms.put`, `vms.archive`, `vms.remove`.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// What is on disk.
    #[must_use]
    pub fn records(&self) -> BTreeMap<VmUuid, VmRecord> {
        self.records.lock().clone()
    }

    /// Loses one, as a damaged disk does.
    pub fn lose(&self, vm: VmUuid) {
        self.records.lock().remove(&vm);
    }

    /// What was kept of VMs that are gone.
    #[must_use]
    pub fn archived(&self) -> BTreeMap<VmUuid, VmRecord> {
        self.archived.lock().clone()
    }
}

#[async_trait]
impl VmRecords for SimVmRecords {
    async fn load(&self) -> Result<Loaded, DriverError> {
        let records = || self.records.lock().values().cloned().collect();
        let load = || Ok(Loaded { records: records(), ..Loaded::default() });
        self.faults.call("vms.load", load).await
    }

    async fn put(&self, record: &VmRecord, create: bool) -> Result<(), DriverError> {
        let put = || {
            super::encode(record)?;
            let mut records = self.records.lock();
            if create && records.contains_key(&record.uuid) {
                return Err(super::exists(record.uuid));
            }
            records.insert(record.uuid, record.clone());
            Ok(())
        };
        self.faults.call("vms.put", put).await
    }

    async fn archive(&self, record: &VmRecord, _console: &[u8]) -> Result<(), DriverError> {
        let archive = || {
            self.archived.lock().insert(record.uuid, record.clone());
            Ok(())
        };
        self.faults.call("vms.archive", archive).await
    }

    async fn remove(&self, vm: VmUuid) -> Result<(), DriverError> {
        let remove = || {
            self.records.lock().remove(&vm);
            Ok(())
        };
        self.faults.call("vms.remove", remove).await
    }
}

/// A record for tests.
#[cfg(test)]
pub(crate) fn record(number: u128) -> VmRecord {
    let uuid = uuid::Uuid::from_u128(number).into();
    let task = uuid::Uuid::from_u128(number).into();
    VmRecord::new(uuid, task, serde_json::Map::new())
}
