//! Kinds of jobs, and what a step works with. A new kind is one file and one line in [`KINDS`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_shared::api::Object;
use muster_shared::api::server::ServerRecord;
use muster_shared::api::task::TaskStatus;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::wire::{Code, TaskError};
use serde_json::Value;

use super::record::{JobRecord, Place};
use super::{JOBS, Jobs};
use crate::app::Caller;
use crate::app::error::AppError;
use crate::app::tasks::NewTask;
use crate::store::{Expect, Revision};

/// Every kind of job.
pub(super) static KINDS: &[&Kind] = &[
    &super::server_setup::KIND,
    &super::server_reboot::KIND,
    &super::server_factory_reset::KIND,
    &super::nic_update::KIND,
];

/// Between two looks at a task that another coordinator follows.
const TASK_POLL: Duration = Duration::from_secs(1);

/// Between two looks at whether an agent is connected.
const CONNECTION_POLL: Duration = Duration::from_millis(200);

/// A kind of job.
#[derive(Debug)]
pub(super) struct Kind {
    /// Its name and version, as clients of the workflow API know it.
    pub(super) name: &'static str,
    /// What it does, in order.
    pub(super) chain: &'static [Step],
    /// What it does once a step has failed for good.
    pub(super) on_error: &'static [Step],
}

impl Kind {
    /// The kind of a record.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name).copied()
    }

    /// The step of a record; by its name, so that a record survives new versions.
    pub(super) fn step(&self, job: &JobRecord, place: Place) -> Option<&'static Step> {
        let steps = match place {
            Place::Chain(_) => self.chain,
            Place::OnError(_) => self.on_error,
        };
        let name = &job.step(place).name;
        steps.iter().find(|step| step.name == name)
    }
}

/// A step. It may be run again after a crash, so it does what can be repeated, or finds out that
/// it was done; what an agent does is a task, which [`StepContext::task`] makes once.
pub(super) struct Step {
    /// Its name; never reused for another meaning.
    pub(super) name: &'static str,
    /// Longest time for one try, seconds.
    pub(super) timeout_s: u64,
    /// Whether the job needs it.
    pub(super) when: fn(&JobRecord) -> bool,
    /// The work.
    pub(super) run: for<'a> fn(&'a mut StepContext) -> BoxFuture<'a, Result<(), StepFailure>>,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({}, {} s)", self.name, self.timeout_s)
    }
}

/// For steps that every job of a kind needs.
pub(super) fn always(_: &JobRecord) -> bool {
    true
}

/// A try of a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct StepFailure {
    /// For people.
    pub(super) message: String,
    /// Another try would fail as well.
    pub(super) fatal: bool,
}

impl StepFailure {
    /// A failure that another try can't change.
    pub(super) fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), fatal: true }
    }
}

impl From<AppError> for StepFailure {
    fn from(error: AppError) -> Self {
        let fatal = matches!(
            error,
            AppError::ServerNotFound(_)
                | AppError::Answer(_)
                | AppError::NotSupported { .. }
                | AppError::TicketNotActive(_)
        );
        tracing::warn!(error = %Chain(&error), "a step of a job failed");
        Self { message: error.to_string(), fatal }
    }
}

/// What a step works with.
#[derive(Debug)]
pub(super) struct StepContext {
    pub(super) jobs: Arc<Jobs>,
    /// The record as this coordinator last wrote it, with what changed since.
    pub(super) job: JobRecord,
    /// The revision of the last write.
    pub(super) revision: Revision,
    /// Which step is run.
    pub(super) place: Place,
}

impl StepContext {
    /// The server that the job is about.
    pub(super) fn server(&self) -> ServerUuid {
        self.job.server_uuid
    }

    /// The request that made the job. What cleans up after a failure is done also when the failure
    /// was that the ticket ended.
    pub(super) fn caller(&self) -> Caller {
        let ticket = match self.place {
            Place::Chain(_) => self.job.ticket_uuid.map(|ticket| ticket.to_string()),
            Place::OnError(_) => None,
        };
        Caller::new(&self.job.req_id).under(ticket)
    }

    /// Changes the server's record.
    pub(super) async fn server_update(
        &self,
        change: impl Fn(&mut ServerRecord) + Send,
    ) -> Result<(), StepFailure> {
        let any = crate::app::Expected::ANY;
        Ok(self.jobs.fleet.update_record(self.server(), &any, change).await?)
    }

    /// Waits until the server's agent is connected, as after a restart of this coordinator.
    pub(super) async fn connected(&self) {
        while !self.jobs.agents.is_connected(self.server()) {
            tokio::time::sleep(CONNECTION_POLL).await;
        }
    }

    /// Runs an agent task and returns what it returns. The task is made in the same commit as the
    /// job's note of it, so that no crash leads to a second one; a try after a failure makes
    /// another.
    pub(super) async fn task(&mut self, task: &str, params: Object) -> Result<Value, StepFailure> {
        let step = self.job.step(self.place);
        let attempt = step.attempt;
        let id = match step.task.clone() {
            Some((id, of)) if of == attempt || self.is_open(&id).await? => id,
            _ => self.make_task(task, params, attempt).await?,
        };
        loop {
            let ended = self.jobs.tasks.ended(&id, Duration::MAX).await?;
            match ended.and_then(|record| record.outcome()) {
                Some(Ok(result)) => return Ok(result),
                Some(Err(error)) => return Err(failure(task, &error)),
                None => tokio::time::sleep(TASK_POLL).await,
            }
        }
    }

    async fn is_open(&self, id: &TaskId) -> Result<bool, StepFailure> {
        match self.jobs.tasks.record_of(id).await {
            Ok(record) => Ok(record.status == TaskStatus::Active),
            Err(AppError::TaskNotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn make_task(
        &mut self,
        task: &str,
        params: Object,
        attempt: u32,
    ) -> Result<TaskId, StepFailure> {
        let tasks = Arc::clone(&self.jobs.tasks);
        let server = self.server();
        tasks.require_capability(server, task)?;
        let _place = tasks.reserve(server)?;
        let new =
            NewTask { server, task: task.to_owned(), params, caller: self.caller(), vm: None };
        let record = tasks.record(new).await?;
        self.job.step_mut(self.place).task = Some((record.id.clone(), attempt));
        let mut writes = tasks.writes(&record);
        writes.push(JOBS.put(self.job.uuid, Expect::At(self.revision), &self.job));
        self.revision = tasks.commit(&record, writes).await?;
        Ok(record.id)
    }
}

fn failure(task: &str, error: &TaskError) -> StepFailure {
    // Whether it was done is not known: doing it again could do it twice. Or the agent may not, and
    // will not be allowed to a moment later.
    let fatal = matches!(error.code, Code::TaskLost | Code::ServerDeleted | Code::NotAuthorized);
    StepFailure { message: format!("{task}: {}", error.message), fatal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_may_not_do_is_not_tried_again() {
        let fatal =
            |code| failure("t", &TaskError { message: "no".into(), code, details: None }).fatal;
        for code in [Code::NotAuthorized, Code::TaskLost] {
            assert!(fatal(code.clone()), "{code:?}");
        }
        for code in [Code::InternalError, Code::Draining] {
            assert!(!fatal(code.clone()), "{code:?}");
        }
    }
}
