//! `POST /vms`: places and creates a VM in one durable operation.
//!
//! ```text
//! choose a server ──► one commit: reservation + task + its place in the queue ──► the task path
//!      ▲                                                             │
//!      └── refused before anything was made: same task, other server ┘
//! ```
//!
//! The reservation `place/<vm>` and the task are made in the same commit, so a crash leaves both
//! or none, and the task path resumes both. Capacity that is promised but not in any report yet is
//! counted from the moment a server is chosen.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::allocation::AskedBy;
use muster_shared::api::task::{Refusal, TaskStatus};
use muster_shared::api::vm::VmPlaced;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::vm::{CONTAINER_BRANDS, VmSpec};
use muster_shared::wire::TaskError;
use serde_json::{Value, json};

use super::flow::{Decision, Flow, Question, Wanted};
use super::promises::{PLACES, PlaceRecord};
use super::{Placement, no_server};
use crate::alloc;
use crate::app::caller::Caller;
use crate::app::decisions::DecisionRecord;
use crate::app::error::AppError;
use crate::app::fleet::PlaceState;
use crate::app::keys;
use crate::app::packages::for_allocator;
use crate::app::tasks::{NewTask, Open, TASKS, TaskRecord};
use crate::app::vm_request::build;
use crate::store::{Expect, Write};

/// The kinds of task that make a VM.
const MACHINE_CREATE: &str = "machine_create";
const MACHINE_IMPORT: &str = "machine_import";

/// Whether tasks of this kind make a VM.
pub(super) fn makes_vm(task: &str) -> bool {
    task == MACHINE_CREATE || task == MACHINE_IMPORT
}

impl Placement {
    /// Places and creates a VM.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::VmExists`], [`AppError::NoServer`], [`AppError::Busy`],
    /// [`AppError::Store`].
    pub async fn create(
        self: &Arc<Self>,
        body: &Object,
        caller: &Caller,
    ) -> Result<VmPlaced, AppError> {
        let mut body = body.clone();
        let package = self.packages.complete(&mut body).await?;
        let package = package.as_ref().map(for_allocator);
        self.place_new(build(&body)?, package, MACHINE_CREATE, None, caller).await
    }

    /// Places a VM and has it made, to be filled with what another one had: an import. Its disks
    /// are blank, and `import` says what is to come.
    ///
    /// # Errors
    /// As [`Placement::create`]; with `server`, as [`Placement::create_on`].
    pub async fn import(
        self: &Arc<Self>,
        server: Option<ServerUuid>,
        vm: Object,
        import: Value,
        caller: &Caller,
    ) -> Result<VmPlaced, AppError> {
        let (mut spec, errors) = VmSpec::read(vm.into());
        if !errors.is_empty() {
            return Err(AppError::Invalid(errors));
        }
        let is_container = spec.brand.as_deref().is_some_and(|it| CONTAINER_BRANDS.contains(&it));
        if !spec.is_hvm() && !is_container {
            let text = "only machines with disks and containers are imported";
            return Err(AppError::invalid("vm.brand", text));
        }
        spec.cap_cpu();
        let Some(server) = server else {
            return self.place_new(spec, None, MACHINE_IMPORT, Some(import), caller).await;
        };
        let vm = *spec.uuid.get_or_insert_with(|| VmUuid(self.ctx.parts.entropy.uuid()));
        // Whoever names the server has to see a name that is taken as well.
        let _named = self.name(&spec)?;
        let mut params = Object::of(&spec);
        params.set("import", import);
        let id = self.make_on(server, vm, params, MACHINE_IMPORT, caller).await?;
        Ok(VmPlaced { vm_uuid: vm, id, server_uuid: server })
    }

    async fn place_new(
        self: &Arc<Self>,
        mut spec: VmSpec,
        package: Option<Object>,
        task: &'static str,
        import: Option<Value>,
        caller: &Caller,
    ) -> Result<VmPlaced, AppError> {
        let vm = *spec.uuid.get_or_insert_with(|| VmUuid(self.ctx.parts.entropy.uuid()));
        let mut params = Object::of(&spec);
        if let Some(import) = import {
            params.set("import", import);
        }
        let expect = self.check_vm_is_new(vm).await?;
        let _named = self.name(&spec)?;
        let mut exclude = BTreeSet::new();
        let sized = (&spec, package.as_ref());
        let mut flow = Flow::new(self, self.question_of_create(vm, sized, &exclude)?);
        loop {
            let decision = flow.decide().await?;
            let Some(server) = chosen_server(&decision) else {
                return Err(self.refused(&flow.question, decision).await?);
            };
            let new = make_task(task, server, vm, &params, caller);
            let package = package.clone();
            match self.create_commit(&flow.question, decision, new, package, expect).await {
                Ok(id) => return Ok(VmPlaced { vm_uuid: vm, id, server_uuid: server }),
                Err(AppError::Busy(reason)) => {
                    tracing::info!(server_uuid = %server, reason, "placing elsewhere");
                    exclude.insert(server);
                    flow.ask(self.question_of_create(vm, sized, &exclude)?);
                }
                Err(error) => match flow.again(error).await {
                    Err(AppError::Store(error)) if error.is_conflict() => {
                        return Err(AppError::VmExists(vm));
                    }
                    other => other?,
                },
            }
        }
    }

    /// `POST /servers/:uuid/vms`: makes a VM on a server of the client's choice. Whether its uuid
    /// is new is for the agent to say, unless another server has the VM: then the request has to
    /// say that it moves, by `migrating` or by a ticket for that VM.
    ///
    /// # Errors
    /// As [`Tasks::create`]; [`AppError::Invalid`], [`AppError::VmExists`].
    pub async fn create_on(
        self: &Arc<Self>,
        server: ServerUuid,
        vm: VmUuid,
        mut params: Object,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        self.packages.complete(&mut params).await?;
        self.make_on(server, vm, params, MACHINE_CREATE, caller).await
    }

    async fn make_on(
        self: &Arc<Self>,
        server: ServerUuid,
        vm: VmUuid,
        params: Object,
        task: &'static str,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        // A migration makes its target under the name of its source.
        let moves = params.get("migrating") == Some(&Value::Bool(true))
            || self.tickets.is_about_vm(caller, vm).await?;
        let attempt = || async {
            // Whether it exists on that server, its agent knows best.
            let elsewhere = self.fleet.vm(vm).is_some_and(|(home, _)| home != server);
            let made_on = self.promises.lock().made_on(vm);
            if !moves && (elsewhere || made_on.is_some_and(|made_on| made_on != server)) {
                return Err(AppError::VmExists(vm));
            }
            let counts = made_on.is_none() && self.fleet.vm(vm).is_none();
            let new = make_task(task, server, vm, &params, caller);
            self.try_create_on(new, vm, counts).await
        };
        self.ctx.retry(format!("VM {vm}"), attempt).await
    }

    async fn try_create_on(
        self: &Arc<Self>,
        new: NewTask,
        vm: VmUuid,
        counts: bool,
    ) -> Result<TaskId, AppError> {
        let server = new.server;
        self.tasks.require_capability(server, &new.task)?;
        let _place = self.tasks.reserve(server)?;
        let spec = VmSpec::read(new.params.clone().into()).0;
        let record = self.tasks.record(new).await?;
        let mut writes = self.tasks.writes(&record);
        let mut promised = None;
        if counts {
            let extra = Arc::new(alloc::Extra::of_new_vm(&spec));
            writes.push(self.place_put(&record, vm, Some(extra.clone())));
            writes.extend(self.promises.lock().peers.mark());
            promised = Some(self.promises.promise(vm, server, extra, true));
        }
        self.tasks.commit(&record, writes).await?;
        drop(promised);
        Ok(record.id)
    }

    async fn create_commit(
        self: &Arc<Self>,
        question: &Question,
        mut decision: Decision,
        new: NewTask,
        package: Option<Object>,
        expect: Expect,
    ) -> Result<TaskId, AppError> {
        let Wanted { vm, body, extra, .. } = &question.vms[0];
        let outcome = &decision.outcomes[0];
        let policy = &question.policy;
        let mut kept = DecisionRecord::new(&self.ctx, AskedBy::Vms, body, policy, outcome);
        kept.decision.reserved = true;
        kept.recent = decision.recent.clone();
        let _place = self.tasks.reserve(new.server)?;
        let mut record = self.tasks.record(new).await?;
        record.refusals = Some(Vec::new());
        record.package = package;
        let mut writes = self.tasks.writes(&record);
        let place = self.place_record(&record, *vm, Some(extra.clone()));
        writes.push(PLACES.put(vm, expect, &place));
        writes.push(self.decisions.write(&mut kept, outcome, policy).await?);
        writes.append(&mut decision.guard);
        self.tasks.commit(&record, writes).await?;
        self.decisions.made(&kept, outcome, policy);
        Ok(record.id)
    }

    /// No server fits: keeps that as a decision, and says what would help.
    async fn refused(
        &self,
        question: &Arc<Question>,
        mut decision: Decision,
    ) -> Result<AppError, AppError> {
        let (outcome, policy) = (&decision.outcomes[0], &question.policy);
        let mut kept =
            DecisionRecord::new(&self.ctx, AskedBy::Vms, &question.vms[0].body, policy, outcome);
        kept.recent = decision.recent.clone();
        let write = self.decisions.write(&mut kept, outcome, policy).await?;
        if let Err(error) = self.ctx.feed.commit(vec![write]).await {
            self.decisions.forget(&kept).await;
            return Err(error.into());
        }
        self.decisions.made(&kept, outcome, policy);
        let mut members = Object::from_iter([("id", json!(kept.decision.id))]);
        if let Some(fleet) = decision.asked.take() {
            let options = self.decisions.options(Some(outcome.seed), &decision.recent);
            let least = self.least_changes(fleet, question, 0, options).await;
            if !least.suggestions.is_empty() {
                members.set("least_changes", json!(least.suggestions));
            }
            if least.cut {
                members.set("least_changes_cut", json!(true));
            }
        }
        let mut error = no_server(outcome);
        if let AppError::NoServer { beside, .. } = &mut error {
            // The log shows how a refusal begins.
            members.extend(beside.iter().map(|(name, value)| (name.clone(), value.clone())));
            *beside = members;
        }
        Ok(error)
    }

    /// The write that makes a place; at its revision, if the VM had one before.
    fn place_put(
        &self,
        record: &TaskRecord,
        vm: VmUuid,
        extra: Option<Arc<alloc::Extra>>,
    ) -> Write {
        let known = self.promises.lock().place(vm).cloned();
        let expect = known.as_ref().map_or(Expect::Absent, |known| Expect::At(known.revision));
        let mut place = self.place_record(record, vm, extra);
        place.unknown = known.map(|known| known.record.unknown).unwrap_or_default();
        PLACES.put(vm, expect, &place)
    }

    pub(super) fn place_record(
        &self,
        record: &TaskRecord,
        vm: VmUuid,
        promise: Option<Arc<alloc::Extra>>,
    ) -> PlaceRecord {
        let creating = record.status == TaskStatus::Active;
        PlaceRecord {
            vm_uuid: vm,
            task_id: record.id.clone(),
            server_uuid: record.server_uuid,
            state: if creating { PlaceState::Creating } else { PlaceState::Done },
            at: self.ctx.parts.clock.wall(),
            by: self.ctx.parts.instance.clone(),
            promise,
            unknown: Object::new(),
        }
    }

    /// Refuses a uuid that is in use; else says what the reservation must find in its place.
    async fn check_vm_is_new(&self, vm: VmUuid) -> Result<Expect, AppError> {
        if self.fleet.vm(vm).is_some() || self.promises.lock().made_on(vm).is_some() {
            return Err(AppError::VmExists(vm));
        }
        let Some(stored) = PLACES.get(&self.ctx, vm).await? else { return Ok(Expect::Absent) };
        let place = stored.value;
        // Right after a start the report that would show the VM may not have come yet.
        let heard = self.fleet.with(place.server_uuid, |entry| !entry.reported_at.is_empty());
        if place.state == PlaceState::Creating || !heard.unwrap_or(true) {
            return Err(AppError::VmExists(vm));
        }
        Ok(Expect::At(stored.revision))
    }

    /// A placed VM was refused before anything was made: takes its task to another server. `false`
    /// when there is none.
    pub(super) async fn place_again(
        self: &Arc<Self>,
        open: &Open,
        error: &TaskError,
    ) -> Result<bool, AppError> {
        let old = &open.record;
        let Some(vm) = old.vm_uuid else { return Ok(false) };
        let mut refusals = old.refusals.clone().unwrap_or_default();
        refusals.push(Refusal {
            server_uuid: old.server_uuid,
            code: error.code.clone(),
            message: error.message.clone(),
        });
        let (spec, _) = VmSpec::read(self.tasks.load_params(&old.params).await?.into());
        let mut exclude: BTreeSet<_> = refusals.iter().map(|r| r.server_uuid).collect();
        let sized = (&spec, old.package.as_ref());
        let mut flow = Flow::new(self, self.question_of_create(vm, sized, &exclude)?);
        loop {
            let decision = flow.decide().await?;
            let Some(server) = chosen_server(&decision) else { return Ok(false) };
            let moved = TaskRecord {
                server_uuid: server,
                sent: self.agents.is_connected(server),
                accepted: false,
                caller: None,
                refusals: Some(refusals.clone()),
                ..(**old).clone()
            };
            match self.place_move(open, &moved, vm, decision).await {
                Ok(()) => {
                    tracing::info!(task_id = %old.id, vm_uuid = %vm, from = %old.server_uuid,
                        to = %server, code = %error.code, "placed again");
                    return Ok(true);
                }
                Err(AppError::Busy(_)) => {
                    exclude.insert(server);
                    flow.ask(self.question_of_create(vm, sized, &exclude)?);
                }
                Err(error) => flow.again(error).await?,
            }
        }
    }

    async fn place_move(
        self: &Arc<Self>,
        open: &Open,
        moved: &TaskRecord,
        vm: VmUuid,
        mut decision: Decision,
    ) -> Result<(), AppError> {
        let extra = decision.promises.first().map(|(_, _, extra)| extra.clone());
        let old = &open.record;
        let _place = self.tasks.reserve(moved.server_uuid)?;
        let mut writes = vec![
            TASKS.put(&moved.id, Expect::At(open.revision), moved),
            Write::delete(keys::open(old.server_uuid, &old.id), Expect::Any),
            Write::put(keys::open(moved.server_uuid, &moved.id), Expect::Any, "{}"),
            self.place_put(moved, vm, extra),
        ];
        writes.append(&mut decision.guard);
        self.ctx.feed.commit(writes).await?;
        Ok(())
    }
}

/// The task that makes a VM.
fn make_task(
    task: &str,
    server: ServerUuid,
    vm: VmUuid,
    params: &Object,
    caller: &Caller,
) -> NewTask {
    NewTask {
        server,
        task: task.to_owned(),
        params: params.clone(),
        caller: caller.clone(),
        vm: Some(vm),
    }
}

/// The server of a decision about one VM.
fn chosen_server(decision: &Decision) -> Option<ServerUuid> {
    decision.promises.first().map(|(_, server, _)| *server)
}
