//! What becomes of the tasks of an earlier start of the agent.
//!
//! A task that waited waits again. A task that ran goes on at its journaled step (a step that had
//! begun is applied once more), or goes on with its undo. It is failed with a reason when this
//! version no longer knows its kind or its steps, or when it was there each time the agent went
//! down.

use std::sync::Arc;

use muster_shared::wire::{Code, TaskError};

use super::journal::Loaded;
use super::live::{Ended, Shared};
use super::record::{Phase, Record, State};
use super::refusals::given_back;
use super::run::MAX_ATTEMPTS;
use super::runner::{Engine, EngineParts};
use super::{OnFailure, Plan, TaskFailure};

/// Builds the shared state from the journal.
pub(super) fn rebuild(loaded: Loaded, parts: &EngineParts) -> Shared {
    let mut shared = Shared::default();
    for (record, acked) in loaded.records {
        shared.next_seq = shared.next_seq.max(record.seq + 1);
        if record.state.is_terminal() {
            remember(&mut shared, &record, acked);
        } else {
            shared.recovered.push(record);
        }
    }
    for id in loaded.damaged {
        let mut record = damaged(&id, parts);
        record.seq = shared.next_seq;
        shared.next_seq += 1;
        remember(&mut shared, &record, false);
        if let Some(ended) = shared.ended.get_mut(&id) {
            ended.record = Some(Arc::new(record));
        }
    }
    // What already ran has its locks back before anything that waited.
    shared.recovered.sort_by_key(|record| (record.state == State::Queued, record.seq));
    for id in loaded.returned {
        shared.refusals.keep(id, given_back());
    }
    shared.tickets = loaded.tickets.into_iter().collect();
    if let Some(intake) = loaded.intake
        && intake.boot_id == parts.boot_id
    {
        shared.intake = intake;
    }
    shared.intake.boot_id.clone_from(&parts.boot_id);
    shared
}

fn remember(shared: &mut Shared, record: &Record, acked: bool) {
    let ended = Ended::new(record, acked);
    if !acked {
        shared.unacked.insert((ended.seq, record.id.clone()));
    }
    shared.bytes += ended.bytes();
    shared.by_seq.insert(ended.seq, record.id.clone());
    shared.ended.insert(record.id.clone(), ended);
}

/// Stands for a record that can't be read: it must end, and must not run again.
fn damaged(id: &muster_shared::ids::TaskId, parts: &EngineParts) -> Record {
    let now = parts.clock.wall();
    Record {
        id: id.clone(),
        seq: 0,
        req_id: String::new(),
        task: "unknown".to_owned(),
        params: super::Params::new(),
        fingerprint: String::new(),
        parent_id: None,
        origin: super::record::Origin::Coordinator,
        vm: None,
        state: State::Interrupted,
        phase: Phase::Apply,
        step: None,
        attempt: 0,
        boot_id: parts.boot_id.clone(),
        instance_id: parts.instance_id,
        created_at: now,
        started_at: None,
        finished_at: Some(now),
        deadline_ms: None,
        result: serde_json::Value::Null,
        notes: serde_json::Value::Null,
        error: Some(TaskError {
            message: "the agent's record of this task is damaged".to_owned(),
            code: Code::Interrupted,
            details: None,
        }),
        params_bytes: 0,
        result_bytes: 0,
        notes_bytes: 0,
    }
}

impl Engine {
    /// Lets the tasks of earlier starts go on. Call once the VM table is loaded, before new tasks
    /// are submitted.
    pub async fn recover(self: &Arc<Self>) {
        let records = std::mem::take(&mut self.shared.lock().recovered);
        let mut lives = Vec::new();
        for mut record in records {
            if let Err(error) = self.journal.fill(&mut record).await {
                tracing::error!(%error, task_id = %record.id, "a task's parameters are lost");
                end_at_its_turn(&mut record, interrupted("its parameters are damaged"));
            }
            let Some(handler) = self.parts.registry.get(&record.task) else {
                self.give_up(record).await;
                continue;
            };
            let plan = match self.plan(handler, &record.params) {
                Ok(plan) => plan,
                Err(failure) => {
                    end_at_its_turn(&mut record, failure);
                    Plan::default()
                }
            };
            let on_failure = handler.on_failure(&record.params);
            limit_attempts(&mut record, on_failure);
            let queue = self.parts.registry.queue_of(handler);
            let (id, class) = (record.id.clone(), handler.kind().class);
            let whole = record.parent_id.clone();
            tracing::info!(
                task_id = %id, task = record.task, attempt = record.attempt + 1,
                step = ?record.step, "a task resumes after a restart"
            );
            let live = self.live(handler, record, plan, false, None);
            live.decide(Ok(()));
            let mut shared = self.shared.lock();
            let (order, locks) = (&mut shared.order, &live.plan.locks);
            match whole.map(|whole| order.start_part(&id, queue, class, locks, &whole)) {
                Some(Ok(())) => live.granted.notify_one(),
                // Of a task that is gone it is no part any more.
                Some(Err(_)) | None => order.restore(&id, queue, class, locks),
            }
            shared.live.insert(id, live.clone());
            lives.push(live);
        }
        for live in lives {
            self.spawn(self.clone().go_on(live));
        }
    }

    /// Nothing here knows the kind any more.
    async fn give_up(&self, mut record: Record) {
        let text = format!("this version knows no task {:?}", record.task);
        record.state = State::Interrupted;
        record.error = Some(interrupted(text).into());
        record.finished_at = Some(self.parts.clock.wall());
        record.notes = serde_json::Value::Null;
        let mut changes = super::journal::put_result(&mut record);
        changes.push(super::journal::put_record(&record));
        self.must_write(changes).await;
        remember(&mut self.shared.lock(), &record, false);
        self.touch();
    }
}

/// It can't go on: it fails with this reason as soon as it is looked at, see `Engine::turn`.
fn end_at_its_turn(record: &mut Record, failure: TaskFailure) {
    record.state = State::Queued;
    record.error = Some(failure.into());
}

/// A task that may be what brings the agent down is not started for ever.
fn limit_attempts(record: &mut Record, on_failure: OnFailure) {
    if record.attempt < MAX_ATTEMPTS || record.phase == Phase::Undo {
        return;
    }
    let text = format!("the agent went down {} times while it ran", record.attempt);
    match (&record.step, on_failure) {
        (Some(_), OnFailure::Undo) => {
            record.phase = Phase::Undo;
            record.error = Some(interrupted(text).into());
        }
        _ => end_at_its_turn(record, interrupted(text)),
    }
}

fn interrupted(text: impl Into<String>) -> TaskFailure {
    TaskFailure::new(Code::Interrupted, text)
}
