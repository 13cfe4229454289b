//! What is promised and not yet reported: which VM to which server, and why.
//!
//! ```text
//! allocation ─► Reserved ─► (time over, a ticket) ─► nothing
//!                  │ a create
//! create ───────► Task ─► done ─► (a report shows the VM) ─► nothing
//! another coordinator's create ─► Elsewhere ─► (a report, its end) ─► nothing
//! ```
//!
//! The promises of other coordinators come with the store's watch, see `allocate/peers.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use serde::{Deserialize, Serialize};

use super::allocate::{Allocator, Peers, Reservation};
use super::config::AllocationConfig;
use crate::alloc;
use crate::store::{Revision, Write};

/// After this long a VM whose create completed, but which no report shows, is not counted any
/// more.
pub(super) const UNSEEN: Duration = Duration::from_secs(120);

/// Whether a reservation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PlaceState {
    Creating,
    Done,
}

/// The record `place/<vm>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlaceRecord {
    pub(super) vm_uuid: VmUuid,
    pub(super) task_id: TaskId,
    pub(super) server_uuid: ServerUuid,
    pub(super) state: PlaceState,
    pub(super) at: Timestamp,
    /// The coordinator that places it.
    #[serde(default)]
    pub(super) by: String,
    /// What the VM will take.
    #[serde(default)]
    pub(super) promise: Option<alloc::Extra>,
}

/// Why a VM is promised to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// A task makes it.
    Task {
        /// It ended well then, monotonic.
        done: Option<Duration>,
    },
    /// It was allocated.
    Reserved {
        /// Since then, monotonic.
        since: Duration,
        /// Its record, once that is durable.
        revision: Option<Revision>,
    },
    /// Another coordinator makes it.
    Elsewhere {
        /// The record of its place.
        revision: Revision,
    },
}

/// A VM that is promised to a server.
#[derive(Debug)]
struct Promise {
    server: ServerUuid,
    why: Why,
}

/// Promises by VM, and the allocator that counts them. Chosen and promised under one lock, so
/// that two choices can't take the same room.
#[derive(Debug)]
pub(crate) struct Placing {
    promises: BTreeMap<VmUuid, Promise>,
    /// Reservations that ended, whose records are still there.
    spent: BTreeMap<VmUuid, Revision>,
    /// Places of creates that ended well, and since when this process knows.
    pub(super) done: BTreeMap<VmUuid, (ServerUuid, Duration)>,
    pub(super) allocator: Allocator,
    /// The coordinators that place VMs on this store.
    pub(super) peers: Peers,
}

impl Placing {
    pub(crate) fn new(config: &AllocationConfig, instance: &str) -> Self {
        Self {
            promises: BTreeMap::new(),
            spent: BTreeMap::new(),
            done: BTreeMap::new(),
            allocator: Allocator::new(config),
            peers: Peers::new(instance),
        }
    }

    fn insert(&mut self, reservation: Reservation, why: Why) {
        let Reservation { vm, server, extra } = reservation;
        self.promises.insert(vm, Promise { server, why });
        self.allocator.reserve(vm, server, extra);
    }

    /// What a commit must find and leave in the store, so that no other coordinator has promised
    /// anything that the decisions so far don't know of.
    pub(super) fn guard(&self) -> Vec<Write> {
        self.peers.guard()
    }

    /// A task makes the VM; a reservation for it has served.
    pub(super) fn promise(&mut self, vm: VmUuid, server: ServerUuid, extra: alloc::Extra) {
        self.end_reservation(vm);
        self.insert(Reservation { vm, server, extra }, Why::Task { done: None });
    }

    pub(super) fn release(&mut self, vm: VmUuid) {
        self.end_reservation(vm);
        self.forget(vm);
    }

    fn forget(&mut self, vm: VmUuid) {
        if self.promises.remove(&vm).is_some() {
            self.allocator.release(vm);
        }
    }

    /// Whether a task makes the VM, here or elsewhere.
    pub(super) fn is_being_made(&self, vm: VmUuid) -> bool {
        let made = |why: Why| matches!(why, Why::Task { .. } | Why::Elsewhere { .. });
        self.promises.get(&vm).is_some_and(|promise| made(promise.why))
    }

    /// Whether a task makes it on another server than this one.
    pub(super) fn is_made_beside(&self, vm: VmUuid, server: ServerUuid) -> bool {
        self.is_being_made(vm) && self.promises.get(&vm).is_some_and(|it| it.server != server)
    }

    pub(super) fn is_promised(&self, vm: VmUuid) -> bool {
        self.promises.contains_key(&vm)
    }

    /// Reserves at a time; returns those for which no task or ticket counts already.
    pub(super) fn reserve(
        &mut self,
        reservations: Vec<Reservation>,
        since: Duration,
    ) -> Vec<Reservation> {
        let counted = |vm: VmUuid| self.is_being_made(vm) || self.allocator.is_ticketed(vm);
        let kept: Vec<_> = reservations.into_iter().filter(|r| !counted(r.vm)).collect();
        for reservation in &kept {
            // What an earlier one for the same VM wrote is overwritten by this one's record.
            self.insert(reservation.clone(), Why::Reserved { since, revision: None });
        }
        kept
    }

    /// A reservation's record is durable.
    pub(super) fn reserved(&mut self, vm: VmUuid, written: Revision) {
        match self.promises.get_mut(&vm).map(|promise| &mut promise.why) {
            Some(Why::Reserved { revision, .. }) => *revision = (*revision).max(Some(written)),
            // It ended while it was written.
            Some(Why::Task { .. } | Why::Elsewhere { .. }) | None => self.spent(vm, written),
        }
    }

    /// The store has this reservation, of another coordinator or of an earlier life.
    pub(super) fn adopt(&mut self, reservation: Reservation, at: Revision, now: Duration) {
        let vm = reservation.vm;
        let since = match self.promises.get(&vm).map(|promise| promise.why) {
            Some(Why::Task { .. } | Why::Elsewhere { .. }) => return self.spent(vm, at),
            Some(Why::Reserved { revision: Some(known), .. }) if known >= at => return,
            Some(Why::Reserved { .. }) | None => now,
        };
        self.insert(reservation, Why::Reserved { since, revision: Some(at) });
    }

    /// The store has no reservation for the VM any more.
    pub(super) fn reservation_gone(&mut self, vm: VmUuid, at: Revision) {
        if self.spent.get(&vm).is_some_and(|known| *known < at) {
            self.spent.remove(&vm);
        }
        let why = self.promises.get(&vm).map(|promise| promise.why);
        if matches!(why, Some(Why::Reserved { revision: Some(known), .. }) if known < at) {
            self.forget(vm);
        }
    }

    /// Another coordinator makes a VM.
    pub(super) fn elsewhere(&mut self, place: Reservation, at: Revision) {
        let vm = place.vm;
        match self.promises.get(&vm).map(|promise| promise.why) {
            Some(Why::Elsewhere { revision }) if revision >= at => {}
            // A task that was found at the start may be another coordinator's.
            Some(_) | None => {
                self.end_reservation(vm);
                self.insert(place, Why::Elsewhere { revision: at });
            }
        }
    }

    /// Another coordinator does not make the VM any more, or all can see it.
    pub(super) fn elsewhere_gone(&mut self, vm: VmUuid, at: Revision) {
        let why = self.promises.get(&vm).map(|promise| promise.why);
        if matches!(why, Some(Why::Elsewhere { revision }) if revision < at) {
            self.forget(vm);
        }
    }

    /// The VMs with a promise that is a record in the store: reserved, and made elsewhere.
    pub(super) fn recorded(&self) -> (Vec<VmUuid>, Vec<VmUuid>) {
        let of = |wanted: fn(Why) -> bool| -> Vec<VmUuid> {
            self.promises.iter().filter(|(_, p)| wanted(p.why)).map(|(vm, _)| *vm).collect()
        };
        let reserved = of(|why| matches!(why, Why::Reserved { revision: Some(_), .. }));
        (reserved, of(|why| matches!(why, Why::Elsewhere { .. })))
    }

    /// A reservation did not become durable.
    pub(super) fn unreserve(&mut self, vm: VmUuid) {
        let why = self.promises.get(&vm).map(|promise| promise.why);
        // What another coordinator reserved meanwhile stays.
        if matches!(why, Some(Why::Reserved { revision: None, .. })) {
            self.forget(vm);
        }
    }

    /// A reservation ended, of which a record is left.
    pub(super) fn spent(&mut self, vm: VmUuid, revision: Revision) {
        let known = self.spent.entry(vm).or_insert(revision);
        *known = (*known).max(revision);
    }

    pub(super) fn take_spent(&mut self, most: usize) -> Vec<(VmUuid, Revision)> {
        let vms: Vec<VmUuid> = self.spent.keys().copied().take(most).collect();
        vms.into_iter().filter_map(|vm| Some((vm, self.spent.remove(&vm)?))).collect()
    }

    fn end_reservation(&mut self, vm: VmUuid) {
        if let Some(Why::Reserved { revision: Some(revision), .. }) =
            self.promises.get(&vm).map(|promise| promise.why)
        {
            self.spent(vm, revision);
        }
    }

    /// A create ended well.
    pub(super) fn made(&mut self, vm: VmUuid, now: Duration) {
        if let Some(Promise { why: Why::Task { done }, .. }) = self.promises.get_mut(&vm) {
            *done = Some(now);
        }
    }

    /// A VM that was made is gone again.
    pub(super) fn destroyed(&mut self, vm: VmUuid) {
        let why = self.promises.get(&vm).map(|promise| promise.why);
        if matches!(why, Some(Why::Task { done: Some(_) })) {
            self.forget(vm);
        }
        self.done.remove(&vm);
    }

    /// A report of a server counts the VM: the promise is kept.
    pub(super) fn seen(&mut self, server: ServerUuid, vm: VmUuid) {
        let kept = |promise: &Promise| match promise.why {
            Why::Task { .. } | Why::Elsewhere { .. } => promise.server == server,
            Why::Reserved { .. } => true,
        };
        if self.promises.get(&vm).is_some_and(kept) {
            self.release(vm);
        }
    }

    /// Ends the reservations that are older than `ttl`, and those for which a ticket counts. A VM
    /// that is `unfinished` is reported but does not count yet, so its promise goes on.
    pub(super) fn expire(
        &mut self,
        now: Duration,
        ttl: Duration,
        unfinished: impl Fn(VmUuid) -> bool,
    ) {
        let over = |vm: VmUuid, why: Why| match why {
            Why::Reserved { since, revision } => {
                let late = now.saturating_sub(since) >= ttl && revision.is_some();
                late && !unfinished(vm) || self.allocator.is_ticketed(vm)
            }
            Why::Task { done } => {
                done.is_some_and(|done| now.saturating_sub(done) >= UNSEEN) && !unfinished(vm)
            }
            Why::Elsewhere { .. } => false,
        };
        let gone: Vec<_> =
            self.promises.iter().filter(|(vm, p)| over(**vm, p.why)).map(|(vm, _)| *vm).collect();
        for vm in gone {
            self.release(vm);
        }
    }
}
