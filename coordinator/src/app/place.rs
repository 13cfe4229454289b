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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::allocation::AskedBy;
use muster_shared::api::task::{Refusal, TaskStatus};
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::vm::VmSpec;
use muster_shared::wire::TaskError;
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use serde::Serialize;

use super::allocate::{Decision, Flow, Question, Wanted, no_server, taken_down};
use super::error::AppError;
use super::placing::{Place, PlaceRecord, PlaceState, counts};
use super::tasks::{NewTask, Open, TaskRecord, is_conflict};
use super::vm_request::build;
use super::{App, Caller, keys};
use crate::alloc;
use crate::store::{Expect, Write};

/// Races for a VM's place before a request fails.
const CREATE_ATTEMPTS: usize = 5;

/// The answer to `POST /vms`.
#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    /// The VM to be.
    pub vm_uuid: VmUuid,
    /// The task that makes it.
    pub id: TaskId,
    /// Where.
    pub server_uuid: ServerUuid,
}

impl App {
    /// Places and creates a VM.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::VmExists`], [`AppError::NoServer`], [`AppError::Busy`],
    /// [`AppError::Store`].
    pub async fn vm_place(
        self: &Arc<Self>,
        body: &Object,
        caller: &Caller,
    ) -> Result<Placed, AppError> {
        let mut spec = build(body)?;
        let vm = *spec.uuid.get_or_insert_with(|| VmUuid(self.parts.entropy.uuid()));
        let params = Object::of(&spec);
        let expect = self.check_vm_is_new(vm).await?;
        let mut exclude = BTreeSet::new();
        let mut flow = Flow::new(self, self.question_of_create(vm, &spec, &exclude)?);
        loop {
            let decision = flow.decide().await?;
            let server = chosen_server(&decision)?;
            let new = create_task(server, vm, &params, caller);
            match self.create_commit(&flow.question, decision, new, expect).await {
                Ok(id) => return Ok(Placed { vm_uuid: vm, id, server_uuid: server }),
                Err(AppError::Busy(reason)) => {
                    tracing::info!(server_uuid = %server, reason, "placing elsewhere");
                    exclude.insert(server);
                    flow.ask(self.question_of_create(vm, &spec, &exclude)?);
                }
                Err(error) => match flow.again(error).await {
                    Err(AppError::Store(error)) if is_conflict(&error) => {
                        return Err(AppError::VmExists(vm));
                    }
                    other => other?,
                },
            }
        }
    }

    /// `POST /servers/:uuid/vms`: makes a VM on a server of the client's choice. Whether its uuid
    /// is new is for the agent to say.
    ///
    /// # Errors
    /// As [`App::task_create`].
    pub async fn vm_create_on(
        self: &Arc<Self>,
        server: ServerUuid,
        vm: VmUuid,
        params: Object,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        for _ in 0..CREATE_ATTEMPTS {
            // Whether it exists on that server, its agent knows best.
            let elsewhere = self.fleet.vm(vm).is_some_and(|(home, _)| home != server);
            let made_on = self.placing.lock().made_on(vm);
            if elsewhere || made_on.is_some_and(|made_on| made_on != server) {
                return Err(AppError::VmExists(vm));
            }
            let counts = made_on.is_none() && self.fleet.vm(vm).is_none();
            match self.vm_try_create_on(server, vm, &params, caller, counts).await {
                Err(AppError::Store(error)) if is_conflict(&error) => self.feed.catch_up().await?,
                other => return other,
            }
        }
        Err(AppError::Busy(format!("VM {vm} changes too fast")))
    }

    async fn vm_try_create_on(
        self: &Arc<Self>,
        server: ServerUuid,
        vm: VmUuid,
        params: &Object,
        caller: &Caller,
        counts: bool,
    ) -> Result<TaskId, AppError> {
        self.require_capability(server, "machine_create")?;
        let _place = self.reserve_task(server)?;
        let record = self.task_record(create_task(server, vm, params, caller)).await?;
        let mut writes = self.task_writes(&record);
        let mut promised = None;
        if counts {
            let extra = alloc::Extra::of_new_vm(&VmSpec::read(params.clone().into()).0);
            writes.push(self.place_put(&record, vm, Some(extra.clone())));
            writes.extend(self.placing.lock().peers.mark());
            promised = Some(self.placing.promise(vm, server, extra, true));
        }
        self.task_commit(&record, writes).await?;
        drop(promised);
        Ok(record.id)
    }

    async fn create_commit(
        self: &Arc<Self>,
        question: &Question,
        mut decision: Decision,
        new: NewTask,
        expect: Expect,
    ) -> Result<TaskId, AppError> {
        let Wanted { vm, body, extra, .. } = &question.vms[0];
        let outcome = &decision.outcomes[0];
        let policy = &question.policy;
        let mut kept = taken_down(self, AskedBy::Vms, body, policy, outcome);
        kept.decision.reserved = true;
        kept.recent = decision.recent.clone();
        let _place = self.reserve_task(new.server)?;
        let mut record = self.task_record(new).await?;
        record.refusals = Some(Vec::new());
        let mut writes = self.task_writes(&record);
        let place = self.place_record(&record, *vm, Some(extra.clone()));
        writes.push(Write::put(keys::place(*vm), expect, keys::encode(&place)));
        writes.push(self.allocation_write(&mut kept, outcome, policy).await?);
        writes.append(&mut decision.guard);
        self.task_commit(&record, writes).await?;
        self.allocation_made(&kept, outcome, policy);
        Ok(record.id)
    }

    /// The write that makes a place; at its revision, if the VM had one before.
    fn place_put(&self, record: &TaskRecord, vm: VmUuid, extra: Option<alloc::Extra>) -> Write {
        let known = self.placing.lock().place(vm).map(|place| place.revision);
        let expect = known.map_or(Expect::Absent, Expect::At);
        let place = self.place_record(record, vm, extra);
        Write::put(keys::place(vm), expect, keys::encode(&place))
    }

    fn place_record(
        &self,
        record: &TaskRecord,
        vm: VmUuid,
        promise: Option<alloc::Extra>,
    ) -> PlaceRecord {
        let creating = record.status == TaskStatus::Active;
        PlaceRecord {
            vm_uuid: vm,
            task_id: record.id.clone(),
            server_uuid: record.server_uuid,
            state: if creating { PlaceState::Creating } else { PlaceState::Done },
            at: self.parts.clock.wall(),
            by: self.parts.instance.clone(),
            promise,
        }
    }

    /// Refuses a uuid that is in use; else says what the reservation must find in its place.
    async fn check_vm_is_new(&self, vm: VmUuid) -> Result<Expect, AppError> {
        if self.fleet.vm(vm).is_some() || self.placing.lock().made_on(vm).is_some() {
            return Err(AppError::VmExists(vm));
        }
        let Some(stored) = self.parts.store.get(&keys::place(vm)).await? else {
            return Ok(Expect::Absent);
        };
        let place: PlaceRecord = keys::decode(&stored)?;
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
        let (spec, _) = VmSpec::read(self.load_params(&old.params).await?.into());
        let mut exclude: BTreeSet<_> = refusals.iter().map(|r| r.server_uuid).collect();
        let mut flow = Flow::new(self, self.question_of_create(vm, &spec, &exclude)?);
        loop {
            let decision = flow.decide().await?;
            let Ok(server) = chosen_server(&decision) else { return Ok(false) };
            let moved = TaskRecord {
                server_uuid: server,
                sent: self.agents.is_connected(server),
                accepted: false,
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
                    flow.ask(self.question_of_create(vm, &spec, &exclude)?);
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
        let _place = self.reserve_task(moved.server_uuid)?;
        let mut writes = vec![
            Write::put(keys::task(&moved.id), Expect::At(open.revision), keys::encode(moved)),
            Write::delete(keys::open(old.server_uuid, &old.id), Expect::Any),
            Write::put(keys::open(moved.server_uuid, &moved.id), Expect::Any, "{}"),
            self.place_put(moved, vm, extra),
        ];
        writes.append(&mut decision.guard);
        self.feed.commit(writes).await?;
        Ok(())
    }

    /// What the end of a task changes about the place of its VM; part of the same commit.
    pub(super) fn place_writes(&self, ended: &TaskRecord) -> Option<Write> {
        let vm = ended.vm_uuid?;
        let placing = self.placing.lock();
        let place = placing.place(vm)?;
        let at = Expect::At(place.revision);
        if is_destroyed(ended) {
            return Some(Write::delete(keys::place(vm), at));
        }
        if place.record.task_id != ended.id {
            return None;
        }
        Some(match ended.status {
            TaskStatus::Failure => Write::delete(keys::place(vm), at),
            TaskStatus::Active | TaskStatus::Complete => {
                let record = self.place_record(ended, vm, place.record.promise.clone());
                Write::put(keys::place(vm), at, keys::encode(&record))
            }
        })
    }

    /// What the end of a task makes of its VM's record: who sees the end sees this, too, and need
    /// not wait for the next report. Part of the same commit.
    pub(super) fn vm_of_result(&self, ended: &TaskRecord) -> Option<Write> {
        let server = ended.server_uuid;
        if let Some(vm) = ended.vm_uuid.filter(|_| is_destroyed(ended)) {
            self.fleet.report_vms(server, BTreeMap::from([(vm, None)]));
            return self.fleet.unsaved_vm(server, vm);
        }
        let mut report = told_report(ended)?;
        let vm = report.vm.uuid;
        let home = self.fleet.vm(vm).map(|(home, _)| home);
        let is_news = match self.fleet.reported_vm(server, vm) {
            Some(known) => {
                // Not among the members of the object.
                let VmIndex { docker_id, image_uuid, .. } = &known.index;
                report.index.docker_id = report.index.docker_id.or_else(|| docker_id.clone());
                report.index.image_uuid = report.index.image_uuid.or_else(|| image_uuid.clone());
                report.vm.last_modified > known.vm.last_modified
            }
            None if home.is_some() => false,
            None => ended.task == "machine_create" && self.is_newer_than_reports(server, &report),
        };
        if is_news {
            self.fleet.report_vms(server, BTreeMap::from([(vm, Some(report))]));
        }
        self.fleet.unsaved_vm(server, vm)
    }

    /// Whether the agent looked at its VMs before this one became what it is. A result that comes
    /// late must not bring back a VM that was destroyed since.
    fn is_newer_than_reports(&self, server: ServerUuid, made: &VmReport) -> bool {
        let reported_at = self.fleet.with(server, |entry| entry.reported_at.clone());
        // Both are of the agent's clock, in one format that sorts.
        reported_at.is_none_or(|reported_at| made.vm.last_modified > reported_at)
    }

    /// Deletes the places of VMs that are there for all to see, or that never came.
    pub(super) async fn places_sweep(&self) -> Result<(), AppError> {
        let places = self.placing.lock().done();
        let over = |place: &Place| {
            let PlaceRecord { vm_uuid, server_uuid, .. } = place.record;
            let heard = self.fleet.with(server_uuid, |entry| !entry.reported_at.is_empty());
            let seen = self.fleet.vm(vm_uuid).is_some();
            seen || (place.over && heard.unwrap_or(true))
        };
        for place in places.into_iter().filter(over) {
            let key = keys::place(place.record.vm_uuid);
            let delete = Write::delete(key, Expect::At(place.revision));
            match self.feed.commit(vec![delete]).await {
                Err(error) if !is_conflict(&error) => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the VM is reported, but does not count yet.
    pub(super) fn is_unfinished(&self, vm: VmUuid) -> bool {
        self.fleet.vm(vm).is_some_and(|(_, report)| !counts(&report))
    }
}

/// Whether the task has destroyed its VM.
fn is_destroyed(ended: &TaskRecord) -> bool {
    ended.task == "machine_destroy" && ended.status == TaskStatus::Complete
}

/// The task that makes a VM.
fn create_task(server: ServerUuid, vm: VmUuid, params: &Object, caller: &Caller) -> NewTask {
    NewTask {
        server,
        task: "machine_create".to_owned(),
        params: params.clone(),
        caller: caller.clone(),
        vm: Some(vm),
    }
}

/// The server of a decision about one VM.
fn chosen_server(decision: &Decision) -> Result<ServerUuid, AppError> {
    match decision.promises.first() {
        Some((_, server, _)) => Ok(*server),
        None => Err(no_server(&decision.outcomes[0])),
    }
}

/// The VM object that a task returned, as a report; `None` for one that reports leave out.
fn told_report(ended: &TaskRecord) -> Option<VmReport> {
    if ended.status != TaskStatus::Complete {
        return None;
    }
    let vm = ended.history.first()?.event.get("vm")?;
    if vm.get("do_not_inventory").is_some_and(|hidden| *hidden == true) {
        return None;
    }
    let status: VmStatus = serde_json::from_value(vm.clone()).ok()?;
    let index: VmIndex = serde_json::from_value(vm.clone()).unwrap_or_default();
    Some(VmReport { vm: status, index })
}
