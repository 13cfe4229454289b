//! The open tasks in memory: who waits for them, what they reported, what was sent where.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::secrets::masked;
use muster_shared::wire::Progress;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::record::{Ending, TaskRecord};
use crate::roster::ConnectionId;
use crate::store::Revision;

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
    pub unstored: Option<Ending>,
    /// Percent.
    pub progress: u8,
    /// The newest events.
    pub events: VecDeque<Value>,
    done: watch::Sender<Option<Arc<TaskRecord>>>,
}

impl Open {
    /// Whether an agent has it.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.record.accepted || self.accepted_at.is_some()
    }

    /// CNAPI's record with progress, and events with their secrets masked.
    #[must_use]
    pub fn public(&self) -> Map<String, Value> {
        let mut view = self.record.public();
        view.insert("progress".to_owned(), json!(self.progress));
        if !self.events.is_empty() {
            view.insert("events".to_owned(), masked(&json!(self.events)));
        }
        view
    }
}

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<TaskId, Open>,
    by_server: BTreeMap<ServerUuid, BTreeSet<TaskId>>,
    /// Places taken by tasks that are being stored.
    reserved: BTreeMap<ServerUuid, usize>,
}

/// All open tasks.
#[derive(Debug, Default)]
pub struct Table(Mutex<Inner>);

impl Table {
    /// Takes a place among a server's open tasks; `false` when there is none left. Give it back
    /// with [`Table::release`].
    #[must_use]
    pub fn reserve(&self, server: ServerUuid, max: usize) -> bool {
        let mut inner = self.0.lock();
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
        let mut inner = self.0.lock();
        if let Some(reserved) = inner.reserved.get_mut(&server) {
            *reserved = reserved.saturating_sub(1);
            if *reserved == 0 {
                inner.reserved.remove(&server);
            }
        }
    }

    /// A stored task.
    pub fn insert(&self, record: Arc<TaskRecord>, revision: Revision, now: Duration) {
        let mut inner = self.0.lock();
        let id = record.id.clone();
        inner.by_server.entry(record.server_uuid).or_default().insert(id.clone());
        let open = Open {
            record,
            revision,
            since: now,
            sent_on: None,
            accepted_at: None,
            unstored: None,
            progress: 0,
            events: VecDeque::new(),
            done: watch::Sender::new(None),
        };
        inner.open.insert(id, open);
    }

    /// Remembers how a task ended until that can be stored; `None` forgets it.
    pub fn set_unstored(&self, id: &TaskId, ending: Option<Ending>) {
        if let Some(open) = self.0.lock().open.get_mut(id) {
            open.unstored = ending;
        }
    }

    /// The stored record changed while the task stays open.
    pub fn replace(&self, record: Arc<TaskRecord>, revision: Revision) {
        let mut guard = self.0.lock();
        let inner = &mut *guard;
        let Some(open) = inner.open.get_mut(&record.id) else { return };
        if open.record.server_uuid != record.server_uuid {
            remove_from(&mut inner.by_server, open.record.server_uuid, &record.id);
            inner.by_server.entry(record.server_uuid).or_default().insert(record.id.clone());
            open.sent_on = None;
            open.accepted_at = None;
            open.progress = 0;
        }
        open.record = record;
        open.revision = revision;
    }

    /// The task ended; wakes who waits.
    pub fn end(&self, record: &Arc<TaskRecord>) {
        let mut guard = self.0.lock();
        let inner = &mut *guard;
        if let Some(open) = inner.open.remove(&record.id) {
            remove_from(&mut inner.by_server, open.record.server_uuid, &record.id);
            open.done.send_replace(Some(Arc::clone(record)));
        }
    }

    /// One open task.
    #[must_use]
    pub fn get(&self, id: &TaskId) -> Option<Open> {
        self.0.lock().open.get(id).cloned()
    }

    /// Waits for the end of an open task; `None` when it is not open.
    #[must_use]
    pub fn subscribe(&self, id: &TaskId) -> Option<Done> {
        self.0.lock().open.get(id).map(|open| open.done.subscribe())
    }

    /// The open tasks of a server.
    #[must_use]
    pub fn of_server(&self, server: ServerUuid) -> Vec<TaskId> {
        let inner = self.0.lock();
        inner.by_server.get(&server).map(|ids| ids.iter().cloned().collect()).unwrap_or_default()
    }

    /// All open tasks.
    #[must_use]
    pub fn ids(&self) -> Vec<TaskId> {
        self.0.lock().open.keys().cloned().collect()
    }

    /// Number of open tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at the open tasks of one kind.
    pub fn for_each(&self, kind: &str, mut look: impl FnMut(&Open)) {
        self.0.lock().open.values().filter(|open| open.record.task == kind).for_each(&mut look);
    }

    /// The task goes out on this connection now.
    pub fn sending(&self, id: &TaskId, connection: ConnectionId, now: Duration) {
        if let Some(open) = self.0.lock().open.get_mut(id) {
            open.sent_on = Some((connection, now));
        }
    }

    /// An agent has the task.
    pub fn accepted(&self, id: &TaskId, now: Duration) {
        if let Some(open) = self.0.lock().open.get_mut(id) {
            open.accepted_at.get_or_insert(now);
        }
    }

    /// Takes over a progress report.
    pub fn progress(&self, server: ServerUuid, progress: &Progress) {
        let mut inner = self.0.lock();
        let Some(open) = inner.open.get_mut(&progress.id) else { return };
        if open.record.server_uuid != server {
            return;
        }
        if progress.name == "progress" {
            let value = progress.event.get("value").and_then(Value::as_u64).unwrap_or(0);
            open.progress = u8::try_from(value.min(100)).unwrap_or(100);
            return;
        }
        let event = json!({
            "name": progress.name, "timestamp": progress.ts, "event": progress.event,
        });
        if event.to_string().len() > MAX_EVENT_BYTES {
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
