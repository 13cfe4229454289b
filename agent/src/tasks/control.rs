//! What others may ask of the engine besides running a task: cancel, look. For pause and drain see
//! [`super::intake`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::admission::Offer;
use super::live::{Shared, Stop};
use super::record::{Record, State};
use super::runner::{Engine, Refusal};

/// Entries of `GET /history` besides the active ones.
const HISTORY: usize = 16;

/// Where a task stands, for an answer to a coordinator that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Accepted and not ended.
    UnderWay,
    /// It runs, but does not survive this process: only its result is worth a word.
    InMemory,
    /// It will not run.
    Refused(Refusal),
    /// Ended.
    Ended,
    /// Never heard of, or long forgotten.
    Unknown,
}

/// Which tasks to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only in this state (`active`: any that has not ended).
    pub status: Option<String>,
    /// Only of this kind.
    pub task: Option<String>,
    /// Only of this VM.
    pub vm: Option<VmUuid>,
    /// Only parts of this task.
    pub part_of: Option<TaskId>,
    /// Only accepted after this one.
    pub after: Option<TaskId>,
    /// At most so many.
    pub limit: usize,
}

impl Filter {
    /// Whether a task can have this status.
    #[must_use]
    pub fn is_status(text: &str) -> bool {
        text == "active" || serde_json::from_value::<State>(Value::from(text)).is_ok()
    }

    fn fits(&self, task: &str, vm: Option<VmUuid>, state: State, whole: Option<&TaskId>) -> bool {
        let status = self.status.as_deref().is_none_or(|wanted| {
            let name = serde_json::to_value(state).unwrap_or_default();
            name == wanted || (wanted == "active" && !state.is_terminal())
        });
        status
            && self.task.as_deref().is_none_or(|wanted| wanted == task)
            && self.vm.is_none_or(|wanted| vm == Some(wanted))
            && self.part_of.as_ref().is_none_or(|wanted| whole == Some(wanted))
    }
}

/// Counts for status reports and `GET /ping`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks that run.
    pub active: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Results nobody has acknowledged.
    pub unacked: usize,
    /// Size of the journal, bytes.
    pub journal_bytes: usize,
}

impl Engine {
    /// Stops a task: one that waits at once, one that runs if its kind allows that.
    ///
    /// # Errors
    /// `UnknownTask`; `NotCancellable`.
    pub fn cancel(&self, id: &TaskId) -> Result<(), Refusal> {
        let shared = self.shared.lock();
        let Some(live) = shared.live.get(id) else {
            return match shared.ended.contains_key(id) {
                // It has ended, by itself or by an earlier cancel; the result says how.
                true => Ok(()),
                false => Err(Refusal::new(Code::UnknownTask, format!("no task {id}"))),
            };
        };
        if shared.order.is_running(id) && !live.handler.cancellable() {
            let text = format!("a running {} can't be cancelled", live.handler.kind().name);
            return Err(Refusal::new(Code::NotCancellable, text));
        }
        live.stop(Stop::Cancelled);
        Ok(())
    }

    /// Whether a task that may change this VM runs or waits.
    #[must_use]
    pub fn works_on(&self, vm: VmUuid) -> bool {
        let shared = self.shared.lock();
        shared.live.values().any(|live| live.durable() && live.record.lock().vm == Some(vm))
    }

    /// How much there is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shared = self.shared.lock();
        let queued = shared.order.waiting().len();
        Counts {
            active: shared.live.len().saturating_sub(queued) + shared.recovered.len(),
            queued,
            unacked: shared.unacked.len() + shared.disowned.len(),
            journal_bytes: shared.bytes,
        }
    }

    /// How many tasks of a kind ended so since the agent started: `complete`, `failure`,
    /// `cancelled`.
    #[must_use]
    pub fn finished(&self) -> BTreeMap<(String, &'static str), u64> {
        self.finished.counts()
    }

    /// Tasks accepted and not ended.
    #[must_use]
    pub fn running_ids(&self) -> Vec<TaskId> {
        let shared = self.shared.lock();
        let recovered = shared.recovered.iter().map(|record| record.id.clone());
        shared.live.keys().cloned().chain(recovered).collect()
    }

    /// Ended tasks whose result nobody has acknowledged, oldest first, at most `limit`; those that
    /// no coordinator knows come last.
    #[must_use]
    pub fn unacked_ids(&self, limit: usize) -> Vec<TaskId> {
        let shared = self.shared.lock();
        let all = shared.unacked.iter().chain(&shared.disowned);
        all.take(limit).map(|(_, id)| id.clone()).collect()
    }

    /// Where a task stands; waits until a task that is being accepted is durable.
    pub async fn standing(&self, id: &TaskId) -> Standing {
        if let Some(live) = self.find_live(id) {
            let offer = Offer(Some(live));
            return match offer.admitted().await {
                Ok(()) if offer.is_durable() => Standing::UnderWay,
                Ok(()) => Standing::InMemory,
                Err(refusal) => Standing::Refused(refusal),
            };
        }
        let shared = self.shared.lock();
        if shared.ended.contains_key(id) {
            Standing::Ended
        } else if let Some(refusal) = shared.refusals.get(id) {
            Standing::Refused(refusal.clone())
        } else if shared.recovered.iter().any(|record| record.id == *id) {
            Standing::UnderWay
        } else {
            Standing::Unknown
        }
    }

    /// Waits until the task has ended, at most `limit`; false if it has not.
    pub async fn wait(&self, id: &TaskId, limit: Duration) -> bool {
        let Some(live) = self.find_live(id) else { return true };
        let mut ended = live.ended.subscribe();
        tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await.is_ok()
    }

    /// One whole record.
    pub async fn record(&self, id: &TaskId) -> Option<Arc<Record>> {
        let in_memory = {
            let shared = self.shared.lock();
            if let Some(live) = shared.live.get(id) {
                return Some(Arc::new(live.record.lock().clone()));
            }
            shared.ended.get(id).map(|ended| ended.record.clone())
        };
        match in_memory {
            Some(Some(record)) => Some(record),
            Some(None) => match self.journal.get(id).await {
                Ok(record) => record.map(Arc::new),
                Err(error) => {
                    tracing::error!(%error, task_id = %id, "a task record can't be read");
                    None
                }
            },
            None => None,
        }
    }

    /// One task as `GET /tasks/:id` shows it.
    pub async fn view(&self, id: &TaskId) -> Option<Value> {
        let record = self.record(id).await?;
        let (acked, messages) = self.extras(id);
        let mut view = record.view(acked, &messages);
        let parts = self.parts_of(id);
        if !parts.is_empty() {
            view["subtasks"] = json!(parts);
        }
        Some(view)
    }

    /// The tasks that are parts of this one, in the order in which it began them.
    fn parts_of(&self, id: &TaskId) -> Vec<TaskId> {
        let shared = self.shared.lock();
        let live = shared.live.values().filter_map(|live| {
            let record = live.record.lock();
            let is_part = record.parent_id.as_ref() == Some(id);
            is_part.then(|| (record.seq, record.id.clone()))
        });
        let ended = shared.ended.iter().filter(|(_, ended)| ended.part_of.as_ref() == Some(id));
        let ended = ended.map(|(id, ended)| (ended.seq, id.clone()));
        let parts: std::collections::BTreeMap<u64, TaskId> = live.chain(ended).collect();
        parts.into_values().collect()
    }

    fn extras(&self, id: &TaskId) -> (bool, Vec<Value>) {
        let shared = self.shared.lock();
        if let Some(live) = shared.live.get(id) {
            return (false, live.events.messages());
        }
        shared.ended.get(id).map(|e| (e.acked, e.messages())).unwrap_or_default()
    }

    /// Tasks in order of acceptance.
    pub async fn list(&self, filter: &Filter) -> Vec<Value> {
        let ids: Vec<TaskId> = {
            let shared = self.shared.lock();
            let mut all = std::collections::BTreeMap::new();
            for (id, live) in &shared.live {
                let record = live.record.lock();
                if filter.fits(&record.task, record.vm, record.state, record.parent_id.as_ref()) {
                    all.insert(record.seq, id.clone());
                }
            }
            for (id, ended) in &shared.ended {
                if filter.fits(&ended.task, ended.vm, ended.state, ended.part_of.as_ref()) {
                    all.insert(ended.seq, id.clone());
                }
            }
            let after = filter.after.as_ref().and_then(|id| seq_of(&shared, id));
            let from = after.map_or(0, |seq| seq + 1);
            all.range(from..).take(filter.limit).map(|(_, id)| id.clone()).collect()
        };
        let mut views = Vec::new();
        for id in ids {
            views.extend(self.view(&id).await);
        }
        views
    }

    /// The reference agent's history, oldest first: the newest 16 and every active task.
    pub async fn history(&self) -> Vec<Value> {
        let ids: Vec<TaskId> = {
            let shared = self.shared.lock();
            let newest = shared.by_seq.iter().rev().take(HISTORY);
            let mut all: std::collections::BTreeMap<u64, TaskId> =
                newest.map(|(seq, id)| (*seq, id.clone())).collect();
            for (id, live) in &shared.live {
                all.insert(live.record.lock().seq, id.clone());
            }
            all.into_values().collect()
        };
        let pid = std::process::id();
        let mut entries = Vec::new();
        for id in ids {
            if let Some(record) = self.record(&id).await {
                entries.push(record.history_entry(pid, &self.extras(&id).1));
            }
        }
        entries
    }

    /// The newest progress of every task under way, for a connection that has just come up.
    #[must_use]
    pub fn latest_progress(&self) -> Vec<muster_shared::wire::Progress> {
        let shared = self.shared.lock();
        shared.live.values().filter_map(|live| live.events.latest()).collect()
    }

    /// A fresh id for a task of the local HTTP.
    #[must_use]
    pub fn new_id(&self) -> TaskId {
        self.parts.entropy.uuid().into()
    }
}

fn seq_of(shared: &Shared, id: &TaskId) -> Option<u64> {
    let live = shared.live.get(id).map(|live| live.record.lock().seq);
    live.or_else(|| shared.ended.get(id).map(|ended| ended.seq))
}
