//! All VMs in memory: records written through to [`VmRecords`], beside the last observation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::clock::{SharedClock, iso};
use muster_shared::ids::VmUuid;
use muster_shared::wire::status::{GuestInfo, VmReport};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::conflicts::{self, Address};
use super::reconcile::{self, Plan};
use super::state::{self, State};
use super::writing::{IfNotWritten, Writing, later_than};
use super::{Loaded, Node, VmRecord, VmRecords, object};
use crate::drivers::DriverError;
use crate::drivers::compute::{Compute, Live, Observed, RunningGuest};
use crate::host::idmap::IdRange;
use crate::vm_record::user_ids;

/// One VM.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is meant to be.
    pub record: VmRecord,
    /// What was last seen of it.
    pub observed: Observed,
    /// When [`Self::state`] changed last.
    pub state_since: Timestamp,
    /// What its guest agent says, if it has one.
    pub guest: Option<Arc<GuestInfo>>,
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
    vms: Arc<Mutex<BTreeMap<VmUuid, Entry>>>,
    orphans: Mutex<BTreeMap<VmUuid, RunningGuest>>,
    remarks: Mutex<Vec<String>>,
    unusable: Mutex<BTreeSet<VmUuid>>,
    concerns: Mutex<Vec<String>>,
    changes: watch::Sender<u64>,
    // Held over a read, its change and the durable write, so that two changes never lose one.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl VmTable {
    /// A table over the given records; empty until they are loaded.
    #[must_use]
    pub fn new(records: Arc<dyn VmRecords>, clock: SharedClock, node: Node) -> Self {
        Self {
            records,
            clock,
            node,
            vms: Arc::default(),
            orphans: Mutex::default(),
            remarks: Mutex::default(),
            unusable: Mutex::default(),
            concerns: Mutex::default(),
            changes: watch::channel(0).0,
            writing: Arc::default(),
        }
    }

    /// Reads all records from where they are kept. Nothing is known to run until it is observed.
    ///
    /// # Errors
    /// The folder could not be read.
    pub async fn load(&self) -> Result<(), DriverError> {
        let loaded = self.records.load().await?;
        *self.remarks.lock() = remarks(&loaded);
        *self.unusable.lock() = loaded.newer();
        let entry = |record: VmRecord| {
            let observed = Observed::stopped();
            // Unknown: a restart of the agent is no change of any VM.
            let state_since = Timestamp::UNIX_EPOCH;
            (record.uuid, Entry { record, observed, state_since, guest: None })
        };
        *self.vms.lock() = loaded.records.into_iter().map(entry).collect();
        self.changed();
        Ok(())
    }

    /// What is said about the node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
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

    /// What the VMs need, see [`reconcile::plan`].
    #[must_use]
    pub fn plan(&self, busy: &BTreeSet<VmUuid>) -> Plan {
        let vms = self.vms.lock();
        reconcile::plan(vms.values(), busy, &self.node.boot_id, self.clock.wall())
    }

    /// Says what could not be done for VMs, a line for people each, in place of what was said
    /// before.
    pub fn set_concerns(&self, concerns: &[String]) {
        let before = std::mem::replace(&mut *self.concerns.lock(), concerns.to_vec());
        if before != concerns {
            self.changed();
        }
    }

    /// Every VM.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.vms.lock().values().cloned().collect()
    }

    /// Refuses properties of a VM with addresses that another VM has, or two of its own NICs.
    ///
    /// # Errors
    /// `InvalidParameters`, naming the NIC and the address.
    pub fn check_addresses(
        &self,
        vm: VmUuid,
        properties: &Map<String, Value>,
    ) -> Result<(), DriverError> {
        self.check_nics(vm, properties, Address::ALL)
    }

    fn check_nics(
        &self,
        vm: VmUuid,
        properties: &Map<String, Value>,
        kinds: &[Address],
    ) -> Result<(), DriverError> {
        let vms = self.vms.lock();
        let others = vms.values().filter(|entry| entry.record.uuid != vm);
        let others = others.flat_map(|entry| entry.record.list("nics"));
        conflicts::check(others, properties, kinds)
    }

    /// Adds a VM; durable when it returns.
    ///
    /// # Errors
    /// `VmExists`; what [`Self::check_addresses`] refuses; or the record could not be written. Nothing
    /// of it is left then.
    pub async fn create(&self, record: VmRecord) -> Result<(), DriverError> {
        let writing = self.begin().await;
        if self.orphans.lock().contains_key(&record.uuid) {
            return Err(super::orphaned(record.uuid));
        }
        if self.knows(record.uuid) {
            return Err(super::exists(record.uuid));
        }
        self.records.check_new(&record).await?;
        self.check_addresses(record.uuid, &record.properties)?;
        self.add(writing, record, IfNotWritten::Remove).await
    }

    /// Takes over a VM that is on the host and has no record; durable when it returns.
    ///
    /// # Errors
    /// As [`Self::create`], but what is there of it stays as it is; and it may have IP addresses that
    /// another VM has, which the operator can change then.
    pub async fn adopt(&self, record: VmRecord) -> Result<(), DriverError> {
        let writing = self.begin().await;
        self.add(writing, record, IfNotWritten::Leave).await
    }

    async fn add(
        &self,
        writing: Writing,
        mut record: VmRecord,
        otherwise: IfNotWritten,
    ) -> Result<(), DriverError> {
        self.check_nics(record.uuid, &record.properties, &[Address::Mac])?;
        let now = self.clock.wall();
        record.last_modified = iso(now);
        let records = Arc::clone(&self.records);
        writing
            .finish(|content| async move {
                if let Err(error) = records.put(&record, true).await {
                    otherwise.apply(records.as_ref(), record.uuid, &error).await;
                    return Err(error);
                }
                let observed = Observed::stopped();
                let entry = Entry { record, observed, state_since: now, guest: None };
                content.lock().insert(entry.record.uuid, entry);
                Ok(())
            })
            .await
    }

    /// Whether this agent has the VM, or a record of it that it can't read because a newer agent
    /// wrote it.
    #[must_use]
    pub fn knows(&self, vm: VmUuid) -> bool {
        self.vms.lock().contains_key(&vm) || self.unusable.lock().contains(&vm)
    }

    /// The VMs of which something holds.
    #[must_use]
    pub fn which(&self, holds: impl Fn(&Entry) -> bool) -> Vec<VmUuid> {
        let vms = self.vms.lock();
        vms.iter().filter(|(_, entry)| holds(entry)).map(|(vm, _)| *vm).collect()
    }

    /// Whether a container has some of these ids of the host for its own.
    #[must_use]
    pub fn gave_ids(&self, ids: IdRange) -> bool {
        let vms = self.vms.lock();
        let mut given = vms.values().filter_map(|entry| entry.record.user_ids);
        given.any(|given| given.overlaps(ids))
    }

    /// Ids of the host, of these, that no container has for its own. They are its that has them in its
    /// record: within a change of that, nobody else gets them meanwhile.
    #[must_use]
    pub fn free_ids(&self, of: IdRange) -> Option<IdRange> {
        let vms = self.vms.lock();
        let taken: Vec<_> = vms.values().filter_map(|entry| entry.record.user_ids).collect();
        user_ids::free(of, &taken)
    }

    /// Changes a record; durable when it returns. A change that changes nothing writes nothing
    /// and leaves `last_modified` alone.
    ///
    /// # Errors
    /// `VmNotFound`; what [`Self::check_addresses`] refuses; or the record could not be written. It
    /// is unchanged then.
    pub async fn update(
        &self,
        vm: VmUuid,
        change: impl FnOnce(&mut VmRecord) + Send,
    ) -> Result<VmRecord, DriverError> {
        let writing = self.begin().await;
        let Some(old) = self.get(vm) else { return Err(super::not_found(vm)) };
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return Ok(old);
        }
        if new.list("nics") != old.list("nics") {
            self.check_addresses(vm, &new.properties)?;
        }
        let now = self.clock.wall();
        new.last_modified = iso(later_than(&old.last_modified, now));
        let records = Arc::clone(&self.records);
        writing
            .finish(|content| async move {
                records.put(&new, false).await?;
                if let Some(entry) = content.lock().get_mut(&vm) {
                    let before = entry.state();
                    entry.record = new.clone();
                    if entry.state() != before {
                        entry.state_since = now;
                    }
                }
                Ok(new)
            })
            .await
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
        let writing = self.begin().await;
        let records = Arc::clone(&self.records);
        writing
            .finish(|content| async move {
                records.remove(vm).await?;
                content.lock().remove(&vm);
                Ok(())
            })
            .await
    }

    async fn begin(&self) -> Writing {
        let guard = Arc::clone(&self.writing).lock_owned().await;
        Writing::new(guard, Arc::clone(&self.vms), self.changes.clone())
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
                    if came || !observed.is_running() {
                        entry.guest = None;
                    }
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

    /// What the VM's guest agent said last.
    #[must_use]
    pub fn guest(&self, vm: VmUuid) -> Option<GuestInfo> {
        self.vms.lock().get(&vm)?.guest.as_deref().cloned()
    }

    /// Notes what the guest agent of a VM that runs says; `None`: nothing.
    pub fn note_guest(&self, vm: VmUuid, info: Option<GuestInfo>) {
        let news = match self.vms.lock().get_mut(&vm) {
            Some(entry)
                if entry.observed.is_running() && entry.guest.as_deref() != info.as_ref() =>
            {
                entry.guest = info.map(Arc::new);
                true
            }
            _ => false,
        };
        if news {
            self.changed();
        }
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

    fn note_orphans(&self, running: Vec<RunningGuest>) {
        let found: BTreeMap<VmUuid, RunningGuest> = {
            let vms = self.vms.lock();
            let unknown = running.into_iter().filter(|guest| !vms.contains_key(&guest.vm));
            unknown.map(|guest| (guest.vm, guest)).collect()
        };
        let known = std::mem::replace(&mut *self.orphans.lock(), found.clone());
        for vm in found.keys().filter(|vm| !known.contains_key(vm)) {
            tracing::warn!(vm_uuid = %vm, "a guest runs that has no record");
        }
        if found != known {
            self.changed();
        }
    }

    /// Guests that run and have no record. They are left alone.
    #[must_use]
    pub fn orphans(&self) -> Vec<RunningGuest> {
        self.orphans.lock().values().cloned().collect()
    }

    /// What is wrong with records and guests, a line for people each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let orphans = self.orphans.lock();
        let orphans = orphans.keys().map(|vm| format!("orphan_vm: {vm} runs without a record"));
        let (remarks, concerns) = (self.remarks.lock(), self.concerns.lock());
        remarks.iter().chain(concerns.iter()).cloned().chain(orphans).collect()
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
        let known = vms
            .iter()
            .filter(|(_, entry)| !entry.record.flag("do_not_inventory"))
            .map(|(vm, entry)| (*vm, object::report(entry)));
        // What they use is not free.
        let orphans = self.orphans();
        let orphans = orphans.iter().map(|guest| (guest.vm, object::report_orphan(guest)));
        orphans.chain(known).collect()
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

/// What people should know of how the records were found.
fn remarks(loaded: &Loaded) -> Vec<String> {
    let mut remarks: Vec<String> = loaded
        .unusable
        .iter()
        .map(|(vm, problem)| format!("the record of VM {vm} can't be used: {problem}"))
        .collect();
    if !loaded.adopted.is_empty() {
        let count = loaded.adopted.len();
        remarks.push(format!(
            "{count} VMs had lost their records and were adopted from the copies beside their disks"
        ));
    }
    remarks
}

/// A guest runs since it was started, also when an agent sees it for the first time later.
fn started(live: &Live) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(live.started_at_ms).ok()?).ok()
}

#[cfg(test)]
mod tests;
