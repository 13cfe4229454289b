//! One task from its acceptance to its end.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::kv::{Change, KvError};
use muster_shared::wire::{Code, TaskError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::journal::{self, JournalError};
use super::limits;
use super::live::{Ended, Live, Shared, Stop, say};
use super::record::{AtStep, Origin, Phase, State, bounded_error, bounded_result};
use super::refusals::given_back;
use super::registry::Moment;
use super::runner::{Engine, Refusal};
use super::subtask::Parts;
use super::{EventSink as _, OnFailure, Step, TaskContext, TaskFailure};
use crate::vms::reconcile::{self, Action};

/// Shortest rest of a deadline after a restart.
const MIN_REST: Duration = Duration::from_secs(60);
/// Between attempts to write to a journal whose queue is full.
const BUSY_WAIT: Duration = Duration::from_millis(20);
/// Between attempts to write to a journal whose device is full.
const FULL_WAIT: Duration = Duration::from_secs(1);
/// Ended tasks whose events are kept.
const KEPT_MESSAGES: usize = 64;
/// A task that was started so often has brought the agent down each time.
pub(super) const MAX_ATTEMPTS: u32 = 5;

fn going_on(mut failure: TaskFailure, with: Action) -> TaskFailure {
    failure.message.push_str(match with {
        Action::StartAgain => "; the agent starts the VM again by itself",
        _ => "; the agent continues with it by itself",
    });
    failure
}

/// How a task ended.
struct End {
    state: State,
    error: Option<TaskError>,
}

impl End {
    fn failed(error: impl Into<TaskError>) -> Self {
        let error = error.into();
        let state = match error.code {
            Code::Cancelled => State::Cancelled,
            Code::Interrupted => State::Interrupted,
            _ => State::Failed,
        };
        Self { state, error: Some(error) }
    }
}

impl Engine {
    /// A new task: make it durable, then run it.
    pub(super) async fn drive(self: Arc<Self>, live: Arc<Live>) {
        let changes = Self::admission_changes(&live);
        if !changes.is_empty()
            && let Err(error) = self.make_durable(&live, changes).await
        {
            if matches!(error, JournalError::Kv { source: KvError::Io { .. }, .. }) {
                self.break_down(&error);
            }
            self.unadmit(&live, &error);
            return;
        }
        live.decide(Ok(()));
        self.go_on(live).await;
    }

    /// Makes a task durable. On a full device one that makes room gets the reserve.
    async fn make_durable(&self, live: &Live, changes: Vec<Change>) -> Result<(), JournalError> {
        let written = self.write(changes.clone()).await;
        let is_full =
            matches!(&written, Err(JournalError::Kv { source: KvError::Full { .. }, .. }));
        if !is_full || !live.handler.frees_room() {
            return written;
        }
        match self.parts.drivers.storage.lend_room().await {
            Ok(true) => self.write(changes).await,
            Ok(false) => written,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the reserve can't be used");
                written
            }
        }
    }

    /// A task found no room. What makes room must not be woken by its own failures.
    fn want_room(&self, live: &Live) {
        if !live.handler.frees_room() {
            self.room_wanted.notify_one();
        }
    }

    /// The task could not be made durable: as if it had never come.
    fn unadmit(&self, live: &Live, error: &JournalError) {
        let (id, origin) = {
            let record = live.record.lock();
            (record.id.clone(), record.origin)
        };
        let mut shared = self.shared.lock();
        shared.live.remove(&id);
        shared.order.remove(&id);
        self.advance(&mut shared);
        drop(shared);
        let code = match error {
            JournalError::Kv { source: KvError::Full { .. }, .. } => {
                self.want_room(live);
                Code::StoreFull
            }
            JournalError::Kv { .. } | JournalError::Damaged { .. } => Code::JournalFull,
        };
        tracing::warn!(task_id = %id, error = %Chain(error), "a task can't be made durable");
        let refusal = Refusal::new(code, error.to_string());
        if origin == Origin::Coordinator && !live.volatile {
            self.remember_refusal(id, refusal.clone());
        }
        live.decide(Err(refusal));
        live.ended.send_replace(true);
    }

    /// A durable task: wait for its turn, run, end.
    pub(super) async fn go_on(self: Arc<Self>, live: Arc<Live>) {
        let span = {
            let record = live.record.lock();
            let vm_uuid = record.vm.map(|vm| vm.to_string()).unwrap_or_default();
            // At the gravest level, so that it is there at each filter.
            tracing::error_span!(
                "task", task_id = %record.id, req_id = record.req_id, task = record.task, vm_uuid
            )
        };
        async {
            self.advance(&mut self.shared.lock());
            let end = match self.turn(&live).await {
                Ok(()) => {
                    say!(live, "task begins");
                    Some(self.run(&live).await)
                }
                Err(end) => end,
            };
            match end {
                Some(end) => self.finish(&live, end).await,
                None => self.give_back(&live).await,
            }
        }
        .instrument(span)
        .await;
    }

    /// Waits for places and locks. `Err(None)`: the task is to be given back.
    async fn turn(&self, live: &Live) -> Result<(), Option<End>> {
        // A task whose parameters were refused only passes through.
        let (refused, fresh) = {
            let record = live.record.lock();
            let fresh = record.state == State::Queued;
            (record.error.clone().filter(|_| fresh), fresh)
        };
        if let Some(error) = refused {
            return Err(Some(End::failed(error)));
        }
        let limit = live.handler.kind().queue.max_wait;
        let overdue =
            async { if fresh { sleep(limit).await } else { std::future::pending().await } };
        tokio::select! {
            biased;
            () = live.granted.notified() => {}
            () = live.cancelled.cancelled() => {}
            () = overdue => {
                let text = format!("waited {} s in its queue", limit.as_secs());
                return Err(Some(End::failed(TaskFailure::new(Code::QueueTimeout, text))));
            }
        }
        match *live.stop.lock() {
            Some(Stop::Returned) => Err(None),
            Some(Stop::Cancelled) => Err(Some(End::failed(limits::cancelled()))),
            None => Ok(()),
        }
    }

    /// Runs the steps, or what is left of them.
    async fn run(self: &Arc<Self>, live: &Live) -> End {
        let (start, phase, rest, rebooted) = match self.prepare(live) {
            Ok(prepared) => prepared,
            Err(failure) => return End::failed(failure),
        };
        let ctx = self.context(live, rebooted);
        live.events.event("start", json!({}));
        if phase == Phase::Apply {
            live.events.event("progress", json!({ "value": 0 }));
            let mut deadline = pin!(sleep(rest));
            let failure = match self.apply_all(live, &ctx, start, deadline.as_mut()).await {
                Ok(()) => return End { state: State::Finished, error: None },
                Err(failure) => failure,
            };
            return self.fail(live, failure).await;
        }
        self.undo_all(live, start).await
    }

    /// Where to begin, how much time is left, and whether the host was rebooted meanwhile.
    fn prepare(&self, live: &Live) -> Result<(usize, Phase, Duration, bool), TaskFailure> {
        let now = self.parts.clock.wall();
        let mut record = live.record.lock();
        let rebooted = record.attempt > 0 && record.boot_id != self.parts.boot_id;
        record.attempt += 1;
        record.state = State::Running;
        record.boot_id.clone_from(&self.parts.boot_id);
        record.instance_id = self.parts.instance_id;
        let began = *record.started_at.get_or_insert(now);
        let start = match &record.step {
            None => 0,
            Some(at) => {
                let same = live.plan.steps.get(at.index).is_some_and(|s| s.name() == at.name);
                if !same {
                    let text = format!("this version has no step {:?} there", at.name);
                    return Err(TaskFailure::new(Code::Interrupted, text));
                }
                at.index
            }
        };
        let asked = record.deadline_ms.map_or(Duration::MAX, Duration::from_millis);
        let limit = live.handler.deadline(&record.params).min(asked).min(self.parts.ceiling);
        let rest = if record.attempt == 1 {
            limit
        } else {
            // The wall clock may have been set meanwhile, so its word counts within bounds.
            let spent = Duration::try_from(now.duration_since(began)).unwrap_or_default();
            limit.saturating_sub(spent).max(MIN_REST.min(limit))
        };
        Ok((start, record.phase, rest, rebooted))
    }

    fn context(self: &Arc<Self>, live: &Live, rebooted: bool) -> TaskContext {
        let record = live.record.lock();
        TaskContext {
            task_id: record.id.clone(),
            params: record.params.clone(),
            origin: record.origin,
            drivers: self.parts.drivers.clone(),
            started_at: record.started_at.unwrap_or(record.created_at),
            rebooted,
            resumed: record.attempt > 1,
            cancelled: live.cancelled.clone(),
            hurried: live.hurried.clone(),
            hurries: live.hurries.load(Ordering::Relaxed),
            events: live.events.clone(),
            subtasks: Arc::new(Parts {
                engine: Arc::clone(self),
                whole: record.id.clone(),
                req_id: record.req_id.clone(),
                cancelled: live.cancelled.clone(),
                events: live.events.clone(),
            }),
            result: Mutex::new(record.result.clone()),
            notes: Mutex::new(record.notes.clone()),
        }
    }

    async fn apply_all(
        &self,
        live: &Live,
        ctx: &TaskContext,
        start: usize,
        mut deadline: Pin<&mut Sleep>,
    ) -> Result<(), TaskFailure> {
        let mut unsaved = false;
        for (index, step) in live.plan.steps.iter().enumerate().skip(start) {
            self.mark(live, index, std::mem::take(&mut unsaved)).await;
            self.halt_at(live, step.as_ref(), Moment::Before).await;
            let name = step.name();
            let ts = || muster_shared::clock::iso(self.parts.clock.wall());
            let event = json!({ "timestamp": ts(), "description": name.replace('_', " ") });
            live.events.event(&format!("start:{name}"), event);
            let applied = limits::apply(live, ctx, step.as_ref(), deadline.as_mut()).await;
            let result = bounded_result(ctx.result.lock().clone());
            unsaved |= live.record.lock().set_gathered(result, ctx.notes.lock().clone());
            applied?;
            self.halt_at(live, step.as_ref(), Moment::After).await;
            live.events.event(&format!("end:{name}"), json!({ "timestamp": ts() }));
            if step.progress() > 0 {
                live.events.at_least(step.progress().min(100));
            }
        }
        Ok(())
    }

    /// Journals that a step begins, which says as well that those before it are done: one write
    /// per step. The last one's is the end of the task.
    async fn mark(&self, live: &Live, index: usize, with_result: bool) {
        let changes = {
            let mut record = live.record.lock();
            let name = live.plan.steps[index].name().to_owned();
            record.step = Some(AtStep { index, name });
            let mut changes =
                if with_result { journal::put_result(&mut record) } else { Vec::new() };
            changes.push(journal::put_record(&record));
            changes
        };
        if live.durable() {
            self.must_write(changes).await;
        }
    }

    /// For tests: the process may end here.
    async fn halt_at(&self, live: &Live, step: &dyn Step, moment: Moment) {
        let Some(faults) = &self.parts.faults else { return };
        if live.durable() && faults.reached(live.handler.kind().name, step.name(), moment) {
            std::future::pending().await
        }
    }

    /// A step failed: undo if the kind wants that.
    async fn fail(self: &Arc<Self>, live: &Live, failure: TaskFailure) -> End {
        let cause = failure.cause.as_deref();
        tracing::info!(code = %failure.code, reason = %failure, cause, "a step failed");
        let last = {
            let mut record = live.record.lock();
            let on_failure = live.handler.on_failure(&record.params);
            let undo = on_failure == OnFailure::Undo;
            let Some(at) = record.step.clone().filter(|_| undo) else {
                let forward = on_failure == OnFailure::Forward;
                let left = if forward { self.unfinished(record.vm) } else { None };
                return End::failed(match left {
                    Some(action) => going_on(failure, action),
                    None => failure,
                });
            };
            record.phase = Phase::Undo;
            record.error = Some(bounded_error(failure.into()));
            at.index
        };
        self.undo_all(live, last).await
    }

    /// What is left to do for a VM, and is done without anybody asking again.
    fn unfinished(&self, vm: Option<VmUuid>) -> Option<Action> {
        reconcile::unfinished(&self.parts.drivers.vms.get(vm?)?)
    }

    /// Undoes steps `from`, `from - 1`, …, 0 and returns the failure that led here.
    async fn undo_all(self: &Arc<Self>, live: &Live, from: usize) -> End {
        let mut ctx = self.context(live, false);
        // Whatever stopped the task must not stop its undo.
        ctx.cancelled = CancellationToken::new();
        let mut problems = Vec::new();
        for (index, step) in live.plan.steps.iter().enumerate().take(from + 1).rev() {
            self.mark(live, index, false).await;
            let Err(problem) = limits::undo(&ctx, step.as_ref()).await else { continue };
            let cause = problem.cause.as_deref();
            tracing::warn!(step = step.name(), %problem, cause, "a step could not be undone");
            problems.push(format!("{}: {problem}", step.name()));
        }
        let error = live.record.lock().error.clone().unwrap_or(TaskError {
            message: "the reason was lost".to_owned(),
            code: Code::InternalError,
            details: None,
        });
        End::failed(with_problems(error, &problems))
    }

    /// Makes the end durable, then known.
    async fn finish(&self, live: &Live, end: End) {
        if end.error.as_ref().is_some_and(|error| error.code == Code::StoreFull) {
            self.want_room(live);
        }
        let (changes, mut ended, id) = {
            let mut record = live.record.lock();
            record.state = end.state;
            record.error = end.error.map(bounded_error);
            record.finished_at = Some(self.parts.clock.wall());
            record.notes = serde_json::Value::Null;
            let mut changes = journal::put_result(&mut record);
            changes.push(journal::put_record(&record));
            let local = record.origin.is_local();
            let acked = local || live.volatile;
            if local {
                changes.push(journal::put_acked(&record.id));
            }
            (changes, Ended::new(&record, acked), record.id.clone())
        };
        if live.durable() {
            self.must_write(changes).await;
        } else {
            ended.record = Some(Arc::new(live.record.lock().clone()));
        }
        if ended.state == State::Finished {
            live.events.at_least(100);
        }
        live.events.flush();
        ended.messages = Value::Array(live.events.messages()).to_string().into();
        match live.record.lock().error.as_ref().filter(|_| ended.state != State::Cancelled) {
            Some(TaskError { code, message, .. }) => {
                tracing::warn!(state = ?ended.state, %code, reason = message, "task failed");
            }
            None => say!(live, state = ?ended.state, "task ended"),
        }
        self.finished.count(&ended.task, ended.state);
        {
            let mut shared = self.shared.lock();
            shared.live.remove(&id);
            shared.order.remove(&id);
            if !ended.acked {
                shared.unacked.insert((ended.seq, id.clone()));
            }
            shared.bytes += ended.bytes();
            shared.by_seq.insert(ended.seq, id.clone());
            shared.ended.insert(id, ended);
            forget_messages(&mut shared);
            self.advance(&mut shared);
        }
        live.ended.send_replace(true);
        self.touch();
    }

    /// A drain takes the task away before it has started: nothing is left of it but the word that
    /// it was given back, which is as durable as the task was.
    async fn give_back(&self, live: &Live) {
        let (id, changes) = {
            let record = live.record.lock();
            let mut changes = journal::forget(&record.id, record.params_bytes, record.result_bytes);
            changes.push(journal::put_returned(&record.id));
            (record.id.clone(), changes)
        };
        self.must_write(changes).await;
        {
            let mut shared = self.shared.lock();
            shared.live.remove(&id);
            shared.order.remove(&id);
            self.advance(&mut shared);
        }
        self.keep_refusal(id, given_back());
        live.ended.send_replace(true);
    }

    /// Writes to the journal; waits while its queue is full.
    pub(super) async fn write(&self, changes: Vec<Change>) -> Result<(), JournalError> {
        loop {
            if self.given_up.get().is_some() {
                return Err(JournalError::Kv { action: "write", source: KvError::Closed });
            }
            match self.journal.commit(changes.clone()).await {
                Err(JournalError::Kv { source: KvError::Busy, .. }) => sleep(BUSY_WAIT).await,
                done => return done,
            }
        }
    }

    /// Writes what the task can't go on without: waits while the device is full; when it failed,
    /// the process has to end, and this task does nothing more.
    pub(super) async fn must_write(&self, changes: Vec<Change>) {
        loop {
            match self.write(changes.clone()).await {
                Ok(()) => return,
                Err(JournalError::Kv { source: KvError::Full { .. }, .. }) => {
                    tracing::warn!("the device of the task journal is full, a task waits");
                    sleep(FULL_WAIT).await;
                }
                Err(error) => {
                    self.break_down(&error);
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// The live task, for callers that wait.
    pub(super) fn find_live(&self, id: &TaskId) -> Option<Arc<Live>> {
        self.shared.lock().live.get(id).cloned()
    }
}

/// The failure that began an undo, with what the undo could not do.
fn with_problems(mut error: TaskError, problems: &[String]) -> TaskError {
    if !problems.is_empty() {
        error.message = format!("{}; left behind: {}", error.message, problems.join(", "));
    }
    error
}

/// Events are kept for the newest ended tasks only.
fn forget_messages(shared: &mut Shared) {
    let Some((_, id)) = shared.by_seq.iter().rev().nth(KEPT_MESSAGES) else { return };
    if let Some(ended) = shared.ended.get_mut(id) {
        ended.messages = Box::default();
    }
}
