//! Tasks that are parts of other tasks. A part is an ordinary task, with a record and a history of
//! its own, that names the task it is a part of. It works under the locks of that task, which have
//! to cover its own, and takes no place in its queue: so it never waits for anybody, and nobody for
//! whom it would wait can wait for it.
//!
//! Its id follows from the whole's and its name there. A step that is repeated after a restart
//! finds the part that it began, running or ended, and begins no second one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::TaskId;
use muster_shared::wire::{Code, Outcome, TaskResult};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::events::TaskEvents;
use super::record::Origin;
use super::runner::{Engine, Refusal, Submission};
use super::{EventSink as _, Params, TaskFailure};

/// Longer than any task may take: its own deadline ends it.
const FOREVER: Duration = Duration::from_secs(30 * 86_400);

/// Runs tasks as parts of one.
#[async_trait]
pub trait Subtasks: fmt::Debug + Send + Sync {
    /// Runs a task of a kind to its end and returns its result. `part` is what the whole calls it;
    /// once there was a part of this name, it is that one's end.
    ///
    /// # Errors
    /// What the part failed with, or why it was refused.
    async fn run(&self, part: &str, kind: &str, params: Params) -> Result<Value, TaskFailure>;
}

/// The parts of one task that an engine runs.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) engine: Arc<Engine>,
    pub(super) whole: TaskId,
    pub(super) req_id: String,
    /// Cancelled with the whole.
    pub(super) cancelled: CancellationToken,
    pub(super) events: Arc<TaskEvents>,
}

/// The id of a part.
#[must_use]
pub(super) fn id_of(whole: &TaskId, part: &str) -> TaskId {
    let name = format!("{whole}/{part}");
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).into()
}

#[async_trait]
impl Subtasks for Parts {
    async fn run(&self, part: &str, kind: &str, params: Params) -> Result<Value, TaskFailure> {
        let id = id_of(&self.whole, part);
        let submission = Submission {
            id: id.clone(),
            req_id: self.req_id.clone(),
            task: kind.to_owned(),
            params,
            deadline_ms: None,
            ticket: None,
            volatile: false,
            origin: Origin::Local,
            part_of: Some(self.whole.clone()),
        };
        if let Err(refusal) = self.engine.submit(submission).await {
            return Err(refused(refusal).await);
        }
        self.events.event("subtask", json!({ "id": id, "task": kind, "name": part }));
        tokio::select! {
            biased;
            _ = self.engine.wait(&id, FOREVER) => {}
            () = self.cancelled.cancelled() => {
                // One that can't be cancelled goes on to its end, as the whole would in its place.
                if let Err(refusal) = self.engine.cancel(&id) {
                    tracing::info!(task_id = %id, reason = %refusal, "a part is not cancelled");
                }
                self.engine.wait(&id, FOREVER).await;
            }
        }
        let result = self.engine.result(&id).await;
        let status = result.as_ref().map(|result| result.status);
        self.events.event("subtask:end", json!({ "id": id, "status": status }));
        outcome(result)
    }
}

fn outcome(result: Option<TaskResult>) -> Result<Value, TaskFailure> {
    match result {
        Some(TaskResult { status: Outcome::Complete, result, .. }) => Ok(result),
        Some(TaskResult { error: Some(error), .. }) => {
            let failure = TaskFailure::new(error.code, error.message);
            Err(match error.details {
                Some(details) => failure.with_details(details),
                None => failure,
            })
        }
        _ => Err(TaskFailure::new(Code::InternalError, "the end of a subtask is not known")),
    }
}

/// An agent that stops begins nothing: the whole waits, and goes on with this part at the next
/// start.
async fn refused(refusal: Refusal) -> TaskFailure {
    if refusal.code == Code::Draining {
        std::future::pending::<()>().await;
    }
    TaskFailure::new(refusal.code, refusal.message)
}
