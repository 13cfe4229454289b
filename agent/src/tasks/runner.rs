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
//! [`super::order`]; this file holds the state that all tasks share.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::TaskId;
use muster_shared::kv::{Change, SharedKv};
use muster_shared::wire::{Code, Intake, Progress, TaskResult, Ticket};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, SetOnce, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::events::TaskEvents;
use super::journal::{self, Journal, JournalError};
use super::live::{Live, SeenTicket, Shared};
use super::order::Depth;
use super::record::{Origin, Phase, Record, State, bounded_error, fingerprint};
use super::registry::{Faults, Registry};
use super::{Class, Handler, Lock, Params, Plan, Queue, TaskFailure};
use crate::node::SharedDrivers;

/// Unacknowledged results at which new mutating tasks are refused.
pub const MAX_UNACKED: usize = 10_000;
/// Size of the journal at which new mutating tasks are refused.
pub const MAX_JOURNAL_BYTES: usize = 256 * 1024 * 1024;
/// Resources whose newest token is remembered; beyond, the oldest token goes.
const MAX_TICKETS: usize = 10_000;
/// Longest name of a ticket's resource, bytes; it is part of a key.
const MAX_RESOURCE_BYTES: usize = 400;
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

    /// Takes a task; returns once it is durable (queries: once it is queued). Also for a task
    /// that was submitted before, whatever has become of it.
    ///
    /// # Errors
    /// [`Refusal`]: it will not run.
    pub async fn submit(self: &Arc<Self>, submission: Submission) -> Result<(), Refusal> {
        self.offer(submission)?.admitted().await
    }

    /// The first half of [`Self::submit`]: gives the task its place among the others.
    ///
    /// # Errors
    /// [`Refusal`]: it will not run.
    pub fn offer(self: &Arc<Self>, submission: Submission) -> Result<Offer, Refusal> {
        let mut shared = self.shared.lock();
        match self.known(&shared, &submission)? {
            Known::Live(live) => return Ok(Offer(Some(live))),
            Known::Ended => return Ok(Offer(None)),
            Known::New => {}
        }
        if let Some(refusal) = shared.refusals.get(&submission.id) {
            return Err(refusal.clone());
        }
        // Whoever stored the task is told until that is stored, too.
        let stored = submission.origin == Origin::Coordinator && !submission.volatile;
        let remembered = stored.then(|| submission.id.clone());
        let refusal = match self.admit(&mut shared, submission) {
            Ok(live) => return Ok(Offer(Some(live))),
            Err(refusal) => refusal,
        };
        drop(shared);
        if let Some(id) = remembered {
            self.remember_refusal(id, refusal.clone());
        }
        Err(refusal)
    }

    fn known(&self, shared: &Shared, wanted: &Submission) -> Result<Known, Refusal> {
        let reused = |found: &str| {
            if found == fingerprint(&wanted.task, &wanted.params) {
                return Ok(());
            }
            let text = format!("task {} exists with another kind or parameters", wanted.id);
            Err(Refusal::new(Code::TaskIdReused, text))
        };
        if let Some(live) = shared.live.get(&wanted.id) {
            reused(&live.record.lock().fingerprint)?;
            return Ok(Known::Live(live.clone()));
        }
        if let Some(ended) = shared.ended.get(&wanted.id) {
            // A damaged record has no fingerprint; its task must not run again all the same.
            if !ended.fingerprint.is_empty() {
                reused(&ended.fingerprint)?;
            }
            return Ok(Known::Ended);
        }
        Ok(Known::New)
    }

    fn admit(
        self: &Arc<Self>,
        shared: &mut Shared,
        wanted: Submission,
    ) -> Result<Arc<Live>, Refusal> {
        let Some(handler) = self.parts.registry.get(&wanted.task) else {
            let text = format!("Unknown task, '{}'", wanted.task);
            return Err(Refusal::new(Code::NotSupported, text));
        };
        let mutates = handler.kind().class == Class::Mutate;
        if let Some(why) = self.given_up.get().filter(|_| mutates) {
            return Err(Refusal::new(Code::JournalFull, why));
        }
        if shared.stopping {
            return Err(Refusal::new(Code::Draining, "the agent is stopping"));
        }
        let taken = match self.intake_of(shared) {
            Intake::Accepting => true,
            Intake::Paused | Intake::Other => !mutates,
            Intake::Draining | Intake::Drained => !mutates || handler.follows_drain(),
        };
        if !taken {
            return Err(Refusal::new(
                Code::Draining,
                "CN Agent is not accepting tasks for maintenance",
            ));
        }
        if mutates && (shared.unacked.len() >= MAX_UNACKED || shared.bytes >= MAX_JOURNAL_BYTES) {
            let text = "the journal is full of results that no coordinator has acknowledged";
            return Err(Refusal::new(Code::JournalFull, text));
        }
        if let Some(ticket) = &wanted.ticket {
            check_ticket(shared, ticket)?;
        }
        let (plan, refused) = match plan(handler, &wanted.params) {
            Ok(plan) => (plan, None),
            Err(failure) => (Plan::default(), Some(failure)),
        };
        shared
            .order
            .enqueue(
                &wanted.id,
                self.parts.registry.queue_of(handler),
                handler.kind().class,
                &plan.locks,
            )
            .map_err(|full| Refusal::new(Code::QueueFull, full.to_string()))?;
        let seq = shared.next_seq;
        shared.next_seq += 1;
        let volatile = wanted.volatile && !mutates;
        let ticket = wanted.ticket.clone().map(|ticket| seen(shared, ticket));
        let mut record = self.new_record(seq, &plan, wanted);
        record.error = refused.map(|failure| bounded_error(failure.into()));
        let live = self.live(handler, record, plan, volatile, ticket);
        shared.live.insert(live.record.lock().id.clone(), live.clone());
        self.spawn(self.clone().drive(live.clone()));
        Ok(live)
    }

    fn new_record(&self, seq: u64, plan: &Plan, wanted: Submission) -> Record {
        let vm = plan.locks.iter().find_map(|lock| match lock {
            Lock::Vm(vm) => Some(*vm),
            Lock::ServerExclusive | Lock::Image(_) | Lock::ImageUse(_) => None,
        });
        // The uuid of a task about an image alone is no VM's.
        let about_image =
            plan.locks.iter().any(|lock| matches!(lock, Lock::Image(_) | Lock::ImageUse(_)));
        let named = wanted.params.get("uuid").filter(|_| !about_image).and_then(Value::as_str);
        Record {
            fingerprint: fingerprint(&wanted.task, &wanted.params),
            id: wanted.id,
            seq,
            req_id: wanted.req_id,
            task: wanted.task,
            parent_id: None,
            origin: wanted.origin,
            vm: vm.or_else(|| named.and_then(|uuid| uuid.parse().ok())),
            params: wanted.params,
            state: State::Queued,
            phase: Phase::Apply,
            step: None,
            attempt: 0,
            boot_id: self.parts.boot_id.clone(),
            instance_id: self.parts.instance_id,
            created_at: self.parts.clock.wall(),
            started_at: None,
            finished_at: None,
            deadline_ms: wanted.deadline_ms,
            result: Value::Null,
            notes: Value::Null,
            error: None,
            params_bytes: 0,
            result_bytes: 0,
            notes_bytes: 0,
        }
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

    /// The changes that make a new task durable; of a query only the ticket, if it has one.
    pub(super) fn admission_changes(live: &Live) -> Vec<Change> {
        let mut changes = Vec::new();
        if live.durable() {
            let mut record = live.record.lock();
            changes.extend(journal::put_params(&mut record));
            changes.push(journal::put_record(&record));
        }
        if let Some(SeenTicket { ticket, forgotten }) = &live.ticket {
            changes.extend(forgotten.as_deref().map(journal::forget_ticket));
            changes.push(journal::put_ticket(&ticket.resource, &ticket.token));
        }
        changes
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

/// A task that has its place and is on its way to the disk, or that was submitted before.
#[derive(Debug)]
pub struct Offer(pub(super) Option<Arc<Live>>);

impl Offer {
    /// Waits until the task is durable.
    ///
    /// # Errors
    /// It could not be made durable and will not run.
    pub async fn admitted(&self) -> Result<(), Refusal> {
        let Some(live) = &self.0 else { return Ok(()) };
        live.admission.wait().await.clone()
    }

    /// Whether it is in the journal, and so survives this process.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.durable())
    }

    /// Whether it had ended before it was offered.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_none()
    }
}

enum Known {
    New,
    Live(Arc<Live>),
    Ended,
}

/// Plans; a panic there is a failure like any other.
pub(super) fn plan(handler: &'static dyn Handler, params: &Params) -> Result<Plan, TaskFailure> {
    catch_unwind(AssertUnwindSafe(|| handler.plan(params))).unwrap_or_else(|panic| {
        let text = format!("planning panicked: {}", super::limits::panic_text(&*panic));
        Err(TaskFailure::new(Code::InternalError, text))
    })
}

fn check_ticket(shared: &Shared, ticket: &Ticket) -> Result<(), Refusal> {
    if ticket.resource.len() > MAX_RESOURCE_BYTES {
        return Err(Refusal::new(Code::StaleTicket, "the ticket's resource has too long a name"));
    }
    if let Some(newest) = shared.tickets.get(&ticket.resource)
        && *newest > ticket.token
    {
        let text = format!("a newer ticket for {} was seen already", ticket.resource);
        return Err(Refusal::new(Code::StaleTicket, text));
    }
    Ok(())
}

/// Remembers a ticket's token; when that is one too many, the oldest of all is forgotten.
fn seen(shared: &mut Shared, ticket: Ticket) -> SeenTicket {
    let mut forgotten = None;
    if shared.tickets.len() >= MAX_TICKETS && !shared.tickets.contains_key(&ticket.resource) {
        // Tokens are revisions of the coordinators' store, so the smallest is the oldest.
        let oldest = shared.tickets.iter().min_by_key(|(_, token)| **token);
        forgotten = oldest.map(|(resource, _)| resource.clone());
        forgotten.as_ref().and_then(|resource| shared.tickets.remove(resource));
    }
    shared.tickets.insert(ticket.resource.clone(), ticket.token);
    SeenTicket { ticket, forgotten }
}
