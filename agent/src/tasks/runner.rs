//! The task engine: accepts tasks, journals them, runs them in order, keeps their results until a
//! coordinator holds them.
//!
//! ```text
//!            submit                grant                 steps
//!   ───────▶ (journaled) ─queued──────────────▶ running ────────▶ finished | failed
//!                           │ cancel, drain,       │ deadline, cancel, failure
//!                           ▼ wait limit           ▼
//!                        cancelled               undo ───────────▶ failed | cancelled
//! ```
//!
//! What one task does once it runs is in [`super::run`]; who may run is decided by
//! [`super::order`], and who is let in by [`super::admission`]; this file holds the state that all
//! tasks share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::TaskId;
use muster_shared::kv::{Change, SharedKv};
use muster_shared::wire::{Code, Progress, TaskResult, Ticket};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, SetOnce, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::events::TaskEvents;
use super::finished::Finished;
use super::journal::{Journal, JournalError};
use super::live::{Live, SeenTicket, Shared};
use super::order::Depth;
use super::record::{Origin, Record};
use super::registry::{Faults, Registry};
use super::{Handler, Params, Plan, Queue};
use crate::node::SharedDrivers;

/// Unacknowledged results at which new mutating tasks are refused.
pub const MAX_UNACKED: usize = 10_000;
/// Size of the journal at which new mutating tasks are refused.
pub const MAX_JOURNAL_BYTES: usize = 256 * 1024 * 1024;
/// Events that may wait for a slow listener before the oldest are lost.
const EVENT_BACKLOG: usize = 1024;

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineParts {
    /// Time.
    pub clock: SharedClock,
    /// Randomness, for the ids of local tasks.
    pub entropy: SharedEntropy,
    /// Where the journal is.
    pub kv: SharedKv,
    /// What steps work with.
    pub drivers: SharedDrivers,
    /// The kinds it knows.
    pub registry: Registry,
    /// This boot of the host.
    pub boot_id: String,
    /// This start of the agent.
    pub instance_id: Uuid,
    /// No task runs longer, whatever its kind allows.
    pub ceiling: Duration,
    /// For tests that end the agent at a step.
    pub faults: Option<Arc<dyn Faults>>,
}

/// A task somebody wants done.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Its id.
    pub id: TaskId,
    /// The request behind it.
    pub req_id: String,
    /// Its kind.
    pub task: String,
    /// Its parameters.
    pub params: Params,
    /// Longest run time asked for, ms.
    pub deadline_ms: Option<u64>,
    /// The ticket it was made under.
    pub ticket: Option<Ticket>,
    /// Nobody needs the result after the first time it was told.
    pub volatile: bool,
    /// Who asks.
    pub origin: Origin,
    /// The task that it is a part of, see [`super::subtask`].
    pub part_of: Option<TaskId>,
}

/// Why a task is not taken. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs, as in [`muster_shared::wire::Error::code`].
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Runs tasks. Shared by the link, the local HTTP and tests.
pub struct Engine {
    pub(super) parts: EngineParts,
    pub(super) journal: Journal,
    pub(super) runtime: Handle,
    pub(super) tracker: TaskTracker,
    pub(super) shared: Mutex<Shared>,
    pub(super) progress: broadcast::Sender<Arc<Progress>>,
    pub(super) changed: watch::Sender<u64>,
    /// Held while the intake is changed.
    pub(super) intake_changes: tokio::sync::Mutex<()>,
    pub(super) notes: Notify,
    /// A task found no room.
    pub(super) room_wanted: Notify,
    /// Small changes of the journal that nobody waits for.
    pub(super) to_note: Mutex<Vec<Change>>,
    pub(super) broken: CancellationToken,
    /// Why nothing is journaled any more.
    pub(super) given_up: OnceLock<String>,
    pub(super) closing: CancellationToken,
    /// How tasks ended since the agent started.
    pub(super) finished: Finished,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("instance_id", &self.parts.instance_id)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads the journal. Nothing runs before [`Engine::recover`].
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn open(parts: EngineParts) -> Result<Arc<Self>, JournalError> {
        let journal = Journal::new(parts.kv.clone());
        let loaded = journal.load().await?;
        let shared = super::recover::rebuild(loaded, &parts);
        let engine = Arc::new(Self {
            journal,
            runtime: Handle::current(),
            tracker: TaskTracker::new(),
            shared: Mutex::new(shared),
            progress: broadcast::Sender::new(EVENT_BACKLOG),
            changed: watch::Sender::new(0),
            intake_changes: tokio::sync::Mutex::default(),
            notes: Notify::new(),
            room_wanted: Notify::new(),
            to_note: Mutex::default(),
            broken: CancellationToken::new(),
            given_up: OnceLock::new(),
            finished: Finished::default(),
            closing: CancellationToken::new(),
            parts,
        });
        engine.spawn(engine.clone().keep_house());
        engine.arm_drains();
        Ok(engine)
    }

    pub(super) fn spawn<F>(&self, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Not the caller's runtime: callers are on other threads.
        self.tracker.spawn_on(work, &self.runtime);
    }

    pub(super) fn live(
        &self,
        handler: &'static dyn Handler,
        record: Record,
        plan: Plan,
        volatile: bool,
        ticket: Option<SeenTicket>,
    ) -> Arc<Live> {
        let events = TaskEvents::new(
            record.id.clone(),
            self.parts.clock.clone(),
            self.runtime.clone(),
            self.progress.clone(),
        );
        Arc::new(Live {
            handler,
            record: Mutex::new(record),
            plan,
            volatile,
            ticket,
            events,
            granted: Notify::new(),
            stop: Mutex::new(None),
            cancelled: CancellationToken::new(),
            hurried: CancellationToken::new(),
            hurries: AtomicBool::new(false),
            admission: SetOnce::new(),
            ended: watch::Sender::new(false),
        })
    }

    /// Starts whoever may start, and shortens waits that somebody who waits may shorten.
    pub(super) fn advance(&self, shared: &mut Shared) {
        for id in shared.order.advance() {
            if let Some(live) = shared.live.get(&id) {
                live.granted.notify_one();
            }
        }
        for id in shared.order.waiting() {
            let Some(live) = shared.live.get(&id) else { continue };
            if !live.handler.preempts(&live.record.lock().params) {
                continue;
            }
            for other in shared.order.in_the_way_of(&id) {
                if let Some(other) = shared.live.get(&other)
                    && other.handler.preemptible()
                {
                    other.hurried.cancel();
                    live.hurries.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Tells listeners that results or intake changed.
    pub(super) fn touch(&self) {
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// A counter that changes with every result, acknowledgement and change of intake.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Progress of all tasks, from now on; lossy.
    #[must_use]
    pub fn progress(&self) -> broadcast::Receiver<Arc<Progress>> {
        self.progress.subscribe()
    }

    /// The kinds it knows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    /// How the queues stand.
    #[must_use]
    pub fn queues(&self) -> Vec<(Queue, Depth)> {
        let shared = self.shared.lock();
        let queues = self.parts.registry.queues();
        queues.into_iter().map(|queue| (queue, shared.order.depth(queue.name))).collect()
    }

    /// How the task ended, if it is known and has.
    pub async fn result(&self, id: &TaskId) -> Option<TaskResult> {
        self.record(id).await.filter(|record| record.state.is_terminal()).map(|r| r.outcome())
    }
}
