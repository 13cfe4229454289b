//! What is promised and not yet reported: which VM to which server, and why.
//!
//! ```text
//! a decision ──► pending, until its commit is here or has failed
//! reserve/<vm> ──► reserved, until its time is over, a ticket or a create counts, or a report does
//! place/<vm>   ──► placed, until a report shows the VM or its create failed
//! ```
//!
//! Of these only `pending` is this process's own, and a guard gives it back ([`Promised`]). The
//! rest is what the store's feed tells, whoever wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::clock::SharedClock;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::status::VmReport;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::allocator::Allocator;
use super::peers::Peers;
use super::reserve::ReservationRecord;
use crate::alloc;
use crate::app::config::AllocationConfig;
use crate::app::fleet::{Fleet, PlaceState};
use crate::app::keys;
use crate::app::records::Records;
use crate::store::{Damaged, Event, Follow, Record, Revision, Store, StoreError, Write, read_all};

/// After this long a VM whose create completed, but which no report shows, is not counted any
/// more.
const UNSEEN: Duration = Duration::from_secs(120);
pub(super) const PLACES: Records<PlaceRecord> = Records::under(keys::PLACES);
const PREFIXES: &[&str] = &[keys::PLACERS, keys::RESERVATIONS, keys::PLACES];

/// The record `place/<vm>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PlaceRecord {
    pub(super) vm_uuid: VmUuid,
    pub(super) task_id: TaskId,
    pub(super) server_uuid: ServerUuid,
    pub(super) state: PlaceState,
    pub(super) at: Timestamp,
    /// The coordinator that wrote it.
    #[serde(default)]
    pub(super) by: String,
    /// What the VM will take.
    #[serde(default)]
    pub(super) promise: Option<Arc<alloc::Extra>>,
    /// What another version keeps in the record.
    #[serde(flatten)]
    pub(super) unknown: Object,
}

/// A place and what this process knows of it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) record: PlaceRecord,
    pub(super) revision: Revision,
    /// When this process learned of the record, monotonic.
    pub(super) since: Duration,
    /// It counts no more: a report shows the VM, or none ever did.
    pub(super) over: bool,
}

/// A reservation and what this process knows of it.
#[derive(Clone, Debug)]
struct Reserved {
    server: ServerUuid,
    extra: Arc<alloc::Extra>,
    revision: Revision,
    /// When this process learned of it, monotonic. Its time is counted from here: how long this
    /// coordinator was away, no clock says for sure.
    since: Duration,
    /// It counts no more, and its record is to be deleted.
    over: bool,
}

/// A decision that is being stored.
#[derive(Clone, Debug)]
struct Pending {
    number: u64,
    server: ServerUuid,
    extra: Arc<alloc::Extra>,
    /// The VM is made, not only reserved.
    making: bool,
}

/// All that promises room to one VM. Most are reservations, of which there may be many; what those do
/// not have is small here.
#[derive(Debug, Default)]
struct Promise {
    pending: Option<Box<Pending>>,
    place: Option<Box<Place>>,
    reserved: Option<Reserved>,
    /// What the allocator counts.
    counted: Option<(ServerUuid, Arc<alloc::Extra>)>,
}

impl Promise {
    /// The nearest to the VM's being there counts, and only that.
    fn counts(&self) -> Option<(ServerUuid, &Arc<alloc::Extra>)> {
        if let Some(pending) = &self.pending {
            return Some((pending.server, &pending.extra));
        }
        if let Some(place) = &self.place
            && (place.record.state == PlaceState::Creating || !place.over)
        {
            let extra = place.record.promise.as_ref().filter(|_| !place.over)?;
            return Some((place.record.server_uuid, extra));
        }
        let reserved = self.reserved.as_ref().filter(|reserved| !reserved.over)?;
        Some((reserved.server, &reserved.extra))
    }

    fn is_empty(&self) -> bool {
        self.pending.is_none() && self.place.is_none() && self.reserved.is_none()
    }

    fn end_reservation(&mut self) {
        if let Some(reserved) = &mut self.reserved {
            reserved.over = true;
        }
    }
}

/// Promises by VM, and the allocator that counts them.
#[derive(Debug)]
pub(crate) struct Placing {
    promises: BTreeMap<VmUuid, Promise>,
    numbers: u64,
    pub(super) allocator: Allocator,
    /// The coordinators that place VMs on this store.
    pub(super) peers: Peers,
}

impl Placing {
    fn new(config: &AllocationConfig, instance: &str) -> Self {
        Self {
            promises: BTreeMap::new(),
            numbers: 0,
            allocator: Allocator::new(config),
            peers: Peers::new(instance),
        }
    }

    /// Changes what promises room to a VM, and what the allocator counts with it.
    fn change(&mut self, vm: VmUuid, change: impl FnOnce(&mut Promise)) {
        let promise = self.promises.entry(vm).or_default();
        change(promise);
        let counts = promise.counts().map(|(server, extra)| (server, extra.clone()));
        if counts != promise.counted {
            match &counts {
                Some((server, extra)) => self.allocator.reserve(vm, *server, extra.clone()),
                None => self.allocator.release(vm),
            }
            promise.counted = counts;
        }
        if promise.is_empty() {
            self.promises.remove(&vm);
        }
    }

    fn promise(
        &mut self,
        vm: VmUuid,
        server: ServerUuid,
        extra: Arc<alloc::Extra>,
        making: bool,
    ) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        self.change(vm, |promise| {
            promise.pending = Some(Box::new(Pending { number, server, extra, making }));
        });
        number
    }

    fn release(&mut self, vm: VmUuid, number: u64) {
        self.change(vm, |promise| {
            promise.pending = promise.pending.take().filter(|pending| pending.number != number);
        });
    }

    /// The VM is to be made: it does not compete with what was reserved for it. When no server is
    /// found, the reservation has ended all the same: its VM was asked for and could not be made.
    pub(super) fn end_reservation(&mut self, vm: VmUuid) {
        if self.promises.contains_key(&vm) {
            self.change(vm, Promise::end_reservation);
        }
    }

    /// The server on which a task makes the VM, here or elsewhere.
    pub(super) fn made_on(&self, vm: VmUuid) -> Option<ServerUuid> {
        let promise = self.promises.get(&vm)?;
        if let Some(pending) = promise.pending.as_ref().filter(|pending| pending.making) {
            return Some(pending.server);
        }
        let place = promise.place.as_ref()?;
        let making = place.record.state == PlaceState::Creating || !place.over;
        making.then_some(place.record.server_uuid)
    }

    /// Whether room is promised to the VM, for whatever reason.
    pub(super) fn is_promised(&self, vm: VmUuid) -> bool {
        self.promises.get(&vm).is_some_and(|promise| promise.counts().is_some())
    }

    /// Whether a new reservation would count: no create and no ticket does already.
    pub(super) fn is_reservable(&self, vm: VmUuid) -> bool {
        self.made_on(vm).is_none() && !self.allocator.is_ticketed(vm)
    }

    /// The stored place of a VM.
    pub(super) fn place(&self, vm: VmUuid) -> Option<&Place> {
        self.promises.get(&vm)?.place.as_deref()
    }

    /// The places of creates that ended well.
    pub(super) fn done(&self) -> Vec<Place> {
        let places = self.promises.values().filter_map(|promise| promise.place.as_ref());
        let done = places.filter(|place| place.record.state == PlaceState::Done);
        done.map(|place| (**place).clone()).collect()
    }

    fn placed(&mut self, vm: VmUuid, place: Option<Place>) {
        self.change(vm, |promise| {
            if place.is_some() {
                promise.end_reservation();
            }
            promise.place = place.map(Box::new);
        });
    }

    fn reserved(&mut self, vm: VmUuid, mut reserved: Option<Reserved>) {
        let useless = !self.is_reservable(vm);
        self.change(vm, |promise| {
            if let Some(reserved) = &mut reserved {
                reserved.over |= useless;
                // The record says what this process decided: one copy is enough.
                if let Some((_, counted)) = &promise.counted
                    && *counted == reserved.extra
                {
                    reserved.extra = Arc::clone(counted);
                }
            }
            promise.reserved = reserved;
        });
    }

    /// A report of a server counts the VM: promises of it are kept.
    fn seen(&mut self, server: ServerUuid, vm: VmUuid) {
        if !self.promises.contains_key(&vm) {
            return;
        }
        self.change(vm, |promise| {
            promise.end_reservation();
            if let Some(place) = promise.place.as_mut()
                && place.record.server_uuid == server
            {
                place.over = true;
            }
        });
    }

    /// Ends the reservations that are older than `ttl` and those for which a ticket counts, and
    /// the creates that no report ever showed. A VM that is `unfinished` is reported but does not
    /// count yet, so its promise goes on.
    pub(super) fn expire(
        &mut self,
        now: Duration,
        ttl: Duration,
        unfinished: impl Fn(VmUuid) -> bool,
    ) {
        let old = |since: Duration, limit: Duration| now.saturating_sub(since) >= limit;
        let is_over = |vm: VmUuid, promise: &Promise| {
            let reserved = promise.reserved.as_ref().filter(|it| !it.over).is_some_and(|it| {
                old(it.since, ttl) && !unfinished(vm) || self.allocator.is_ticketed(vm)
            });
            let place = promise.place.as_ref().filter(|it| !it.over).is_some_and(|it| {
                it.record.state == PlaceState::Done && old(it.since, UNSEEN) && !unfinished(vm)
            });
            (reserved || place).then_some((vm, reserved, place))
        };
        let over: Vec<_> =
            self.promises.iter().filter_map(|(vm, promise)| is_over(*vm, promise)).collect();
        for (vm, reservation, place) in over {
            self.change(vm, |promise| {
                if reservation {
                    promise.end_reservation();
                }
                if let Some(stored) = promise.place.as_mut().filter(|_| place) {
                    stored.over = true;
                }
            });
        }
    }

    /// The keys of the records that are known, and how many decisions are being stored.
    #[cfg(test)]
    pub(in crate::app) fn known(&self) -> (BTreeSet<String>, usize) {
        let places = self.promises.iter().filter(|(_, promise)| promise.place.is_some());
        let reserved = self.promises.iter().filter(|(_, promise)| promise.reserved.is_some());
        let keys = places.map(|(vm, _)| keys::place(*vm));
        let keys = keys.chain(reserved.map(|(vm, _)| keys::reservation(*vm))).collect();
        (keys, self.promises.values().filter(|promise| promise.pending.is_some()).count())
    }

    /// Reservations that are over and whose records are still there, at most `most`.
    pub(super) fn spent(&self, most: usize) -> Vec<(VmUuid, Revision)> {
        let over = |(vm, promise): (&VmUuid, &Promise)| {
            let reserved = promise.reserved.as_ref().filter(|reserved| reserved.over)?;
            Some((*vm, reserved.revision))
        };
        self.promises.iter().filter_map(over).take(most).collect()
    }
}

/// The promises of this process, fed by the store.
#[derive(Debug)]
pub(crate) struct Promises {
    placing: Mutex<Placing>,
    fleet: Arc<Fleet>,
    clock: SharedClock,
}

impl Promises {
    pub(crate) fn new(
        config: &AllocationConfig,
        instance: &str,
        fleet: Arc<Fleet>,
        clock: SharedClock,
    ) -> Self {
        let placing = Mutex::new(Placing::new(config, instance));
        Self { placing, fleet, clock }
    }

    pub(in crate::app) fn lock(&self) -> MutexGuard<'_, Placing> {
        self.placing.lock()
    }

    /// Counts a VM on a server until the guard is dropped; `making`: it is made, not only reserved.
    pub(super) fn promise(
        self: &Arc<Self>,
        vm: VmUuid,
        server: ServerUuid,
        extra: Arc<alloc::Extra>,
        making: bool,
    ) -> Promised {
        let number = self.lock().promise(vm, server, extra, making);
        Promised { promises: Arc::clone(self), vm, number }
    }

    /// Whether a report counts the VM on a server.
    fn is_counted(&self, server: ServerUuid, vm: VmUuid) -> bool {
        let report = self.fleet.with(server, |entry| entry.vms.get(&vm).cloned()).flatten();
        report.is_some_and(|report| counts(&report))
    }

    fn take(&self, placing: &mut Placing, change: &Event, damaged: &Damaged) {
        let Event { key, value, revision } = change;
        let revision = *revision;
        let since = self.clock.monotonic();
        if key.starts_with(keys::PLACERS) {
            return placing.peers.take(key, value.as_ref(), revision, damaged);
        }
        let Some(vm) = keys::last::<VmUuid>(key) else { return };
        if key.starts_with(keys::VMS) {
            if let Some((server, _)) = self.fleet.vm(vm).filter(|(_, report)| counts(report)) {
                placing.seen(server, vm);
            }
        } else if key.starts_with(keys::PLACES) {
            let Some(value) = value else { return placing.placed(vm, None) };
            let Some(record) = damaged.decode::<PlaceRecord>(key, value) else { return };
            let over = self.is_counted(record.server_uuid, vm);
            placing.placed(vm, Some(Place { record, revision, since, over }));
        } else {
            let Some(value) = value else { return placing.reserved(vm, None) };
            let Some(record) = damaged.decode::<ReservationRecord>(key, value) else { return };
            let over = self.fleet.vm(vm).is_some_and(|(_, report)| counts(&report));
            let (server, extra) = (record.server_uuid, record.promise);
            placing.reserved(vm, Some(Reserved { server, extra, revision, since, over }));
        }
    }
}

#[async_trait]
impl Follow for Promises {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(keys::VMS) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        read_all(store, PREFIXES).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let mut placing = self.lock();
        let gone: Vec<VmUuid> = placing.promises.keys().copied().collect();
        let kept: BTreeSet<&str> = records.keys().map(String::as_str).collect();
        for vm in gone {
            if !kept.contains(keys::place(vm).as_str()) {
                placing.placed(vm, None);
            }
            if !kept.contains(keys::reservation(vm).as_str()) {
                placing.reserved(vm, None);
            }
        }
        for Record { key, value, revision } in records.values() {
            let (key, value) = (key.clone(), Some(value.clone()));
            let change = Event { key, value, revision: *revision };
            self.take(&mut placing, &change, damaged);
        }
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut placing = self.lock();
        for change in changes {
            self.take(&mut placing, change, damaged);
        }
    }
}

/// A VM counted on a server until this is dropped: after its commit has come back by the store's
/// feed, whose record counts from then on, or when there will be no commit.
#[derive(Debug)]
pub(super) struct Promised {
    promises: Arc<Promises>,
    pub(super) vm: VmUuid,
    number: u64,
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.promises.lock().release(self.vm, self.number);
    }
}

/// Whether the allocator counts a reported VM, or has no need to. The reference leaves a VM that
/// is being made to its ticket.
pub(super) fn counts(report: &VmReport) -> bool {
    report.vm.state != "provisioning"
}

/// What a commit that promises room must find and leave in the store; see [`Peers`].
pub(super) type Guard = Vec<Write>;
