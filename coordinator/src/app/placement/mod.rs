//! Placement: where VMs go, what that promises them, and creating them there.
//!
//! `ask` reads what a client wants, `flow` decides and promises, `turns` has it do so for one
//! question at a time, `decide` answers, `create` makes VMs, `at_end` says what the end of a task
//! changes, `promises` holds what is promised and not yet reported, `reserve` ends reservations,
//! `peers` keeps coordinators from taking the same room, `allocator` is the allocator's fleet,
//! `intake` keeps it in step, `search` looks for what would help, `planning` answers planners,
//! `machine` says what a VM that is made here takes, `names` that no owner gets two VMs of one name.

mod allocator;
mod ask;
mod at_end;
mod chosen;
mod create;
mod decide;
mod flow;
mod intake;
mod machine;
mod names;
mod peers;
mod planning;
mod promises;
mod reserve;
mod search;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::threads::compute;
use muster_shared::vm::VmSpec;
use serde_json::{Value, json};

pub use ask::Ask;
pub use decide::Decided;

use super::context::Context;
use super::decisions::Decisions;
use super::error::AppError;
use super::fleet::{Entry, Fleet};
use super::packages::Packages;
use super::tasks::Tasks;
use super::tickets::Tickets;
use crate::agents::Agents;
use crate::alloc::{self, Detail, Outcome, Request, Snapshot, Unreserved};
use crate::store::Follow;
use flow::{Question, Wanted};
use intake::SharedIntake;
use names::Names;
use promises::Promises;
use search::Searches;
use turns::Turns;

/// Placement; see the module.
#[derive(Debug)]
pub struct Placement {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    fleet: Arc<Fleet>,
    tickets: Arc<Tickets>,
    tasks: Arc<Tasks>,
    decisions: Arc<Decisions>,
    packages: Arc<Packages>,
    pub(crate) promises: Arc<Promises>,
    intake: SharedIntake,
    turns: Turns,
    searches: Searches,
    names: Names,
}

impl Placement {
    /// Without promises.
    pub(crate) fn new(
        ctx: Arc<Context>,
        agents: Arc<Agents>,
        fleet: Arc<Fleet>,
        tickets: Arc<Tickets>,
        tasks: Arc<Tasks>,
        decisions: Arc<Decisions>,
        packages: Arc<Packages>,
    ) -> Arc<Self> {
        let (config, clock) = (&ctx.config.allocation, Arc::clone(&ctx.parts.clock));
        let promises = Promises::new(config, &ctx.parts.instance, Arc::clone(&fleet), clock);
        let (promises, intake) = (Arc::new(promises), SharedIntake::default());
        let searches = Searches::new();
        let (turns, names) = (Turns::default(), Names::default());
        Arc::new(Self {
            ctx,
            agents,
            fleet,
            tickets,
            tasks,
            decisions,
            packages,
            promises,
            intake,
            turns,
            searches,
            names,
        })
    }

    /// What the store's feed tells of promises.
    pub(crate) fn follower(&self) -> Arc<dyn Follow> {
        Arc::clone(&self.promises) as Arc<dyn Follow>
    }

    /// The allocator's view of the fleet as it is now, with all that is promised.
    fn snapshot(&self) -> Arc<Snapshot> {
        self.current().allocator.fleet.snapshot()
    }

    /// What is left of a server that could get a VM; `None` for others.
    pub(super) fn capacity_of(&self, server: ServerUuid, entry: &Entry) -> Option<Unreserved> {
        let set_up = entry.record.as_ref()?.value.setup;
        if !set_up || entry.stored_status() != "running" {
            return None;
        }
        let name = server.into();
        let snapshot = self.snapshot();
        if snapshot.fault(&name).is_some() { None } else { snapshot.unreserved_reported(&name) }
    }

    /// What new VMs can get on all servers that take any, together; what one of them has promised
    /// beyond its room does not lessen that of another.
    pub(super) fn room(&self) -> Unreserved {
        let snapshot = self.snapshot();
        let mut room = Unreserved::default();
        self.fleet.for_each(|server, entry| {
            let takes =
                entry.record.as_ref().is_some_and(|it| it.value.setup && !it.value.reserved);
            let name = server.into();
            if !takes || entry.stored_status() != "running" || snapshot.fault(&name).is_some() {
                return;
            }
            if let Some(left) = snapshot.unreserved_reported(&name) {
                planning::add(&mut room, left);
            }
        });
        room
    }

    /// What is asked of the allocator for a VM that this coordinator creates, of a package or
    /// none; not on the servers of `exclude`.
    fn question_of_create(
        &self,
        vm: VmUuid,
        (spec, package): (&VmSpec, Option<&Object>),
        exclude: &BTreeSet<ServerUuid>,
    ) -> Result<Question, AppError> {
        let mut body = machine::request(spec, package);
        if !exclude.is_empty() {
            let mut left = self.fleet.registered();
            left.retain(|server| !exclude.contains(server));
            body.set("servers", json!(left));
        }
        let request = parse(&body)?;
        let extra = Arc::new(alloc::Extra::of_new_vm(spec));
        let wanted = Wanted { vm, body, request, extra };
        let policy = Arc::clone(&self.ctx.config.allocation.placing);
        Ok(Question { ask: Ask::default(), policy, vms: vec![wanted], making: true })
    }

    /// `POST /capacity`: what servers have left.
    ///
    /// # Errors
    /// [`AppError::Invalid`].
    pub async fn capacity(&self, body: &Object) -> Result<Value, AppError> {
        let servers = alloc::parse_capacity(body.as_map()).map_err(invalid)?;
        let snapshot = self.snapshot();
        let policy = Arc::clone(&self.ctx.config.allocation.policy);
        let answer = move || {
            let found = alloc::capacity(&snapshot, servers.as_deref(), &policy);
            let mut answer = json!({ "capacities": found.capacities_json() });
            if !found.errors.is_empty() {
                answer["errors"] = Value::Object(found.errors);
            }
            answer
        };
        Ok(compute(&*self.ctx.parts.threads, answer).await)
    }
}

fn parse(body: &Object) -> Result<Request, AppError> {
    Request::parse(body.as_map()).map_err(invalid)
}

fn invalid(errors: Vec<alloc::FieldError>) -> AppError {
    AppError::Invalid(errors)
}

fn no_server(outcome: &Outcome) -> AppError {
    AppError::NoServer {
        reason: outcome.failure(),
        volumes: outcome.failed_for_volumes(),
        beside: Object::from_iter([("steps", outcome.steps_json(Detail::Full))]),
    }
}
