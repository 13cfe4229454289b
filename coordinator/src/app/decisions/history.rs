//! What this coordinator knows of decisions: an index of all records, and the snapshots that are
//! not in blobs yet. Both are data without I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use muster_shared::api::allocation::Decision;
use serde::Deserialize;
use serde::de::IgnoredAny;
use uuid::Uuid;

use super::record::DecisionRecord;
use crate::alloc::{Config, Outcome, Snapshot};
use crate::app::context::Context;
use crate::app::keys;
use crate::store::Damaged;

/// Decisions whose snapshots are kept unasked.
pub(super) const SNAPSHOTS: usize = 100;
/// Decisions that follow each other faster are a burst: of its snapshots, most are overtaken before
/// anybody wants them.
const QUIET: Duration = Duration::from_secs(1);
/// Longest that a burst puts off saving a snapshot.
const OVERDUE: Duration = Duration::from_secs(30);
/// Most snapshots in memory: decisions that are made side by side don't end in the order of their
/// ids, which says which are the newest.
const HELD: usize = SNAPSHOTS + 64;

/// What a decision was made on, until it is in blobs: the snapshots of many decisions share little
/// of a fleet that changes.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: Uuid,
    /// The snapshot's name.
    pub(super) snapshot_id: Uuid,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) policy: Arc<Config>,
    /// The policy's name.
    pub(super) config_hash: String,
}

impl Held {
    pub(super) fn of(record: &DecisionRecord, outcome: &Outcome, policy: &Arc<Config>) -> Self {
        Self {
            id: record.decision.id,
            snapshot_id: record.snapshot_id.unwrap_or(record.decision.id),
            snapshot: Arc::clone(outcome.snapshot()),
            policy: Arc::clone(policy),
            config_hash: record.config_hash.clone(),
        }
    }
}

/// What is known of a stored decision.
#[derive(Debug)]
struct Known {
    decision: Decision,
    snapshot_id: Option<Uuid>,
    /// Its request is in a blob.
    has_blob: bool,
}

/// What an index needs of a record beside the decision itself.
#[derive(Deserialize)]
struct Rest {
    request: Option<IgnoredAny>,
    #[serde(default)]
    snapshot_id: Option<Uuid>,
}

/// What this coordinator holds of decisions.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Newest last.
    held: VecDeque<Held>,
    /// When the newest of them came, on the monotonic clock.
    added_at: Duration,
    /// When one was saved last, or began to wait for it.
    saved_at: Duration,
    /// All records, oldest first.
    known: BTreeMap<Uuid, Known>,
    /// Those of them whose snapshots were asked to be kept: they are few, and looked for after each
    /// decision.
    kept: BTreeSet<Uuid>,
    /// Snapshots that were asked to be kept with decisions that are being stored.
    asked: BTreeSet<Uuid>,
    /// The snapshot on which was decided last, and its name.
    last: Option<(Weak<Snapshot>, Uuid)>,
}

impl History {
    /// Forgets what came from the store.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.kept.clear();
    }

    /// The store has this of a decision now; `None`: nothing.
    pub(super) fn stored(&mut self, key: &str, value: Option<&Bytes>, damaged: &Damaged) {
        let Some(id) = keys::last::<Uuid>(key) else { return };
        let Some(value) = value else {
            self.known.remove(&id);
            self.kept.remove(&id);
            return;
        };
        let Some(decision) = damaged.decode::<Decision>(key, value) else { return };
        let Some(Rest { request, snapshot_id }) = damaged.decode(key, value) else { return };
        if decision.keep {
            self.kept.insert(id);
        }
        self.known.insert(id, Known { decision, snapshot_id, has_blob: request.is_none() });
    }

    /// The name of a snapshot: decisions on the same one share it.
    pub(super) fn name_of(&mut self, snapshot: &Arc<Snapshot>, ctx: &Context) -> Uuid {
        match &self.last {
            Some((last, id)) if last.as_ptr() == Arc::as_ptr(snapshot) => *id,
            _ => {
                let id = ctx.mint_id();
                self.last = Some((Arc::downgrade(snapshot), id));
                id
            }
        }
    }

    /// A snapshot is written for a decision that is not stored yet: it stays.
    pub(super) fn ask_for(&mut self, snapshot: Uuid) {
        self.asked.insert(snapshot);
    }

    /// The decision is stored, and asks for its snapshot itself; or there will be none.
    pub(super) fn asked_for(&mut self, snapshot: Option<Uuid>) {
        if let Some(snapshot) = snapshot {
            self.asked.remove(&snapshot);
        }
    }

    pub(super) fn add(&mut self, held: Held, now: Duration) {
        if self.held.is_empty() {
            self.saved_at = now;
        }
        self.added_at = now;
        self.held.push_back(held);
        if self.held.len() > HELD {
            self.held.pop_front();
        }
    }

    /// What a decision was made on, if it is in memory.
    pub(super) fn held(&self, id: Uuid) -> Option<Held> {
        self.held.iter().find(|held| held.id == id).cloned()
    }

    /// Whether to save one of them now, if there is any.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.added_at) >= QUIET || now.saturating_sub(self.saved_at) >= OVERDUE
    }

    /// The newest that is only in memory and wanted: older ones may be overtaken before it is their
    /// turn, and are forgotten then.
    pub(super) fn unsaved(&mut self) -> Option<Held> {
        let oldest = self.oldest_wanted();
        self.held.retain(|held| held.id >= oldest);
        self.held.back().cloned()
    }

    /// What a decision was made on is in blobs.
    pub(super) fn saved(&mut self, id: Uuid, now: Duration) {
        self.saved_at = now;
        self.held.retain(|held| held.id != id);
    }

    /// The newest decisions, newest first.
    pub(super) fn list(&self, limit: usize, before: Option<Uuid>) -> Vec<Decision> {
        let before = before.map_or(Bound::Unbounded, Bound::Excluded);
        let newest = self.known.range((Bound::Unbounded, before)).rev();
        newest.take(limit).map(|(_, known)| known.decision.clone()).collect()
    }

    /// The oldest decisions over a bound, at most `most`; `true`: with a request in a blob.
    pub(super) fn over(&self, bound: usize, most: usize) -> Vec<(Uuid, bool)> {
        let over = self.known.len().saturating_sub(bound).min(most);
        self.known.iter().take(over).map(|(id, known)| (*id, known.has_blob)).collect()
    }

    /// The snapshots that replays may still ask for: those of the newest decisions, and those that
    /// were asked to be kept.
    pub(super) fn wanted(&self) -> BTreeSet<Uuid> {
        let newest = self.known.values().rev().filter(|known| !known.decision.keep);
        let asked = self.kept.iter().filter_map(|id| self.known.get(id));
        let stored = newest.take(SNAPSHOTS).chain(asked).filter_map(|known| known.snapshot_id);
        stored.chain(self.asked.iter().copied()).collect()
    }

    /// Whether a decision's snapshot is wanted.
    pub(super) fn wants(&self, id: Uuid) -> bool {
        self.known.get(&id).is_some_and(|known| known.decision.keep) || id >= self.oldest_wanted()
    }

    /// The oldest decision whose snapshot is kept unasked.
    fn oldest_wanted(&self) -> Uuid {
        let unasked = self.known.iter().rev().filter(|(_, known)| !known.decision.keep);
        unasked.map(|(id, _)| *id).nth(SNAPSHOTS - 1).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::{Fleet, HostOs};

    fn held(id: u128) -> Held {
        let policy = Arc::new(Config::reference_default(HostOs::Any));
        let snapshot = Fleet::new(&policy).snapshot();
        let (id, config_hash) = (Uuid::from_u128(id), String::new());
        Held { id, snapshot_id: id, snapshot, policy, config_hash }
    }

    #[test]
    fn a_burst_puts_off_saving_but_not_for_ever() {
        let (start, step) = (Duration::from_secs(100), QUIET / 10);
        let mut history = History::default();
        let mut now = start;
        let mut waited = Vec::new();
        for id in 0..1_000 {
            history.add(held(id), now);
            if history.is_due(now) {
                waited.push(now);
                let newest = history.unsaved().unwrap();
                assert_eq!(newest.id, Uuid::from_u128(id));
                history.saved(newest.id, now);
            }
            now += step;
        }
        assert_eq!(waited, [start + OVERDUE, start + OVERDUE * 2, start + OVERDUE * 3]);
        assert!(!history.is_due(now), "{now:?}");
        assert!(history.is_due(now - step + QUIET), "once it is quiet");
    }
}
