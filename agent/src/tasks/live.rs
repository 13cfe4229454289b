//! The state that all tasks share: those that have not ended, those that have, and the order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::{Ticket, Token};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, SetOnce, watch};
use tokio_util::sync::CancellationToken;

use super::events::TaskEvents;
use super::journal::StoredIntake;
use super::order::Order;
use super::record::{Record, State};
use super::refusals::Refusals;
use super::runner::Refusal;
use super::{Class, Handler, Plan};

/// Whether a submitted task became durable.
pub(super) type Admission = Result<(), Refusal>;

/// Why a task is to stop before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Somebody cancelled it.
    Cancelled,
    /// It has not started, and a drain gives it back.
    Returned,
}

/// The ticket of a task that was let in.
#[derive(Debug)]
pub(super) struct SeenTicket {
    pub(super) ticket: Ticket,
    /// The resource whose token had to go for it.
    pub(super) forgotten: Option<String>,
}

/// Logs what happens to a task. Those that only read are many, as watchers ask every second.
macro_rules! say {
    ($live:expr, $($told:tt)+) => {
        match $live.handler.kind().class {
            $crate::tasks::Class::Mutate => tracing::info!($($told)+),
            $crate::tasks::Class::Query => tracing::debug!($($told)+),
        }
    };
}
pub(super) use say;

/// A task that has not ended.
pub(super) struct Live {
    pub(super) handler: &'static dyn Handler,
    pub(super) record: Mutex<Record>,
    pub(super) plan: Plan,
    pub(super) volatile: bool,
    pub(super) ticket: Option<SeenTicket>,
    pub(super) events: Arc<TaskEvents>,
    pub(super) granted: Notify,
    pub(super) stop: Mutex<Option<Stop>>,
    pub(super) cancelled: CancellationToken,
    /// Another task wants its VM.
    pub(super) hurried: CancellationToken,
    /// It hurried another task.
    pub(super) hurries: AtomicBool,
    /// Those who wait for it learn of it in the order in which they came.
    pub(super) admission: SetOnce<Admission>,
    pub(super) ended: watch::Sender<bool>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Live {
    /// Once: a task is made durable or refused where it is driven, and was durable if it is recovered.
    pub(super) fn decide(&self, admission: Admission) {
        self.admission.set(admission).expect("a task is admitted once");
    }

    pub(super) fn durable(&self) -> bool {
        self.handler.kind().class == Class::Mutate
    }

    pub(super) fn stop(&self, why: Stop) {
        self.stop.lock().get_or_insert(why);
        self.cancelled.cancel();
    }
}

/// A task that has ended, as far as it is kept in memory.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) seq: u64,
    pub(super) fingerprint: String,
    pub(super) task: String,
    pub(super) vm: Option<VmUuid>,
    pub(super) part_of: Option<TaskId>,
    pub(super) state: State,
    pub(super) acked: bool,
    pub(super) finished_at: jiff::Timestamp,
    pub(super) params_bytes: usize,
    pub(super) result_bytes: usize,
    /// The whole record, for tasks that are not journaled.
    pub(super) record: Option<Arc<Record>>,
    /// Its events as [`TaskEvents::messages`] tells them, as text: a tenth of what objects take.
    pub(super) messages: Box<str>,
}

impl Ended {
    pub(super) fn new(record: &Record, acked: bool) -> Self {
        Self {
            seq: record.seq,
            fingerprint: record.fingerprint.clone(),
            task: record.task.clone(),
            vm: record.vm,
            part_of: record.parent_id.clone(),
            state: record.state,
            acked,
            finished_at: record.finished_at.unwrap_or(record.created_at),
            params_bytes: record.params_bytes,
            result_bytes: record.result_bytes,
            record: None,
            messages: Box::default(),
        }
    }

    /// Its events.
    pub(super) fn messages(&self) -> Vec<Value> {
        if self.messages.is_empty() {
            return Vec::new();
        }
        serde_json::from_str(&self.messages).expect("the agent wrote it")
    }

    /// Space in the journal, roughly.
    pub(super) fn bytes(&self) -> usize {
        const RECORD_BYTES: usize = 1024;
        if self.record.is_some() { 0 } else { RECORD_BYTES + self.params_bytes + self.result_bytes }
    }
}

/// What all tasks share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) next_seq: u64,
    pub(super) order: Order,
    pub(super) live: BTreeMap<TaskId, Arc<Live>>,
    pub(super) ended: BTreeMap<TaskId, Ended>,
    /// Ended tasks by order of acceptance.
    pub(super) by_seq: BTreeMap<u64, TaskId>,
    /// Ended tasks whose result a coordinator still has to acknowledge, oldest first.
    pub(super) unacked: BTreeSet<(u64, TaskId)>,
    /// Of those no longer in `unacked`: a coordinator said that its store lacks the task.
    pub(super) disowned: BTreeSet<(u64, TaskId)>,
    pub(super) bytes: usize,
    pub(super) tickets: BTreeMap<String, Token>,
    /// What was refused and no coordinator has taken note of.
    pub(super) refusals: Refusals,
    pub(super) intake: StoredIntake,
    pub(super) stopping: bool,
    /// Tasks found at the start that still have to go on.
    pub(super) recovered: Vec<Record>,
}
