//! The open tasks in memory: who waits for them, what they reported, what was sent where.
//!
//! Which tasks are open, and their records, only the store's feed says. Who changes a task in the
//! store takes its [`Turn`] first, so that what it decides on is what the store holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::api::task::{Task, TaskProgress, TaskStatus};
use muster_shared::clock::SharedClock;
use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::secrets::masked;
use muster_shared::wire::Progress;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, OwnedMutexGuard, watch};

use super::ending::When;
use super::record::{Ending, TaskRecord};
use crate::app::history::History;
use crate::app::keys;
use crate::roster::ConnectionId;
use crate::store::{Damaged, Event, Follow, Record, Revision, Store, StoreError, list_all};

/// Events kept of one task.
const MAX_EVENTS: usize = 64;
/// Longest event kept, bytes of JSON.
const MAX_EVENT_BYTES: usize = 16 * 1024;

/// The record of an ended task, once it has ended.
pub(super) type Done = watch::Receiver<Option<Arc<TaskRecord>>>;

/// One open task.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its record.
    pub record: Arc<TaskRecord>,
    /// The record's revision.
    pub revision: Revision,
    /// When this process learned of it, monotonic.
    pub since: Duration,
    /// The connection it was last sent on, and when.
    pub sent_on: Option<(ConnectionId, Duration)>,
    /// An agent said (to this process) that it has the task.
    pub accepted_at: Option<Duration>,
    /// How it ended, which could not be stored yet and which nobody will tell again.
    pub(crate) unstored: Option<(Ending, When)>,
    /// Percent.
    pub progress: u8,
    /// The newest events.
    pub events: VecDeque<TaskProgress>,
    turn: Arc<tokio::sync::Mutex<()>>,
    done: watch::Sender<Option<Arc<TaskRecord>>>,
}

impl Open {
    /// Whether an agent has it.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.record.accepted || self.accepted_at.is_some()
    }

    /// Whether it was last sent on a connection that is newer than this one.
    #[must_use]
    pub fn was_sent_after(&self, connection: ConnectionId) -> bool {
        self.sent_on.is_some_and(|(sent_on, _)| sent_on > connection)
    }

    /// CNAPI's record with progress, and events with their secrets masked.
    #[must_use]
    pub fn public(&self) -> Task {
        let mut task = self.record.public();
        task.progress = Some(self.progress);
        task.events = self.events.iter().cloned().collect();
        for event in &mut task.events {
            event.event = masked(&event.event);
        }
        task
    }
}

/// The right to change a task's record; the others wait until it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<TaskId, Open>,
    by_server: BTreeMap<ServerUuid, BTreeSet<TaskId>>,
    /// Places taken by tasks that are being stored.
    reserved: BTreeMap<ServerUuid, usize>,
    /// New ones that nobody has looked at; at most one entry per open task.
    news: VecDeque<TaskId>,
    /// What the store holds of those that have ended.
    history: History,
}

/// All open tasks.
#[derive(Debug)]
pub struct Table {
    inner: Mutex<Inner>,
    clock: SharedClock,
    /// There are new ones.
    pub(crate) wake: Notify,
}

#[async_trait]
impl Follow for Table {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(keys::TASKS)
    }

    /// Only the open ones: there may be millions that have ended.
    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for entry in list_all(store, keys::OPEN).await?.0 {
            let Some(id) = keys::last::<TaskId>(&entry.key) else { continue };
            match store.get(&keys::task(&id)).await? {
                Some(record) => records.push(record),
                None => tracing::error!(task_id = %id, "an open task has no record"),
            }
        }
        Ok(records)
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let mut inner = self.inner.lock();
        let known: Vec<TaskId> = inner.open.keys().cloned().collect();
        for id in known.iter().filter(|id| !records.contains_key(&keys::task(id))) {
            // Who waits for it looks into the store.
            inner.remove(id);
        }
        for Record { key, value, revision } in records.values() {
            if let Some(record) = damaged.decode(key, value) {
                inner.take(record, *revision, self.clock.monotonic());
            }
        }
        self.wake.notify_one();
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut inner = self.inner.lock();
        for Event { key, value, revision } in changes {
            match value.as_ref().map(|value| damaged.decode(key, value)) {
                Some(Some(record)) => {
                    let record: TaskRecord = record;
                    if record.status != TaskStatus::Active {
                        inner.history.add(value.as_ref().map_or(0, Bytes::len));
                    }
                    inner.take(record, *revision, self.clock.monotonic());
                }
                Some(None) => {}
                None => match keys::last::<TaskId>(key).and_then(|id| inner.remove(&id)) {
                    // Who waits for it looks into the store.
                    Some(_) => {}
                    None => inner.history.remove(),
                },
            }
        }
        self.wake.notify_one();
    }
}

impl Inner {
    /// What the store holds of a task now.
    fn take(&mut self, record: TaskRecord, revision: Revision, now: Duration) {
        let record = Arc::new(record);
        if record.status != TaskStatus::Active {
            if let Some(open) = self.remove(&record.id) {
                open.done.send_replace(Some(record));
            }
        } else if self.open.contains_key(&record.id) {
            self.replace(record, revision);
        } else {
            self.insert(record, revision, now);
        }
    }

    fn insert(&mut self, record: Arc<TaskRecord>, revision: Revision, now: Duration) {
        let id = record.id.clone();
        self.by_server.entry(record.server_uuid).or_default().insert(id.clone());
        let open = Open {
            record,
            revision,
            since: now,
            sent_on: None,
            accepted_at: None,
            unstored: None,
            progress: 0,
            events: VecDeque::new(),
            turn: Arc::default(),
            done: watch::Sender::new(None),
        };
        self.open.insert(id.clone(), open);
        self.news.push_back(id);
    }

    fn replace(&mut self, record: Arc<TaskRecord>, revision: Revision) {
        let Some(open) = self.open.get_mut(&record.id) else { return };
        if open.record.server_uuid != record.server_uuid {
            remove_from(&mut self.by_server, open.record.server_uuid, &record.id);
            self.by_server.entry(record.server_uuid).or_default().insert(record.id.clone());
            open.sent_on = None;
            open.accepted_at = None;
            open.progress = 0;
        }
        open.record = record;
        open.revision = revision;
    }

    fn remove(&mut self, id: &TaskId) -> Option<Open> {
        let open = self.open.remove(id)?;
        remove_from(&mut self.by_server, open.record.server_uuid, id);
        Some(open)
    }
}

impl Table {
    /// What the store holds of tasks that have ended.
    pub(crate) fn history(&self) -> History {
        self.inner.lock().history
    }

    /// Everything was measured.
    pub(crate) fn measured(&self, history: History) {
        self.inner.lock().history = history;
    }

    /// None yet.
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { inner: Mutex::default(), clock, wake: Notify::new() }
    }

    /// Those that came since the last call, in the order of their commits.
    pub(crate) fn take_news(&self) -> VecDeque<TaskId> {
        std::mem::take(&mut self.inner.lock().news)
    }

    /// An open task and the right to change it, once nobody else changes it; `None` when it has
    /// ended by then. The turn is kept until the change has come back by the feed.
    pub(super) async fn turn(&self, id: &TaskId) -> Option<(Open, Turn)> {
        let turn = self.get(id)?.turn.lock_owned().await;
        // It may have changed, or ended, while others had their turns.
        Some((self.get(id)?, turn))
    }

    /// As [`Table::turn`]; `None` also when somebody else has the turn.
    pub(super) fn try_turn(&self, id: &TaskId) -> Option<(Open, Turn)> {
        let turn = self.get(id)?.turn.try_lock_owned().ok()?;
        Some((self.get(id)?, turn))
    }

    /// Takes a place among a server's open tasks; `false` when there is none left. Give it back
    /// with [`Table::release`].
    #[must_use]
    pub fn reserve(&self, server: ServerUuid, max: usize) -> bool {
        let mut inner = self.inner.lock();
        let open = inner.by_server.get(&server).map_or(0, BTreeSet::len);
        let reserved = inner.reserved.entry(server).or_default();
        if open + *reserved >= max {
            return false;
        }
        *reserved += 1;
        true
    }

    /// Gives a place back.
    pub fn release(&self, server: ServerUuid) {
        let mut inner = self.inner.lock();
        if let Some(reserved) = inner.reserved.get_mut(&server) {
            *reserved = reserved.saturating_sub(1);
            if *reserved == 0 {
                inner.reserved.remove(&server);
            }
        }
    }

    /// Remembers how a task ended until that can be stored; `None` forgets it.
    pub(super) fn set_unstored(&self, id: &TaskId, ending: Option<(Ending, When)>) {
        if let Some(open) = self.inner.lock().open.get_mut(id) {
            open.unstored = ending;
        }
    }

    /// One open task.
    #[must_use]
    pub fn get(&self, id: &TaskId) -> Option<Open> {
        self.inner.lock().open.get(id).cloned()
    }

    /// Waits for the end of an open task; `None` when it is not open.
    #[must_use]
    pub fn subscribe(&self, id: &TaskId) -> Option<Done> {
        self.inner.lock().open.get(id).map(|open| open.done.subscribe())
    }

    /// The open tasks of a server.
    #[must_use]
    pub fn of_server(&self, server: ServerUuid) -> Vec<TaskId> {
        let inner = self.inner.lock();
        inner.by_server.get(&server).map(|ids| ids.iter().cloned().collect()).unwrap_or_default()
    }

    /// All open tasks.
    #[must_use]
    pub fn ids(&self) -> Vec<TaskId> {
        self.inner.lock().open.keys().cloned().collect()
    }

    /// Number of open tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.lock().open.len()
    }

    /// Number of open tasks of each kind.
    #[must_use]
    pub fn count_by_kind(&self) -> BTreeMap<String, u64> {
        let mut kinds = BTreeMap::new();
        for open in self.inner.lock().open.values() {
            match kinds.get_mut(&open.record.task) {
                Some(count) => *count += 1,
                None => drop(kinds.insert(open.record.task.clone(), 1)),
            }
        }
        kinds
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at the open tasks of one kind.
    pub fn for_each(&self, kind: &str, mut look: impl FnMut(&Open)) {
        self.inner.lock().open.values().filter(|open| open.record.task == kind).for_each(&mut look);
    }

    /// The task goes out on this connection now.
    pub fn sending(&self, id: &TaskId, connection: ConnectionId, now: Duration) {
        if let Some(open) = self.inner.lock().open.get_mut(id) {
            open.sent_on = Some((connection, now));
        }
    }

    /// An agent has the task.
    pub fn accepted(&self, id: &TaskId, now: Duration) {
        if let Some(open) = self.inner.lock().open.get_mut(id) {
            open.accepted_at.get_or_insert(now);
        }
    }

    /// Takes over a progress report.
    pub fn progress(&self, server: ServerUuid, progress: &Progress) {
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get_mut(&progress.id) else { return };
        if open.record.server_uuid != server {
            return;
        }
        if progress.name == "progress" {
            let value = progress.event.get("value").and_then(Value::as_u64).unwrap_or(0);
            open.progress = u8::try_from(value.min(100)).unwrap_or(100);
            return;
        }
        let Progress { name, ts: timestamp, event, .. } = progress.clone();
        let event = TaskProgress { name, timestamp, event };
        if keys::encode(&event).len() > MAX_EVENT_BYTES {
            return;
        }
        open.events.push_back(event);
        if open.events.len() > MAX_EVENTS {
            open.events.pop_front();
        }
    }
}

fn remove_from(
    by_server: &mut BTreeMap<ServerUuid, BTreeSet<TaskId>>,
    server: ServerUuid,
    id: &TaskId,
) {
    if let Some(ids) = by_server.get_mut(&server) {
        ids.remove(id);
        if ids.is_empty() {
            by_server.remove(&server);
        }
    }
}
