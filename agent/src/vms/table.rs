//! All VMs in memory: records written through to [`VmRecords`], beside the last observation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::clock::{SharedClock, iso};
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use muster_shared::wire::status::VmReport;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::state::{self, State};
use super::{Node, VmRecord, VmRecords, object};
use crate::drivers::DriverError;
use crate::drivers::compute::{Compute, Live, Observed};

/// One VM.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is meant to be.
    pub record: VmRecord,
    /// What was last seen of it.
    pub observed: Observed,
    /// When [`Self::state`] changed last.
    pub state_since: Timestamp,
}

impl Entry {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        state::of(&self.record, self.observed.live().map(|live| live.activity))
    }
}

/// All records in memory, written through to [`VmRecords`].
#[derive(Debug)]
pub struct VmTable {
    records: Arc<dyn VmRecords>,
    clock: SharedClock,
    node: Node,
    vms: Mutex<BTreeMap<VmUuid, Entry>>,
    orphans: Mutex<BTreeSet<VmUuid>>,
    changes: watch::Sender<u64>,
    // Held over a read, its change and the durable write, so that two changes never lose one.
    writing: tokio::sync::Mutex<()>,
}

impl VmTable {
    /// A table over the given records; empty until they are loaded.
    #[must_use]
    pub fn new(records: Arc<dyn VmRecords>, clock: SharedClock, node: Node) -> Self {
        Self {
            records,
            clock,
            node,
            vms: Mutex::default(),
            orphans: Mutex::default(),
            changes: watch::channel(0).0,
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Reads all records from where they are kept. Nothing is known to run until it is observed.
    ///
    /// # Errors
    /// The folder could not be read.
    pub async fn load(&self) -> Result<(), DriverError> {
        let loaded = self.records.load().await?;
        let entry = |record: VmRecord| {
            let observed = Observed::stopped();
            // Unknown: a restart of the agent is no change of any VM.
            (record.uuid, Entry { record, observed, state_since: Timestamp::UNIX_EPOCH })
        };
        *self.vms.lock() = loaded.into_iter().map(entry).collect();
        self.changed();
        Ok(())
    }

    /// The host's boot.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.node.boot_id
    }

    /// Changes with every change of a record or of what was observed.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The record of one VM.
    #[must_use]
    pub fn get(&self, vm: VmUuid) -> Option<VmRecord> {
        self.vms.lock().get(&vm).map(|entry| entry.record.clone())
    }

    /// One VM with what was last seen of it.
    #[must_use]
    pub fn entry(&self, vm: VmUuid) -> Option<Entry> {
        self.vms.lock().get(&vm).cloned()
    }

    /// Every VM.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.vms.lock().values().cloned().collect()
    }

    /// Refuses properties of a VM with a NIC whose address another VM has, or two of its own.
    ///
    /// # Errors
    /// `InvalidParameters`, naming the address.
    pub fn check_macs(
        &self,
        vm: VmUuid,
        properties: &Map<String, Value>,
    ) -> Result<(), DriverError> {
        let mac_of = |nic: &Value| nic.get("mac").and_then(Value::as_str).map(str::to_owned);
        let mut taken: BTreeSet<String> = {
            let vms = self.vms.lock();
            let others = vms.values().filter(|entry| entry.record.uuid != vm);
            others.flat_map(|entry| entry.record.list("nics").iter().filter_map(mac_of)).collect()
        };
        let nics = properties.get("nics").and_then(Value::as_array);
        for mac in nics.into_iter().flatten().filter_map(mac_of) {
            if taken.contains(&mac) {
                let text = format!("nics: MAC {mac} is in use");
                return Err(DriverError::refused(Code::InvalidParameters, text));
            }
            taken.insert(mac);
        }
        Ok(())
    }

    /// Adds a VM; durable when it returns.
    ///
    /// # Errors
    /// `VmExists`; what [`Self::check_macs`] refuses; or the record could not be written.
    pub async fn create(&self, mut record: VmRecord) -> Result<(), DriverError> {
        let _writing = self.writing.lock().await;
        self.check_macs(record.uuid, &record.properties)?;
        let now = self.clock.wall();
        record.last_modified = iso(now);
        if let Err(error) = self.records.put(&record, true).await {
            let exists = matches!(error, DriverError::Refused { code: Code::VmExists, .. });
            // It may have been written all the same.
            if !exists && let Err(error) = self.records.remove(record.uuid).await {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::error!(vm_uuid = %record.uuid, error, "cannot take back a VM record");
            }
            return Err(error);
        }
        let observed = Observed::stopped();
        self.vms.lock().insert(record.uuid, Entry { record, observed, state_since: now });
        self.changed();
        Ok(())
    }

    /// Changes a record; durable when it returns. A change that changes nothing writes nothing
    /// and leaves `last_modified` alone.
    ///
    /// # Errors
    /// `VmNotFound`; what [`Self::check_macs`] refuses; or the record could not be written. It is
    /// unchanged then.
    pub async fn update(
        &self,
        vm: VmUuid,
        change: impl FnOnce(&mut VmRecord) + Send,
    ) -> Result<VmRecord, DriverError> {
        let _writing = self.writing.lock().await;
        let Some(old) = self.get(vm) else { return Err(super::not_found(vm)) };
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return Ok(old);
        }
        if new.list("nics") != old.list("nics") {
            self.check_macs(vm, &new.properties)?;
        }
        let now = self.clock.wall();
        new.last_modified = iso(now);
        self.records.put(&new, false).await?;
        if let Some(entry) = self.vms.lock().get_mut(&vm) {
            let before = entry.state();
            entry.record = new.clone();
            if entry.state() != before {
                entry.state_since = now;
            }
        }
        self.changed();
        Ok(new)
    }

    /// Keeps a copy of a VM that is about to go, with the end of its console. A missing one is no
    /// error.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn archive(&self, vm: VmUuid, console: &[u8]) -> Result<(), DriverError> {
        match self.get(vm) {
            Some(record) => self.records.archive(&record, console).await,
            None => Ok(()),
        }
    }

    /// Removes a VM; durable when it returns. A missing one is no error.
    ///
    /// # Errors
    /// The record could not be removed.
    pub async fn remove(&self, vm: VmUuid) -> Result<(), DriverError> {
        let _writing = self.writing.lock().await;
        self.records.remove(vm).await?;
        if self.vms.lock().remove(&vm).is_some() {
            self.changed();
        }
        Ok(())
    }

    /// Asks the host about one VM and remembers the answer.
    ///
    /// # Errors
    /// The host could not be read.
    pub async fn observe(
        &self,
        compute: &dyn Compute,
        vm: VmUuid,
    ) -> Result<Observed, DriverError> {
        let observed = compute.observe(vm).await?;
        let changed = {
            let mut vms = self.vms.lock();
            match vms.get_mut(&vm) {
                Some(entry) if entry.observed != observed => {
                    let before = entry.state();
                    let came = !entry.observed.is_running();
                    entry.observed = observed.clone();
                    if entry.state() != before {
                        let started = observed.live().filter(|_| came).and_then(started);
                        entry.state_since = started.unwrap_or_else(|| self.clock.wall());
                    }
                    true
                }
                _ => false,
            }
        };
        if changed {
            self.changed();
        }
        Ok(observed)
    }

    /// Asks the host about every VM. What can't be read keeps its last observation.
    pub async fn observe_all(&self, compute: &dyn Compute) {
        let vms: Vec<VmUuid> = self.vms.lock().keys().copied().collect();
        for vm in vms {
            if let Err(error) = self.observe(compute, vm).await {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::warn!(vm_uuid = %vm, error, "cannot observe a VM");
            }
        }
        match compute.running().await {
            Ok(running) => self.note_orphans(running),
            Err(error) => {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::warn!(error, "cannot list the guests that run");
            }
        }
    }

    fn note_orphans(&self, running: Vec<VmUuid>) {
        let found: BTreeSet<VmUuid> = {
            let vms = self.vms.lock();
            running.into_iter().filter(|vm| !vms.contains_key(vm)).collect()
        };
        let known = std::mem::replace(&mut *self.orphans.lock(), found.clone());
        for vm in found.difference(&known) {
            tracing::warn!(vm_uuid = %vm, "a guest runs that has no record");
        }
        if found != known {
            self.changed();
        }
    }

    /// Guests that run and have no record, a line for people each. They are left alone.
    #[must_use]
    pub fn orphans(&self) -> Vec<String> {
        let orphans = self.orphans.lock();
        orphans.iter().map(|vm| format!("orphan_vm: {vm} runs without a record")).collect()
    }

    /// The VM object as `machine_load` returns it. A VM that is not to be inventoried is found
    /// only with `include_dni`.
    #[must_use]
    pub fn object(&self, vm: VmUuid, include_dni: bool) -> Option<Value> {
        let entry = self.entry(vm)?;
        let hidden = entry.record.flag("do_not_inventory") && !include_dni;
        (!hidden).then(|| object::of(&entry, &self.node))
    }

    /// Every VM that is to be inventoried, as the status report tells it.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<VmUuid, VmReport> {
        let vms = self.vms.lock();
        vms.iter()
            .filter(|(_, entry)| !entry.record.flag("do_not_inventory"))
            .map(|(vm, entry)| (*vm, object::report(entry)))
            .collect()
    }

    /// `{"vm": …}`, what most VM tasks return; `null` inside when there is no such VM.
    #[must_use]
    pub fn result(&self, vm: VmUuid) -> Value {
        json!({ "vm": self.object(vm, true) })
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }
}

/// A guest runs since it was started, also when an agent sees it for the first time later.
fn started(live: &Live) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(live.started_at_ms).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use muster_shared::clock::TokioClock;

    use super::*;
    use crate::drivers::compute::sim::{SimCompute, SimGuests};
    use crate::drivers::faults::Faults;
    use crate::vms::sim::{SimVmRecords, record};

    #[tokio::test(start_paused = true)]
    async fn records_are_written_through_and_equal_updates_change_nothing() {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let records = SimVmRecords::default();
        let table = VmTable::new(Arc::new(records.clone()), Arc::clone(&clock), Node::default());
        let vm = record(1).uuid;
        table.create(record(1)).await.unwrap();
        assert!(table.create(record(1)).await.is_err());
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let old = table.get(vm).unwrap();
        assert_eq!(table.update(vm, |_| ()).await.unwrap(), old);
        let new = table.update(vm, |record| record.provisioning = false).await.unwrap();
        assert_ne!(new.last_modified, old.last_modified);
        assert_eq!(records.records()[&vm], new);

        let mut changes = table.subscribe();
        let guests = SimGuests::default();
        let compute = SimCompute::new(guests.clone(), clock, Faults::none());
        compute.start(&new, &[]).await.unwrap();
        table.observe_all(&compute).await;
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(table.entry(vm).unwrap().state().state, "running");
        guests.exit(vm, 3);
        table.observe_all(&compute).await;
        let observed = table.entry(vm).unwrap().observed;
        assert!(matches!(observed, Observed::Stopped(ended) if ended.exit_status == Some(3)));
        table.remove(vm).await.unwrap();
        assert!(records.records().is_empty());

        compute.start(&new, &[]).await.unwrap();
        table.observe_all(&compute).await;
        assert_eq!(table.orphans(), [format!("orphan_vm: {vm} runs without a record")]);
        guests.exit(vm, 0);
        table.observe_all(&compute).await;
        assert_eq!(table.orphans(), Vec::<String>::new());
    }
}
