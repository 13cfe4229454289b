//! Jobs: what needs several steps on one server, and goes on when a coordinator dies.
//!
//! ```text
//! create ──► job/<uuid> and jobrun/<server>/<kind> in one commit
//!              │   the guard: one job of a kind per server, and the index of what is open
//! claim  ──►  the record names the coordinator that runs it
//! step   ──►  written before it is begun; an agent task is made in the same commit as its note
//! end    ──►  the record and the removal of the guard in one commit
//! ```
//!
//! Every write is a compare-and-swap on the record, so of two coordinators that think they run a
//! job only one gets anywhere. A coordinator that dies loses its membership (or comes back without
//! the job in its memory), after which its claim no longer counts.

mod kind;
mod list;
mod nic_update;
mod nics;
mod record;
mod run;
mod server_factory_reset;
mod server_reboot;
mod server_setup;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_shared::api::job::{Execution, JobParams, NicAction};
use muster_shared::api::server::ServerRecord;
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

use super::context::Context;
use super::error::AppError;
use super::fleet::{Entry, Fleet};
use super::nodes::Nodes;
use super::records::Records;
use super::reports::Reports;
use super::tasks::Tasks;
use super::tickets::Tickets;
use super::{Caller, Expected, keys};
use crate::agents::Agents;
use crate::store::Expect;
use kind::{Kind, StepContext, StepFailure};
pub use list::JobFilter;
pub(crate) use nics::checked as checked_nics;
pub use record::JobRecord;
use record::{Claim, StepRecord};

const JOBS: Records<JobRecord> = Records::under(keys::JOBS);
/// Which job of a kind runs on a server.
const GUARDS: Records<Uuid> = Records::under(keys::JOB_GUARDS);
/// Races for a guard before a request fails.
const ATTEMPTS: usize = 10;
/// Largest parameters of a job, bytes of JSON; the record has to fit a value of the store.
const MAX_PARAMS_BYTES: usize = 128 * 1024;

/// The jobs that this coordinator runs, and what their steps work with.
#[derive(Debug)]
pub struct Jobs {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    fleet: Arc<Fleet>,
    nodes: Arc<Nodes>,
    reports: Arc<Reports>,
    tasks: Arc<Tasks>,
    tickets: Arc<Tickets>,
    running: Mutex<BTreeSet<Uuid>>,
    /// There may be a job to claim.
    pub(crate) wake: Notify,
}

impl Jobs {
    pub(super) fn new(
        ctx: Arc<Context>,
        agents: Arc<Agents>,
        fleet: Arc<Fleet>,
        nodes: Arc<Nodes>,
        reports: Arc<Reports>,
        tasks: Arc<Tasks>,
        tickets: Arc<Tickets>,
    ) -> Self {
        let (running, wake) = (Mutex::default(), Notify::new());
        Self { ctx, agents, fleet, nodes, reports, tasks, tickets, running, wake }
    }

    /// Sets a server up; `None` when it is set up already.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Invalid`], [`AppError::Store`].
    pub async fn server_setup(
        &self,
        server: ServerUuid,
        mut params: JobParams,
        caller: &Caller,
    ) -> Result<Option<Uuid>, AppError> {
        let record = self.fleet.with(server, |entry| entry.record.clone()).flatten();
        let record = record.ok_or(AppError::ServerNotFound(server))?.value;
        if record.setup {
            return Ok(None);
        }
        params.nic_action = Some(NicAction::Update);
        if record.system_type.as_deref() == Some("SunOS") {
            params.setup.reboot = Some(true);
        }
        if let Some(hostname) = &params.setup.hostname {
            // Before anything is changed.
            self.tickets.fence(caller).await?;
            if let Some(running) = self.open_of(&server_setup::KIND, server).await? {
                return Ok(Some(running));
            }
            let rename = |record: &mut ServerRecord| record.hostname.clone_from(hostname);
            self.fleet.update_record(server, &Expected::ANY, rename).await?;
        }
        self.create(&server_setup::KIND, server, params, caller).await.map(Some)
    }

    /// Restarts a server.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::Store`].
    pub async fn server_reboot(
        &self,
        server: ServerUuid,
        params: JobParams,
        caller: &Caller,
    ) -> Result<Uuid, AppError> {
        self.create(&server_reboot::KIND, server, params, caller).await
    }

    /// Wipes a server that has no VMs; `Err` of the number of VMs otherwise.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub async fn server_factory_reset(
        &self,
        server: ServerUuid,
        params: JobParams,
        caller: &Caller,
    ) -> Result<Result<Uuid, usize>, AppError> {
        let vms = self.fleet.with(server, |entry| entry.vms.len()).unwrap_or(0);
        if vms > 0 {
            return Ok(Err(vms));
        }
        self.create(&server_factory_reset::KIND, server, params, caller).await.map(Ok)
    }

    /// Changes which tags a server's interfaces carry.
    ///
    /// # Errors
    /// [`AppError::RefusedArgument`] for a server that is not set up, or while another such job
    /// runs; [`AppError::Invalid`], [`AppError::Store`].
    pub async fn nic_update(
        &self,
        server: ServerUuid,
        params: JobParams,
        caller: &Caller,
    ) -> Result<Uuid, AppError> {
        let setup = |entry: &Entry| entry.record.as_ref().is_some_and(|record| record.value.setup);
        if !self.fleet.with(server, setup).unwrap_or(false) {
            return Err(AppError::RefusedArgument("Server is not setup".to_owned()));
        }
        self.create(&nic_update::KIND, server, params, caller).await
    }

    /// Makes a job, unless one of its kind runs on the server: then that one is the answer. Only
    /// a change of NICs has to be the same change for that.
    async fn create(
        &self,
        kind: &'static Kind,
        server: ServerUuid,
        mut params: JobParams,
        caller: &Caller,
    ) -> Result<Uuid, AppError> {
        params.server_uuid = Some(server);
        params.target = Some(server);
        if keys::encode(&params).len() > MAX_PARAMS_BYTES {
            let text = format!("with the other parameters over {MAX_PARAMS_BYTES} bytes");
            return Err(AppError::invalid("nics", text));
        }
        let guard = format!("{server}/{}", kind.name);
        let fence = self.tickets.fence(caller).await?;
        for _ in 0..ATTEMPTS {
            let mut job = self.new_record(kind, server, params.clone(), caller);
            job.ticket_uuid = fence.as_ref().map(|fence| fence.uuid);
            let writes = vec![
                JOBS.put(job.uuid, Expect::Absent, &job),
                GUARDS.put(&guard, Expect::Absent, &job.uuid),
            ];
            match self.tickets.commit_under(fence.as_ref(), writes).await {
                Ok(_) => {
                    tracing::info!(job = %job.uuid, name = job.name, server_uuid = %server, "job made");
                    self.wake.notify_one();
                    return Ok(job.uuid);
                }
                Err(AppError::Store(error)) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
            // It may have ended meanwhile; then there is room for the new one.
            let Some(running) = self.open_of(kind, server).await? else { continue };
            let other = self.record_of(running).await?;
            if kind.name == nic_update::KIND.name && other.0.params != params {
                let text = format!("job {running} changes this server's NICs");
                return Err(AppError::RefusedArgument(text));
            }
            return Ok(running);
        }
        Err(AppError::Busy(format!("server {server} gets too many jobs")))
    }

    /// The open job of a kind on a server.
    async fn open_of(&self, kind: &Kind, server: ServerUuid) -> Result<Option<Uuid>, AppError> {
        let id = format!("{server}/{}", kind.name);
        Ok(GUARDS.get(&self.ctx, id).await?.map(|held| held.value))
    }

    fn new_record(
        &self,
        kind: &Kind,
        server: ServerUuid,
        params: JobParams,
        caller: &Caller,
    ) -> JobRecord {
        let steps = |steps: &[kind::Step]| {
            let step = |step: &kind::Step| StepRecord {
                name: step.name.to_owned(),
                ..StepRecord::default()
            };
            steps.iter().map(step).collect()
        };
        JobRecord {
            uuid: self.ctx.mint_id(),
            name: kind.name.to_owned(),
            execution: Execution::Queued,
            server_uuid: server,
            params,
            req_id: caller.req_id.clone(),
            created_at: iso(self.ctx.parts.clock.wall()),
            started: None,
            finished_at: None,
            elapsed_ms: 0,
            chain: steps(kind.chain),
            on_error: steps(kind.on_error),
            claim: None,
            ticket_uuid: None,
        }
    }

    fn claim(&self) -> Claim {
        Claim { instance: self.ctx.parts.instance.clone(), lease: *self.ctx.lease.lock() }
    }
}

/// The first step of every kind: the server is still there.
fn validate_params(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let known = ctx.jobs.fleet.with(ctx.server(), |entry| entry.record.is_some());
        match known {
            Some(true) => Ok(()),
            _ => Err(AppError::ServerNotFound(ctx.server()).into()),
        }
    })
}
