//! Keeping the journal small and its marks current: acknowledgements, retention.
//!
//! Kept are all tasks that have not ended, all results nobody has acknowledged, and of the rest
//! the newest 2,000 or those of the last 7 days, whichever is more, within 256 MiB and 20,000.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::kv::Change;

use super::journal;
use super::live::Shared;
use super::runner::{Engine, MAX_JOURNAL_BYTES};

/// Ended and acknowledged tasks that are kept whatever their age.
pub(super) const KEPT_TASKS: usize = 2_000;
/// Ended and acknowledged tasks that are kept at most, however young: something of each is in
/// memory, about half a kilobyte.
pub(super) const MAX_KEPT_TASKS: usize = 20_000;
/// As many more before they are looked at out of turn.
const SLACK_TASKS: usize = 1_024;
/// Ended and acknowledged tasks younger than this are kept while there is room.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Ended queries that are kept once acknowledged; they are in memory only.
const KEPT_QUERIES: usize = 256;
/// Ended queries whose result nobody acknowledged.
const MAX_UNACKED_QUERIES: usize = 4_096;
/// How often retention is looked at; also whenever the journal gets large.
const PERIOD: Duration = Duration::from_secs(600);
/// Size of the journal at which that is not waited for.
const LARGE_BYTES: usize = MAX_JOURNAL_BYTES / 4 * 3;
/// Acknowledgements between two looks at ended queries.
const ACKS_PER_LOOK: usize = 64;
/// Changes written at a time.
const BATCH: usize = 64;

impl Engine {
    /// A coordinator holds the result durably.
    pub fn acknowledge(&self, id: &TaskId) {
        let durable = {
            let mut shared = self.shared.lock();
            if shared.refusals.forget(id) {
                drop(shared);
                self.note(journal::forget_returned(id));
                return self.touch();
            }
            let Some(ended) = shared.ended.get_mut(id) else { return };
            if ended.acked {
                return;
            }
            ended.acked = true;
            let (seq, durable) = (ended.seq, ended.record.is_none());
            shared.unacked.remove(&(seq, id.clone()));
            shared.disowned.remove(&(seq, id.clone()));
            durable
        };
        if durable {
            // Not awaited: an acknowledgement that is lost is asked for again.
            self.note(journal::put_acked(id));
        } else {
            self.notes.notify_one();
        }
        self.touch();
    }

    /// Has a change of the journal made that nobody waits for.
    pub(super) fn note(&self, change: Change) {
        self.to_note.lock().push(change);
        self.notes.notify_one();
    }

    /// A coordinator says that its store lacks a task that has ended here. The store may have been
    /// lost or replaced by an older copy, so the result is kept as long as any, and told again.
    pub fn disowned(&self, id: &TaskId) {
        let old = {
            let mut shared = self.shared.lock();
            let Some(ended) = shared.ended.get(id).filter(|ended| !ended.acked) else { return };
            let age = Duration::try_from(self.parts.clock.wall().duration_since(ended.finished_at));
            let (seq, old) = (ended.seq, age.is_ok_and(|age| age > KEPT_FOR));
            if shared.unacked.remove(&(seq, id.clone())) {
                tracing::warn!(task_id = %id, "no coordinator knows this task; its result is kept");
                shared.disowned.insert((seq, id.clone()));
            }
            old
        };
        if old {
            tracing::warn!(task_id = %id, "the result of a task that nobody knows is forgotten");
            self.acknowledge(id);
        }
    }

    /// Whether the last word about a result was [`Engine::disowned`].
    #[must_use]
    pub fn is_disowned(&self, id: &TaskId) -> bool {
        let shared = self.shared.lock();
        shared.ended.get(id).is_some_and(|e| shared.disowned.contains(&(e.seq, id.clone())))
    }

    /// Background work of the engine, until it is closed.
    pub(super) async fn keep_house(self: Arc<Self>) {
        let mut period = tokio::time::interval(PERIOD);
        let mut acks = 0;
        loop {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => {
                    self.write_notes().await;
                    return;
                }
                () = self.notes.notified() => {
                    self.write_notes().await;
                    acks += 1;
                    if self.keeps_too_much() {
                        self.prune().await;
                    }
                }
                _ = period.tick() => {
                    self.prune().await;
                    acks = ACKS_PER_LOOK;
                }
            }
            if acks >= ACKS_PER_LOOK {
                acks = 0;
                self.prune_queries();
            }
        }
    }

    async fn write_notes(&self) {
        loop {
            let changes: Vec<Change> = {
                let mut waiting = self.to_note.lock();
                let count = waiting.len().min(BATCH);
                waiting.drain(..count).collect()
            };
            if changes.is_empty() {
                return;
            }
            self.must_write(changes).await;
        }
    }

    /// Too much to wait for the next look. Somewhat more tasks than are kept, so that not each one
    /// that ends costs a look at all of them.
    fn keeps_too_much(&self) -> bool {
        let shared = self.shared.lock();
        let kept = shared.ended.len().saturating_sub(shared.unacked.len());
        shared.bytes > LARGE_BYTES || kept > MAX_KEPT_TASKS + KEPT_QUERIES + SLACK_TASKS
    }

    async fn prune(&self) {
        loop {
            let changes = self.take_expired(&mut self.shared.lock());
            if changes.is_empty() {
                return;
            }
            self.must_write(changes).await;
        }
    }

    /// Forgets the oldest journaled tasks that need not be kept, a batch at a time.
    fn take_expired(&self, shared: &mut Shared) -> Vec<Change> {
        let now = self.parts.clock.wall();
        let kept = shared.ended.values().filter(|e| e.acked && e.record.is_none()).count();
        let mut surplus = kept.saturating_sub(KEPT_TASKS);
        let mut excess = kept.saturating_sub(MAX_KEPT_TASKS);
        let mut bytes = shared.bytes;
        let mut gone = Vec::new();
        for (seq, id) in &shared.by_seq {
            let Some(ended) = shared.ended.get(id) else { continue };
            if !ended.acked || ended.record.is_some() {
                continue;
            }
            let age = Duration::try_from(now.duration_since(ended.finished_at));
            let old = age.is_ok_and(|age| age > KEPT_FOR);
            let expired = (surplus > 0 && old) || excess > 0 || bytes > LARGE_BYTES;
            if !expired || gone.len() >= BATCH {
                break;
            }
            surplus = surplus.saturating_sub(1);
            excess = excess.saturating_sub(1);
            bytes = bytes.saturating_sub(ended.bytes());
            gone.push((*seq, id.clone()));
        }
        shared.bytes = bytes;
        let mut changes = Vec::new();
        for (seq, id) in gone {
            shared.by_seq.remove(&seq);
            if let Some(ended) = shared.ended.remove(&id) {
                changes.extend(journal::forget(&id, ended.params_bytes, ended.result_bytes));
            }
        }
        changes
    }

    /// Forgets the oldest queries.
    pub(super) fn prune_queries(&self) {
        let shared = &mut *self.shared.lock();
        for (acked, limit) in [(true, KEPT_QUERIES), (false, MAX_UNACKED_QUERIES)] {
            let query = |id: &TaskId| {
                shared.ended.get(id).is_some_and(|e| e.record.is_some() && e.acked == acked)
            };
            let queries: Vec<(u64, TaskId)> = shared
                .by_seq
                .iter()
                .filter(|(_, id)| query(id))
                .map(|(seq, id)| (*seq, id.clone()))
                .collect();
            for (seq, id) in queries.iter().take(queries.len().saturating_sub(limit)) {
                shared.by_seq.remove(seq);
                shared.ended.remove(id);
                shared.unacked.remove(&(*seq, id.clone()));
                shared.disowned.remove(&(*seq, id.clone()));
            }
        }
    }
}
