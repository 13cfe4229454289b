//! What is asked of an agent and answered at once: queries, pause and resume, consoles.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::link::Connection;
use muster_shared::wire::{Drain, FromCoordinator, OPERATOR, Pause, Resume, StreamKind, job_owner};
use serde_json::Value;

use super::caller::Caller;
use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::tasks::Tasks;
use super::tickets::Tickets;
use crate::agents::{Agents, Query, Reply};

/// Longest wait for `pause` and `resume` to be durable at the agent.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// A drain that nobody ends is over after this long, seconds.
const DRAIN_TTL_S: u64 = 1800;

/// What is asked of agents; see the module.
#[derive(Debug)]
pub(crate) struct Nodes {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    fleet: Arc<Fleet>,
    tasks: Arc<Tasks>,
    tickets: Arc<Tickets>,
}

impl Nodes {
    pub(super) fn new(
        ctx: Arc<Context>,
        agents: Arc<Agents>,
        fleet: Arc<Fleet>,
        tasks: Arc<Tasks>,
        tickets: Arc<Tickets>,
    ) -> Self {
        Self { ctx, agents, fleet, tasks, tickets }
    }

    /// Makes an agent refuse new mutating tasks until it is resumed.
    ///
    /// # Errors
    /// [`AppError::NotConnected`], [`AppError::Timeout`], [`AppError::Agent`].
    pub(crate) async fn pause(&self, server: ServerUuid, reason: &str) -> Result<(), AppError> {
        let token: TaskId = self.ctx.parts.entropy.uuid().into();
        let owner = Some(OPERATOR.to_owned());
        let pause = Pause { reason: reason.to_owned(), token: token.clone(), owner };
        self.control(server, token, pause.into(), "pause").await
    }

    /// Makes an agent accept tasks again, unless a job drains it.
    ///
    /// # Errors
    /// As [`Nodes::pause`].
    pub(crate) async fn resume(&self, server: ServerUuid) -> Result<(), AppError> {
        self.lift(server, OPERATOR.to_owned()).await
    }

    /// Ends the drain of a job.
    ///
    /// # Errors
    /// As [`Nodes::pause`].
    pub(super) async fn undrain(&self, server: ServerUuid, job: &TaskId) -> Result<(), AppError> {
        self.lift(server, job_owner(job)).await
    }

    async fn lift(&self, server: ServerUuid, owner: String) -> Result<(), AppError> {
        let token: TaskId = self.ctx.parts.entropy.uuid().into();
        let resume = Resume { token: token.clone(), owner: Some(owner) };
        self.control(server, token, resume.into(), "resume").await
    }

    /// As [`Nodes::pause`], but tasks that wait come back, and the agent resumes by itself
    /// when nobody resumes it, lest a dead coordinator leave a node paused for ever.
    ///
    /// # Errors
    /// As [`Nodes::pause`].
    pub(super) async fn drain(
        &self,
        server: ServerUuid,
        reason: &str,
        job: TaskId,
    ) -> Result<(), AppError> {
        let drain = Drain {
            reason: reason.to_owned(),
            token: job.clone(),
            ttl_s: DRAIN_TTL_S,
            owner: Some(job_owner(&job)),
        };
        self.control(server, job, drain.into(), "drain").await
    }

    async fn control(
        &self,
        server: ServerUuid,
        token: TaskId,
        message: FromCoordinator,
        what: &str,
    ) -> Result<(), AppError> {
        match self.agents.ask(server, token, message).wait(CONTROL_TIMEOUT, what).await? {
            Reply::Accepted | Reply::Result(_) => Ok(()),
            Reply::Error { code, message } => Err(AppError::Agent { code, message, details: None }),
        }
    }

    /// Runs a task that nobody stores and returns what it returns.
    ///
    /// # Errors
    /// [`AppError::NotSupported`], [`AppError::NotConnected`], [`AppError::Busy`],
    /// [`AppError::Timeout`], [`AppError::TicketNotActive`], [`AppError::Agent`].
    pub(crate) async fn query(&self, caller: &Caller, query: Query<'_>) -> Result<Value, AppError> {
        let fence = self.tickets.fence(caller).await?;
        self.tasks.require_capability(query.server, query.task)?;
        Ok(self.agents.query(query, fence.map(|fence| fence.ticket)).await?)
    }

    /// The agent's end of a VM's console or display.
    ///
    /// # Errors
    /// [`AppError::VmNotFound`], [`AppError::NotConnected`], [`AppError::Timeout`],
    /// [`AppError::Stream`].
    pub(crate) async fn stream(
        &self,
        vm: VmUuid,
        kind: StreamKind,
    ) -> Result<Connection, AppError> {
        let (server, _) = self.fleet.vm(vm).ok_or(AppError::VmNotFound(vm))?;
        Ok(self.agents.open_stream(server, vm, kind).await?)
    }

    /// Carries a client's connection over an agent's stream until either ends or the application
    /// stops.
    pub(crate) async fn pipe(&self, client: Connection, agent: Connection) {
        tokio::select! {
            biased;
            () = self.ctx.cancel.cancelled() => {}
            () = crate::agents::pipe(client, agent) => {}
        }
    }
}
