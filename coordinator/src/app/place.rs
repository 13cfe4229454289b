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
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::TaskError;
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::allocate::{ATTEMPTS, Chosen, overtaken, promise_of};
use super::error::AppError;
use super::placing::{PlaceRecord, PlaceState, UNSEEN};
use super::tasks::{NewTask, Open, Refusal, TaskRecord, TaskStatus, is_conflict};
use super::vm_request::{VmRequest, build};
use super::{App, Caller, keys};
use crate::store::{Expect, Revision, Write};

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
        body: &Map<String, Value>,
        caller: &Caller,
    ) -> Result<Placed, AppError> {
        let VmRequest { uuid, mut params } = build(body)?;
        let vm = uuid.unwrap_or_else(|| VmUuid(self.parts.entropy.uuid()));
        params.insert("uuid".to_owned(), json!(vm));
        let expect = self.check_vm_is_new(vm).await?;
        let mut exclude = BTreeSet::new();
        let mut attempts = ATTEMPTS;
        loop {
            let mut chosen = self.choose_and_promise(vm, &params, &exclude)?;
            let server = chosen.server;
            let placed = self.place_on(&mut chosen, vm, &params, caller, expect).await;
            match placed {
                Ok(placed) => return Ok(placed),
                Err(AppError::Busy(reason)) => {
                    tracing::info!(server_uuid = %server, reason, "placing elsewhere");
                    self.unpromise(vm);
                    exclude.insert(server);
                }
                Err(AppError::Store(error)) if is_conflict(&error) => {
                    self.unpromise(vm);
                    let Some(key) = overtaken(&error).filter(|_| attempts > 0) else {
                        return Err(AppError::VmExists(vm));
                    };
                    attempts -= 1;
                    self.placing_catch_up(key).await?;
                }
                Err(error) => {
                    self.unpromise(vm);
                    return Err(error);
                }
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
        params: Map<String, Value>,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        // Whether it exists on that server, its agent knows best.
        let elsewhere = self.fleet.vm(vm).is_some_and(|(home, _)| home != server);
        if elsewhere || self.placing.lock().is_made_beside(vm, server) {
            return Err(AppError::VmExists(vm));
        }
        let id = self.task_create(server, "machine_create", params.clone(), caller).await?;
        // Not promised when the task has ended meanwhile.
        if self.tasks.get(&id).is_some() && self.fleet.vm(vm).is_none() {
            self.promise(vm, server, &params);
        }
        Ok(id)
    }

    async fn place_on(
        self: &Arc<Self>,
        chosen: &mut Chosen,
        vm: VmUuid,
        params: &Map<String, Value>,
        caller: &Caller,
        expect: Expect,
    ) -> Result<Placed, AppError> {
        let Chosen { server, record: decision, outcome, policy, guard, .. } = chosen;
        let server = *server;
        let _place = self.reserve_task(server)?;
        let new = NewTask {
            server,
            task: "machine_create".to_owned(),
            params: params.clone(),
            caller: caller.clone(),
            vm: Some(vm),
        };
        let mut record = self.task_record(new).await?;
        record.refusals = Some(Vec::new());
        let mut writes = self.task_writes(&record);
        writes.push(Write::put(keys::place(vm), expect, self.place_record(&record, vm)));
        writes.push(self.allocation_write(decision, outcome, policy).await?);
        writes.append(guard);
        let revision = self.task_commit(&record, writes).await?;
        self.allocation_made(decision, outcome, policy);
        let id = self.task_stored(record, revision).await;
        Ok(Placed { vm_uuid: vm, id, server_uuid: server })
    }

    fn place_record(&self, record: &TaskRecord, vm: VmUuid) -> bytes::Bytes {
        let promise = self.placing.lock().allocator.promised(vm);
        let creating = record.status == TaskStatus::Active;
        keys::encode(&PlaceRecord {
            vm_uuid: vm,
            task_id: record.id.clone(),
            server_uuid: record.server_uuid,
            state: if creating { PlaceState::Creating } else { PlaceState::Done },
            at: self.parts.clock.wall(),
            by: self.parts.instance.clone(),
            promise,
        })
    }

    /// Refuses a uuid that is in use; else says what the reservation must find in its place.
    async fn check_vm_is_new(&self, vm: VmUuid) -> Result<Expect, AppError> {
        if self.fleet.vm(vm).is_some() || self.placing.lock().is_being_made(vm) {
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

    fn choose_and_promise(
        &self,
        vm: VmUuid,
        params: &Map<String, Value>,
        exclude: &BTreeSet<ServerUuid>,
    ) -> Result<Chosen, AppError> {
        let mut placing = self.placing.lock();
        if placing.is_being_made(vm) {
            return Err(AppError::VmExists(vm));
        }
        // The VM does not compete with what was reserved for it. If nothing is found, the
        // reservation has ended all the same: its VM was asked for and could not be made.
        placing.release(vm);
        let mut chosen = self.choose(&mut placing.allocator, params, exclude)?;
        placing.promise(vm, chosen.server, chosen.extra.clone());
        chosen.guard = placing.guard();
        Ok(chosen)
    }

    fn unpromise(&self, vm: VmUuid) {
        self.placing.lock().release(vm);
    }

    /// Counts a VM that a client creates on a server of its own choice.
    pub(crate) fn promise(&self, vm: VmUuid, server: ServerUuid, params: &Map<String, Value>) {
        let mut placing = self.placing.lock();
        if !placing.is_being_made(vm) {
            placing.promise(vm, server, promise_of(params));
        }
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
        let params = self.load_params(&old.params).await?;
        let mut exclude: BTreeSet<_> = refusals.iter().map(|r| r.server_uuid).collect();
        self.unpromise(vm);
        loop {
            let Chosen { server, guard, .. } = match self.choose_and_promise(vm, &params, &exclude)
            {
                Ok(chosen) => chosen,
                Err(AppError::NoServer { .. } | AppError::VmExists(_)) => return Ok(false),
                Err(error) => return Err(error),
            };
            let Ok(_place) = self.reserve_task(server) else {
                self.unpromise(vm);
                exclude.insert(server);
                continue;
            };
            let moved = TaskRecord {
                server_uuid: server,
                sent: self.agents.is_connected(server),
                accepted: false,
                refusals: Some(refusals.clone()),
                ..(**old).clone()
            };
            let revision = match self.place_move(open, &moved, vm, guard).await {
                Ok(revision) => revision,
                Err(AppError::Store(error)) => {
                    let Some(key) = overtaken(&error) else { return Err(error.into()) };
                    self.unpromise(vm);
                    self.placing_catch_up(key).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            tracing::info!(task_id = %old.id, vm_uuid = %vm, from = %old.server_uuid, to = %server,
                code = %error.code, "placed again");
            let id = moved.id.clone();
            self.tasks.replace(Arc::new(moved), revision);
            self.task_dispatch(&id).await;
            return Ok(true);
        }
    }

    async fn place_move(
        &self,
        open: &Open,
        moved: &TaskRecord,
        vm: VmUuid,
        guard: Vec<Write>,
    ) -> Result<Revision, AppError> {
        let old = &open.record;
        let mut writes = vec![
            Write::put(keys::task(&moved.id), Expect::At(open.revision), keys::encode(moved)),
            Write::delete(keys::open(old.server_uuid, &old.id), Expect::Any),
            Write::put(keys::open(moved.server_uuid, &moved.id), Expect::Any, "{}"),
            Write::put(keys::place(vm), Expect::Any, self.place_record(moved, vm)),
        ];
        writes.extend(guard);
        Ok(self.parts.store.commit(writes).await?)
    }

    /// What the end of a task changes about its reservation; part of the same commit.
    pub(super) fn place_writes(&self, ended: &TaskRecord) -> Option<Write> {
        let vm = ended.vm_uuid?;
        let key = keys::place(vm);
        if is_destroyed(ended) {
            return Some(Write::delete(key, Expect::Any));
        }
        ended.refusals.as_ref()?;
        Some(match ended.status {
            TaskStatus::Failure => Write::delete(key, Expect::Any),
            TaskStatus::Active | TaskStatus::Complete => {
                Write::put(key, Expect::Any, self.place_record(ended, vm))
            }
        })
    }

    /// A create ended: its promise goes, or stays until a report shows the VM. No report may ever
    /// show one that is destroyed at once.
    pub(super) fn place_ended(&self, ended: &TaskRecord) {
        if let Some(vm) = ended.vm_uuid.filter(|_| is_destroyed(ended)) {
            // The index need not wait for the next report.
            self.fleet.report_vms(ended.server_uuid, BTreeMap::from([(vm, None)]));
            self.vms_wake.notify_one();
            return self.placing.lock().destroyed(vm);
        }
        let Some(vm) = ended.vm_uuid.filter(|_| ended.task == "machine_create") else { return };
        if ended.status == TaskStatus::Failure {
            return self.unpromise(vm);
        }
        let now = self.parts.clock.monotonic();
        let mut placing = self.placing.lock();
        placing.made(vm, now);
        if ended.refusals.is_some() {
            placing.done.insert(vm, (ended.server_uuid, now));
        }
        drop(placing);
    }

    /// Who sees the end of a task sees what it made of its VM: the index does not wait for the
    /// next report. What a VM takes of its server is counted as reports tell it.
    pub(super) fn vm_of_result(&self, ended: &TaskRecord) {
        if ended.status != TaskStatus::Complete {
            return;
        }
        let told = ended.history.first().and_then(|entry| entry.get("event")?.get("vm"));
        let Some(mut report) = told.and_then(told_report) else { return };
        let (vm, server) = (report.vm.uuid, ended.server_uuid);
        let is_news = match self.fleet.vm(vm) {
            Some((at, known)) if at == server => {
                // Not among the members of the object.
                let VmIndex { docker_id, image_uuid, .. } = &known.index;
                report.index.docker_id = report.index.docker_id.or_else(|| docker_id.clone());
                report.index.image_uuid = report.index.image_uuid.or_else(|| image_uuid.clone());
                report.vm.last_modified > known.vm.last_modified
            }
            Some(_) => false,
            None => ended.task == "machine_create" && self.is_newer_than_reports(server, &report),
        };
        if is_news {
            self.fleet.report_vms(server, BTreeMap::from([(vm, Some(report))]));
            self.vms_wake.notify_one();
        }
    }

    /// Whether the agent looked at its VMs before this one became what it is. A result that comes
    /// late must not bring back a VM that was destroyed since.
    fn is_newer_than_reports(&self, server: ServerUuid, made: &VmReport) -> bool {
        let reported_at = self.fleet.with(server, |entry| entry.reported_at.clone());
        // Both are of the agent's clock, in one format that sorts.
        reported_at.is_none_or(|reported_at| made.vm.last_modified > reported_at)
    }

    /// Reports show these VMs: their promises are kept.
    pub(super) fn place_seen(&self, server: ServerUuid, seen: &[VmUuid]) {
        let mut placing = self.placing.lock();
        for vm in seen {
            placing.seen(server, *vm);
        }
    }

    /// Deletes the places of VMs that are there for all to see, or that never came.
    pub(super) async fn places_sweep(&self) -> Result<(), AppError> {
        let now = self.parts.clock.monotonic();
        let over = |vm: VmUuid, server: ServerUuid, since: Duration| {
            if self.fleet.vm(vm).is_some() {
                return !self.fleet.is_unsaved(server, vm);
            }
            let heard = self.fleet.with(server, |entry| !entry.reported_at.is_empty());
            heard.unwrap_or(true) && now.saturating_sub(since) >= UNSEEN
        };
        let done: Vec<_> = self.placing.lock().done.iter().map(|(vm, at)| (*vm, *at)).collect();
        for (vm, (server, since)) in done.into_iter().filter(|(vm, (s, at))| over(*vm, *s, *at)) {
            let key = keys::place(vm);
            if let Some(stored) = self.parts.store.get(&key).await? {
                let place: PlaceRecord = keys::decode(&stored)?;
                let again = place.state == PlaceState::Creating;
                if !again {
                    let delete = Write::delete(key, Expect::At(stored.revision));
                    match self.parts.store.commit(vec![delete]).await {
                        Err(error) if !is_conflict(&error) => return Err(error.into()),
                        Ok(_) | Err(_) => {}
                    }
                }
            }
            let mut placing = self.placing.lock();
            if placing.done.get(&vm) == Some(&(server, since)) {
                placing.done.remove(&vm);
            }
        }
        Ok(())
    }

    /// Counts what the open tasks promise, at start.
    pub(super) async fn load_promises(&self) -> Result<(), AppError> {
        for id in self.tasks.ids() {
            let Some(open) = self.tasks.get(&id) else { continue };
            let Some(vm) = open.record.vm_uuid else { continue };
            if open.record.task == "machine_create" {
                let params = self.load_params(&open.record.params).await?;
                self.promise(vm, open.record.server_uuid, &params);
            }
        }
        Ok(())
    }

    /// A place in the store, at the start: one that is done is to be swept.
    pub(super) fn place_done_found(&self, place: &PlaceRecord) {
        let now = self.parts.clock.monotonic();
        if place.state == PlaceState::Done {
            let done = &mut self.placing.lock().done;
            done.entry(place.vm_uuid).or_insert((place.server_uuid, now));
        }
    }

    /// Whether a report counts the VM.
    pub(super) fn is_counted(&self, vm: VmUuid) -> bool {
        self.fleet.vm(vm).is_some_and(|(_, report)| counts(&report))
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

/// Whether the allocator counts a reported VM, or has no need to. The reference leaves a VM that
/// is being made to its ticket.
pub(super) fn counts(report: &VmReport) -> bool {
    report.vm.state != "provisioning"
}

/// The VM object that a task returned, as a report; `None` for one that reports leave out.
fn told_report(vm: &Value) -> Option<VmReport> {
    if vm.get("do_not_inventory").is_some_and(|hidden| *hidden == true) {
        return None;
    }
    let status: VmStatus = serde_json::from_value(vm.clone()).ok()?;
    let index: VmIndex = serde_json::from_value(vm.clone()).unwrap_or_default();
    Some(VmReport { vm: status, index })
}
