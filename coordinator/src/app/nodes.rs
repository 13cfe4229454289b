//! What is asked of an agent and answered at once: queries, pause and resume, consoles.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::api::log::LogPage;
use muster_shared::api::task::Executed;
use muster_shared::api::vm::Vnc;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::link::Connection;
use muster_shared::wire::logs::{self, LogQuery};
use muster_shared::wire::{Drain, FromCoordinator, OPERATOR, Pause, Resume, StreamKind, job_owner};
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::Caller;
use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::recovery::Version;
use super::tasks::Tasks;
use super::tickets::Tickets;
use crate::agents::{Agents, Query, Reply};

/// Longest wait for `pause` and `resume` to be durable at the agent.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a fresh sysinfo.
const SYSINFO_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for lines that are there.
const LOGS_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for what the hypervisor says of a VM.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for an agent that reboots without a job.
const REBOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Since this version `cn-agent` reboots by itself.
const REBOOTS_SINCE: Version = (2, 11, 0);
/// Longest run of a script that names no limit.
const SCRIPT_LIMIT: Duration = Duration::from_secs(3600);
/// What the answer may take on top of the script's own limit.
const SCRIPT_GRACE: Duration = Duration::from_secs(30);
/// A drain that nobody ends is over after this long, seconds.
const DRAIN_TTL_S: u64 = 1800;

const NO_LOGS: &str = "the agent's answer is no page of a log";
const NO_SYSINFO: &str = "Unable to gather latest sysinfo";
const NO_VNC_PASSWORD: &str = "the VM has no vnc_password, and without one its display has no port: \
                               set it and start the VM anew, or use GET /vms/:uuid/display";
const NO_VNC: &str = "failed to parse JSON response from vm.info";

/// What `machine_info` returns, as far as it is read.
#[derive(Deserialize)]
struct VmInfo {
    vnc: Vnc,
}

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

    /// The sysinfo that a server's agent gathers now.
    ///
    /// # Errors
    /// As [`Nodes::query`]; [`AppError::Answer`].
    pub(crate) async fn gather_sysinfo(
        &self,
        server: ServerUuid,
        params: Object,
        caller: &Caller,
    ) -> Result<Object, AppError> {
        let task = "server_sysinfo";
        let query = Query::new(server, task, params, &caller.req_id, SYSINFO_TIMEOUT);
        match self.query(caller, query).await? {
            Value::Object(mut result) => match result.shift_remove("sysinfo") {
                Some(Value::Object(sysinfo)) => Ok(sysinfo.into()),
                _ => Err(AppError::Answer(NO_SYSINFO)),
            },
            _ => Err(AppError::Answer(NO_SYSINFO)),
        }
    }

    /// What a server's agent logged of late.
    ///
    /// # Errors
    /// As [`Nodes::query`]; [`AppError::Answer`].
    pub(crate) async fn logs(
        &self,
        server: ServerUuid,
        wanted: &LogQuery,
        caller: &Caller,
    ) -> Result<LogPage, AppError> {
        let limit = LOGS_TIMEOUT + wanted.patience();
        let query = Query::new(server, logs::TASK, Object::of(wanted), &caller.req_id, limit);
        let page = self.query(caller, query).await?;
        LogPage::deserialize(page).map_err(|_| AppError::Answer(NO_LOGS))
    }

    /// Where a VM's VNC display is.
    ///
    /// # Errors
    /// As [`Nodes::query`]; [`AppError::Precondition`] for one without a password, which has no
    /// port; [`AppError::Answer`] for a VM without one.
    pub(crate) async fn vm_vnc(
        &self,
        server: ServerUuid,
        vm: VmUuid,
        caller: &Caller,
    ) -> Result<Vnc, AppError> {
        let params = Object::from_iter([("uuid", json!(vm)), ("types", json!(["vnc"]))]);
        let query = Query::new(server, "machine_info", params, &caller.req_id, INFO_TIMEOUT);
        let info = match self.query(caller, query).await? {
            // The reference's agent answers with JSON text.
            Value::String(text) => serde_json::from_str(&text).unwrap_or_default(),
            info => info,
        };
        match VmInfo::deserialize(&info) {
            Ok(VmInfo { vnc }) => Ok(vnc),
            Err(_) if info["vnc"]["auth"] == "none" => {
                Err(AppError::Precondition(NO_VNC_PASSWORD.to_owned()))
            }
            Err(_) => Err(AppError::Answer(NO_VNC)),
        }
    }

    /// Restarts a server at once, without a job.
    ///
    /// # Errors
    /// [`AppError::OldAgent`]; as [`Tasks::run`].
    pub(crate) async fn server_reboot_now(
        &self,
        server: ServerUuid,
        params: Object,
        caller: &Caller,
    ) -> Result<(), AppError> {
        if let Some(installed) = self.fleet.outdated_cn_agent(server, REBOOTS_SINCE) {
            let text = "cn-agent version on server does not support server_reboot";
            return Err(AppError::OldAgent(format!("{text}: {installed} < 2.11.0")));
        }
        self.tasks.run(server, "server_reboot", params, caller, REBOOT_TIMEOUT).await.map(drop)
    }

    /// Runs a script, at most `limit` long.
    ///
    /// # Errors
    /// [`AppError::NotAllowed`] unless the configuration allows scripts; as [`Tasks::run`];
    /// [`AppError::Answer`].
    pub(crate) async fn command_execute(
        &self,
        server: ServerUuid,
        params: Object,
        limit: Option<Duration>,
        caller: &Caller,
    ) -> Result<Executed, AppError> {
        if !self.ctx.config.allow_command_execute {
            let text = "command execution is off: `security.allow_command_execute` is not set";
            return Err(AppError::NotAllowed(text));
        }
        // The agent's limit is in whole seconds.
        let limit = limit.map_or(SCRIPT_LIMIT, |limit| {
            Duration::from_secs(limit.as_secs().saturating_add(1)).min(SCRIPT_LIMIT)
        });
        let limit = limit + SCRIPT_GRACE;
        let result = self.tasks.run(server, "command_execute", params, caller, limit).await?;
        Executed::deserialize(result)
            .map_err(|_| AppError::Answer("Error executing on remote system"))
    }

    /// Starts a task that brings a server's VMs up to date with their networks.
    ///
    /// # Errors
    /// [`AppError::OldServer`]; as [`Tasks::create`].
    pub(crate) async fn vm_nics_update(
        &self,
        server: ServerUuid,
        params: Object,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        if self.fleet.sysinfo_of(server).sdc_version.is_none() {
            return Err(AppError::OldServer("Unsupported compute node version"));
        }
        self.tasks.create(server, "machine_update_nics", params, caller).await
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
        crate::agents::pipe(client, agent, &self.ctx.cancel).await;
    }
}
