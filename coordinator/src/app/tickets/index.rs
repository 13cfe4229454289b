//! All tickets in memory, as the store's watch tells of them, and who waits for them.
//!
//! Only the store's [`Feed`](crate::store::Feed) writes here, so that everything is in the order of
//! commits, whichever coordinator made them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::api::ticket::{QueueName, TicketServer};
use muster_shared::ids::TicketUuid;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::{Due, TicketRecord};
use crate::app::keys;
use crate::store::Held;
use crate::store::{Damaged, Event, Follow, Record, Revision, Store, StoreError, read_all};

/// Waits at a time.
const MAX_WAITS: usize = 20_000;

/// Somebody who waits for a ticket.
#[derive(Clone, Debug)]
struct Wait {
    /// The ticket that this client says it holds meanwhile.
    holds: Option<TicketUuid>,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    tickets: BTreeMap<TicketUuid, Held<Arc<TicketRecord>>>,
    /// In order of creation.
    by_server: BTreeMap<TicketServer, BTreeMap<u64, TicketUuid>>,
    /// The open ones of each queue, oldest first.
    queues: BTreeMap<QueueName, BTreeMap<u64, TicketUuid>>,
    open: usize,
    /// Open ones, by who made them.
    open_of: BTreeMap<Option<IpAddr>, usize>,
    /// Open ones that promise room for a VM, in order of creation.
    provisioning: BTreeMap<u64, Arc<TicketRecord>>,
    /// Open ones by when they expire.
    due: BTreeSet<(Timestamp, TicketUuid)>,
    /// Open ones whose `expires_at` is no time.
    due_as_text: BTreeSet<TicketUuid>,
    /// Those that ended, by when.
    ended: BTreeSet<(String, TicketUuid)>,
    waits: BTreeMap<(TicketUuid, u64), Wait>,
    next_wait: u64,
}

impl Inner {
    fn insert(&mut self, ticket: Arc<TicketRecord>, revision: Revision) {
        let uuid = ticket.uuid;
        self.remove(uuid);
        self.by_server.entry(ticket.queue.server_uuid).or_default().insert(ticket.seq, uuid);
        if ticket.status.is_open() {
            self.open += 1;
            *self.open_of.entry(ticket.client).or_insert(0) += 1;
            self.queues.entry(ticket.queue.clone()).or_default().insert(ticket.seq, uuid);
            match ticket.due() {
                Due::At(at) => self.due.insert((at, uuid)),
                Due::AsText => self.due_as_text.insert(uuid),
            };
        } else {
            self.ended.insert((ticket.updated_at.clone(), uuid));
        }
        if ticket.is_provisioning() {
            self.provisioning.insert(ticket.seq, Arc::clone(&ticket));
        }
        self.tickets.insert(uuid, Held { value: ticket, revision });
    }

    fn remove(&mut self, uuid: TicketUuid) {
        let Some(Held { value: ticket, .. }) = self.tickets.remove(&uuid) else { return };
        remove_from(&mut self.by_server, &ticket.queue.server_uuid, ticket.seq);
        if ticket.status.is_open() {
            self.open -= 1;
            if let Some(count) = self.open_of.get_mut(&ticket.client) {
                *count -= 1;
                if *count == 0 {
                    self.open_of.remove(&ticket.client);
                }
            }
            remove_from(&mut self.queues, &ticket.queue, ticket.seq);
            match ticket.due() {
                Due::At(at) => self.due.remove(&(at, uuid)),
                Due::AsText => self.due_as_text.remove(&uuid),
            };
        } else {
            self.ended.remove(&(ticket.updated_at.clone(), uuid));
        }
        self.provisioning.remove(&ticket.seq);
    }

    fn wake(&self, uuid: TicketUuid) {
        for (_, wait) in self.waits.range((uuid, 0)..=(uuid, u64::MAX)) {
            wait.wake.notify_one();
        }
    }

    fn held(&self, uuids: impl Iterator<Item = TicketUuid>) -> Vec<Arc<TicketRecord>> {
        uuids.filter_map(|uuid| Some(Arc::clone(&self.tickets.get(&uuid)?.value))).collect()
    }
}

fn remove_from<K: Ord>(map: &mut BTreeMap<K, BTreeMap<u64, TicketUuid>>, key: &K, seq: u64) {
    if let Some(inner) = map.get_mut(key) {
        inner.remove(&seq);
        if inner.is_empty() {
            map.remove(key);
        }
    }
}

/// All tickets.
#[derive(Debug, Default)]
pub(super) struct Index {
    inner: Mutex<Inner>,
    /// Something became open or ended: another time may be the next to expire.
    pub(super) due_changed: Notify,
}

#[async_trait]
impl Follow for Index {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(keys::TICKETS)
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        read_all(store, &[keys::TICKETS]).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let mut inner = self.inner.lock();
        let Inner { waits, next_wait, .. } = std::mem::take(&mut *inner);
        (inner.waits, inner.next_wait) = (waits, next_wait);
        for record in records.values() {
            if let Some(ticket) = damaged.decode(&record.key, &record.value) {
                inner.insert(Arc::new(ticket), record.revision);
            }
        }
        for wait in inner.waits.values() {
            wait.wake.notify_one();
        }
        drop(inner);
        self.due_changed.notify_one();
    }

    /// Under one lock: between two changes of a commit a queue would seem to have two active
    /// tickets, or none.
    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut inner = self.inner.lock();
        for Event { key, value, revision } in changes {
            let Some(uuid) = keys::last(key) else { continue };
            match value.as_ref().map(|value| damaged.decode(key, value)) {
                Some(Some(ticket)) => inner.insert(Arc::new(ticket), *revision),
                Some(None) => continue,
                None => inner.remove(uuid),
            }
            inner.wake(uuid);
        }
        drop(inner);
        self.due_changed.notify_one();
    }
}

impl Index {
    pub(super) fn get(&self, uuid: TicketUuid) -> Option<Held<Arc<TicketRecord>>> {
        self.inner.lock().tickets.get(&uuid).cloned()
    }

    pub(super) fn open(&self) -> usize {
        self.inner.lock().open
    }

    /// Open tickets that a client made.
    pub(super) fn open_of(&self, client: Option<IpAddr>) -> usize {
        self.inner.lock().open_of.get(&client).copied().unwrap_or(0)
    }

    /// The tickets of a queue, oldest first.
    pub(super) fn queue(&self, name: &QueueName) -> Vec<Arc<TicketRecord>> {
        let inner = self.inner.lock();
        inner.held(inner.queues.get(name).into_iter().flat_map(BTreeMap::values).copied())
    }

    /// All queues, each oldest first.
    pub(super) fn queues(&self) -> Vec<Vec<Arc<TicketRecord>>> {
        let inner = self.inner.lock();
        inner.queues.values().map(|queue| inner.held(queue.values().copied())).collect()
    }

    /// The tickets of a waitlist, oldest first.
    pub(super) fn of_server(&self, server: TicketServer) -> Vec<Arc<TicketRecord>> {
        let inner = self.inner.lock();
        inner.held(inner.by_server.get(&server).into_iter().flat_map(BTreeMap::values).copied())
    }

    pub(super) fn provisioning(&self) -> Vec<Arc<TicketRecord>> {
        self.inner.lock().provisioning.values().cloned().collect()
    }

    /// Open tickets whose time is over, at most `max`.
    pub(super) fn over(&self, now: Timestamp, max: usize) -> Vec<TicketUuid> {
        let inner = self.inner.lock();
        let timed = inner.due.iter().take_while(|(at, _)| *at <= now).map(|(_, uuid)| *uuid);
        let over = |uuid: &TicketUuid| {
            inner
                .tickets
                .get(uuid)
                .is_some_and(|held| Due::AsText.is_over(&held.value.expires_at, now))
        };
        timed.chain(inner.due_as_text.iter().copied().filter(over)).take(max).collect()
    }

    /// When the next open ticket expires; `None` when there is none, or none with a time.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.inner.lock().due.first().map(|(at, _)| *at)
    }

    /// Whether there are open tickets whose `expires_at` is no time.
    pub(super) fn has_due_as_text(&self) -> bool {
        !self.inner.lock().due_as_text.is_empty()
    }

    /// Ended tickets to delete, oldest first: those that ended before `before`, and those beyond
    /// the newest `keep`.
    pub(super) fn old(&self, before: &str, keep: usize) -> Vec<TicketUuid> {
        let inner = self.inner.lock();
        let surplus = inner.ended.len().saturating_sub(keep);
        let old = |place: usize, at: &str| place < surplus || at < before;
        let ended = inner.ended.iter().enumerate();
        ended.take_while(|(n, (at, _))| old(*n, at)).map(|(_, (_, uuid))| *uuid).collect()
    }

    /// Counts somebody who waits; `None` when too many do.
    pub(super) fn wait(
        self: &Arc<Self>,
        uuid: TicketUuid,
        holds: Option<TicketUuid>,
    ) -> Option<Waiter> {
        let mut inner = self.inner.lock();
        if inner.waits.len() >= MAX_WAITS {
            return None;
        }
        let key = (uuid, inner.next_wait);
        inner.next_wait += 1;
        let wake = Arc::new(Notify::new());
        inner.waits.insert(key, Wait { holds, wake: Arc::clone(&wake) });
        Some(Waiter { index: Arc::clone(self), key, wake })
    }

    /// Every wait: the ticket, and the ticket that the client says it holds meanwhile.
    pub(super) fn waits(&self) -> Vec<(TicketUuid, Option<TicketUuid>)> {
        self.inner.lock().waits.iter().map(|((uuid, _), wait)| (*uuid, wait.holds)).collect()
    }
}

/// Somebody who waits, until dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    index: Arc<Index>,
    key: (TicketUuid, u64),
    wake: Arc<Notify>,
}

impl Waiter {
    /// Returns after the ticket changed; also if it did before the call.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.index.inner.lock().waits.remove(&self.key);
    }
}
