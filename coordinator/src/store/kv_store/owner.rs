//! The only writer of the embedded store: checks expectations one commit after the other, and
//! writes those that wait together as one batch of the map, so that they share a sync.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::kv::{Change, KvError, SharedKv};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::super::{Action, Event, Expect, LeaseId, Revision, StoreError, Write};
use super::leases::Leases;
use super::records::{self, Meta};
use super::unavailable;
use crate::store::hub::Hub;

/// Most commits written together; bounds the time the first of them waits.
pub(super) const GROUP_COMMITS: usize = 512;
/// A group takes no further commits past this size; with one more commit it stays under the
/// map's limit.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// A write that took longer held up renewals, which the holders of leases are not to pay for.
const STALL: Duration = Duration::from_secs(1);
/// Wait after the removal of an expired lease failed.
const RETRY: Duration = Duration::from_secs(1);

type Done<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Command {
    Commit { writes: Vec<Write>, done: Done<Revision> },
    Grant { ttl_ms: u64, done: Done<LeaseId> },
    Renew { lease: LeaseId, done: Done<()> },
    Revoke { lease: LeaseId, done: Done<()> },
    Close { done: oneshot::Sender<()> },
}

/// What a record is within a group: its revision, unless removed, and its lease.
#[derive(Clone, Copy)]
struct Staged {
    revision: Option<Revision>,
    lease: Option<LeaseId>,
}

/// Commits that were checked and wait to be written together.
#[derive(Default)]
struct Group {
    revision: Revision,
    staged: BTreeMap<String, Staged>,
    changes: BTreeMap<Bytes, Option<Bytes>>,
    events: Vec<Event>,
    accepted: Vec<(Done<Revision>, Revision)>,
    /// Told when the group is durable: what a commit lost to may be in it.
    refused: Vec<(Done<Revision>, StoreError)>,
    bytes: usize,
}

impl Group {
    fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.changes.insert(key, value);
    }

    fn rebind(&mut self, key: &str, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from != to {
            if let Some(lease) = from {
                self.set(records::leased_key(lease, key), None);
            }
            if let Some(lease) = to {
                self.set(records::leased_key(lease, key), Some(Bytes::new()));
            }
        }
    }

    fn put(&mut self, key: String, value: Bytes, was: Staged, lease: Option<LeaseId>) {
        let revision = self.revision;
        let map_key = Bytes::from(records::record_key(&key));
        self.set(map_key, Some(records::encode(revision, lease, &value)));
        self.rebind(&key, was.lease, lease);
        self.events.push(Event { key: key.clone(), value: Some(value), revision });
        self.staged.insert(key, Staged { revision: Some(revision), lease });
    }

    fn delete(&mut self, key: String, was: Staged) {
        let revision = self.revision;
        self.set(Bytes::from(records::record_key(&key)), None);
        self.rebind(&key, was.lease, None);
        self.events.push(Event { key: key.clone(), value: None, revision });
        self.staged.insert(key, Staged { revision: None, lease: None });
    }

    fn is_full(&self, kv: &SharedKv) -> bool {
        let most_bytes = GROUP_BYTES.min(kv.group_bytes());
        self.accepted.len() >= GROUP_COMMITS || self.bytes >= most_bytes
    }
}

pub(super) struct Owner {
    kv: SharedKv,
    clock: SharedClock,
    hub: Arc<Hub>,
    meta: Meta,
    leases: Leases,
    /// The last group found no room: each commit is a group of its own, so that one that removes
    /// does not fail with those that add.
    is_tight: bool,
    /// The map takes no commits any more.
    failed: CancellationToken,
}

impl Owner {
    pub(super) async fn open(
        kv: SharedKv,
        clock: SharedClock,
        hub: Arc<Hub>,
        meta: Meta,
        failed: CancellationToken,
    ) -> Result<Self, StoreError> {
        let mut leases = Leases::default();
        let now = clock.monotonic();
        for (key, value) in scan_all(&kv, records::LEASES).await? {
            let (id, ttl_ms) = records::parse_lease(&key, &value)?;
            leases.grant(id, Duration::from_millis(ttl_ms), now);
        }
        for (key, _) in scan_all(&kv, records::LEASED_KEYS).await? {
            let (id, key) = records::parse_leased_key(&key)?;
            leases.bind(&key, Some(id));
        }
        Ok(Self { kv, clock, hub, meta, leases, is_tight: false, failed })
    }

    /// Runs until closed, or until the last handle is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let closing = loop {
            let wait = self.until_next_end();
            let command = tokio::select! {
                biased;
                command = commands.recv() => command,
                () = tokio::time::sleep(wait) => {
                    self.expire().await;
                    continue;
                }
            };
            match command {
                None => break None,
                Some(Command::Close { done }) => break Some(done),
                Some(command) => {
                    if let Some(done) = self.serve(command, &mut commands).await {
                        break Some(done);
                    }
                }
            }
            // A busy queue must not keep leases alive.
            self.expire().await;
        };
        self.hub.close();
        if let Some(done) = closing {
            // Nobody waits for it any more: nothing to tell.
            done.send(()).unwrap_or(());
        }
    }

    /// Serves a command and those that wait behind it; returns a request to close.
    async fn serve(
        &mut self,
        first: Command,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Option<oneshot::Sender<()>> {
        let mut next = Some(first);
        let mut group = self.new_group();
        while let Some(command) = next.take() {
            let other = match command {
                Command::Commit { writes, done } => {
                    self.admit(&mut group, writes, done).await;
                    None
                }
                other => Some(other),
            };
            if other.is_some() || self.is_tight || group.is_full(&self.kv) {
                self.write_group(std::mem::take(&mut group)).await;
                group = self.new_group();
            }
            match other {
                Some(Command::Close { done }) => return Some(done),
                Some(other) => self.lease_command(other).await,
                None => {}
            }
            next = commands.try_recv().ok();
        }
        self.write_group(group).await;
        None
    }

    async fn write_group(&mut self, group: Group) {
        if let Err(error) = self.write(group).await {
            tracing::warn!(error = %Chain(&error), "commits failed");
        }
    }

    fn new_group(&self) -> Group {
        Group { revision: self.meta.revision, ..Group::default() }
    }

    /// Checks a commit against the store and the group; adds it, or why not.
    async fn admit(&mut self, group: &mut Group, writes: Vec<Write>, done: Done<Revision>) {
        match self.stage(group, writes).await {
            Ok(revision) => group.accepted.push((done, revision)),
            Err(error) => group.refused.push((done, error)),
        }
    }

    async fn stage(&self, group: &mut Group, writes: Vec<Write>) -> Result<Revision, StoreError> {
        let mut effects = Vec::with_capacity(writes.len());
        for write in writes {
            let was = self.look_up(group, &write).await?;
            let fits = match write.expect {
                Expect::Any => true,
                Expect::Absent => was.revision.is_none(),
                Expect::At(revision) => was.revision == Some(revision),
            };
            if !fits {
                return Err(StoreError::Conflict { key: write.key });
            }
            match &write.action {
                Action::Check => continue,
                Action::Delete if was.revision.is_none() => continue,
                Action::Put(_, Some(lease)) if !self.leases.contains(*lease) => {
                    return Err(StoreError::LeaseExpired);
                }
                Action::Put(..) | Action::Delete => {}
            }
            effects.push((write, was));
        }
        if !effects.is_empty() {
            group.revision.counter += 1;
        }
        for (write, was) in effects {
            match write.action {
                Action::Put(value, lease) => group.put(write.key, value, was, lease),
                Action::Delete => group.delete(write.key, was),
                Action::Check => {}
            }
        }
        Ok(group.revision)
    }

    async fn look_up(&self, group: &Group, write: &Write) -> Result<Staged, StoreError> {
        if let Some(staged) = group.staged.get(&write.key) {
            return Ok(*staged);
        }
        let lease = self.leases.lease_of(&write.key);
        // Its revision makes no difference to an unconditional put.
        if matches!((write.expect, &write.action), (Expect::Any, Action::Put(..))) {
            return Ok(Staged { revision: None, lease });
        }
        let raw = self.kv.get(&records::record_key(&write.key)).await;
        let revision = match raw.map_err(|e| unavailable("read", e))? {
            Some(raw) => Some(records::decode(String::new(), &raw)?.0.revision),
            None => None,
        };
        Ok(Staged { revision, lease })
    }

    /// Makes a group durable, then tells its callers and the watchers.
    async fn write(&mut self, group: Group) -> Result<(), StoreError> {
        let outcome = if group.changes.is_empty() {
            Ok(())
        } else {
            let meta = Meta { revision: group.revision, ..self.meta };
            self.write_changes(meta, group.changes).await
        };
        if outcome.is_ok() && !group.events.is_empty() {
            for (key, staged) in &group.staged {
                self.leases.bind(key, staged.lease);
            }
            self.hub.publish(group.events, group.revision);
        }
        for (done, revision) in group.accepted {
            answer(done, outcome.clone().map(|()| revision));
        }
        for (done, error) in group.refused {
            answer(done, Err(error));
        }
        outcome
    }

    async fn write_changes(
        &mut self,
        meta: Meta,
        changes: BTreeMap<Bytes, Option<Bytes>>,
    ) -> Result<(), StoreError> {
        let mut batch: Vec<Change> = changes
            .into_iter()
            .map(|(key, value)| match value {
                Some(value) => Change::Put(key, value),
                None => Change::Delete(key),
            })
            .collect();
        batch.push(meta.change());
        let before = self.clock.monotonic();
        let outcome = self.kv.commit(batch).await;
        let took = self.clock.monotonic().saturating_sub(before);
        if took > STALL {
            tracing::warn!(elapsed_ms = took.as_millis(), "the store's device is slow");
            self.leases.extend_all(took);
        }
        self.is_tight = matches!(outcome, Err(KvError::Full { .. }));
        outcome.map_err(|error| match error {
            KvError::Full { free_bytes, needed_bytes } => {
                StoreError::Full { free_bytes, needed_bytes }
            }
            other => {
                if other.is_final() {
                    self.failed.cancel();
                }
                unavailable("write", other)
            }
        })?;
        self.meta = meta;
        Ok(())
    }

    async fn lease_command(&mut self, command: Command) {
        match command {
            Command::Grant { ttl_ms, done } => {
                let outcome = self.grant(ttl_ms).await;
                answer(done, outcome);
            }
            Command::Renew { lease, done } => {
                let renewed = self.leases.renew(lease, self.clock.monotonic());
                answer(done, if renewed { Ok(()) } else { Err(StoreError::LeaseExpired) });
            }
            Command::Revoke { lease, done } => {
                let outcome = self.end_lease(lease).await;
                answer(done, outcome);
            }
            Command::Commit { .. } | Command::Close { .. } => {}
        }
    }

    async fn grant(&mut self, ttl_ms: u64) -> Result<LeaseId, StoreError> {
        let lease = LeaseId(self.meta.last_lease + 1);
        let meta = Meta { last_lease: lease.0, ..self.meta };
        let Change::Put(key, value) = records::lease_change(lease, ttl_ms) else {
            unreachable!("a lease is stored by a put");
        };
        self.write_changes(meta, BTreeMap::from([(key, Some(value))])).await?;
        self.leases.grant(lease, Duration::from_millis(ttl_ms), self.clock.monotonic());
        Ok(lease)
    }

    /// Removes a lease's records, then the lease.
    async fn end_lease(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        if !self.leases.contains(lease) {
            return Ok(());
        }
        let keys = self.leases.keys(lease);
        for some in keys.chunks(GROUP_COMMITS) {
            let mut group = self.new_group();
            group.revision.counter += 1;
            for key in some {
                group.delete(key.clone(), Staged { revision: None, lease: Some(lease) });
            }
            self.write(group).await?;
        }
        let gone = BTreeMap::from([(records::lease_key(lease), None)]);
        self.write_changes(self.meta, gone).await?;
        self.leases.remove(lease);
        Ok(())
    }

    fn until_next_end(&self) -> Duration {
        // Without leases there is nothing to wake for; an hour is as good as for ever.
        let next = self.leases.next_end().map(|(at, _)| at.saturating_sub(self.clock.monotonic()));
        next.unwrap_or(Duration::from_secs(3_600))
    }

    async fn expire(&mut self) {
        while let Some((at, lease)) = self.leases.next_end() {
            if at > self.clock.monotonic() {
                return;
            }
            tracing::info!(lease = lease.0, "a lease expired");
            if let Err(error) = self.end_lease(lease).await {
                tracing::warn!(error = %Chain(&error), "cannot remove an expired lease");
                self.leases.postpone(lease, self.clock.monotonic() + RETRY);
            }
        }
    }
}

/// Tells a caller; one that went away does not undo its commit.
fn answer<T>(done: Done<T>, outcome: Result<T, StoreError>) {
    drop(done.send(outcome));
}

async fn scan_all(kv: &SharedKv, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
    const STEP: usize = 1_000;
    let mut all: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let after = all.last().map(|(key, _)| key.clone());
        let entries = kv.scan(prefix, after.as_deref(), STEP).await;
        let entries = entries.map_err(|e| unavailable("read", e))?;
        let last = entries.len() < STEP;
        all.extend(entries);
        if last {
            return Ok(all);
        }
    }
}
