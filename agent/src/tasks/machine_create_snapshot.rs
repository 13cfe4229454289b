//! `machine_create_snapshot`: all disks of a VM as they are at one moment, also while it runs.

use std::time::Duration;

use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure, snapshot};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestSignal;
use crate::vms::{SnapshotRecord, VmRecord};

const OPERATION: &str = "vmadm.create_snapshot";
/// Snapshots of one VM.
const MAX_SNAPSHOTS: usize = 64;

/// The kind; parameters `uuid`, `snapshot_name`, `quiesce` (`none`, or `pause`: the guest's CPUs
/// stand still meanwhile).
#[derive(Debug)]
pub struct MachineCreateSnapshot;

impl Handler for MachineCreateSnapshot {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_create_snapshot", machine::MACHINE_TASKS, Duration::from_secs(600))
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    fn example(&self) -> Params {
        let mut params = snapshot::example();
        params.insert("quiesce".to_owned(), Value::from("pause"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let name = snapshot::name(params)?;
        let pauses = pauses(params)?;
        let plan = Plan::of(vec![Lock::Vm(vm)], TakeSnapshot { vm, name, pauses }, STEPS);
        Ok(plan.only_if(pauses, "pause").only_if(pauses, "resume"))
    }
}

fn pauses(params: &Params) -> Result<bool, TaskFailure> {
    match params.get("quiesce") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::String(how)) if how == "none" => Ok(false),
        Some(Value::String(how)) if how == "pause" => Ok(true),
        Some(Value::String(how)) if how == "guest" => {
            let text = "quiesce: \"guest\" needs a guest agent, with which this agent can't talk";
            Err(refuse(Code::NotSupported, text))
        }
        Some(_) => Err(TaskFailure::bad_param("quiesce", "must be none, pause or guest")),
    }
}

const STEPS: &[Row<TakeSnapshot>] = steps![
    ("reserve", 20, reserve, undo release),
    ("pause", 30, pause, undo go_on),
    ("take", 80, take, undo remove),
    ("resume", 90, resume),
    ("commit", 100, commit),
];

#[derive(Debug)]
struct TakeSnapshot {
    vm: VmUuid,
    name: String,
    pauses: bool,
}

/// Made before the guest is paused.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// The guest ran, and is to go on. One that its owner has paused is not.
    goes_on: bool,
}

impl TakeSnapshot {
    fn is_ours(&self, ctx: &TaskContext) -> bool {
        let record = ctx.drivers.vms.get(self.vm);
        let ours = |s: &SnapshotRecord| s.name == self.name && s.task == ctx.task_id;
        record.is_some_and(|record| record.snapshots.iter().any(ours))
    }

    async fn reserve(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        if self.pauses {
            // A step before the pause: after a crash in between it could not be told who paused it.
            ctx.note(&Notes { goes_on: self.is_going(ctx).await? })?;
        }
        if self.is_ours(ctx) {
            return Ok(());
        }
        if machine::disks(ctx, OPERATION, &record).await?.is_empty() {
            let text = format!("{OPERATION} error: VM {} has no disks", self.vm);
            return Err(refuse(Code::DatasetNotFound, text));
        }
        // Nobody is at work on them while this task holds the VM: their tasks are lost.
        for lost in record.snapshots.iter().filter(|known| !known.complete) {
            let removed = snapshot::remove(ctx, self.vm, &lost.name).await;
            removed.map_err(snapshot::in_words_of(OPERATION))?;
            snapshot::forget(ctx, self.vm, &lost.name).await?;
        }
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let on_disk = snapshot::on_disk(&self.name);
        let found = ctx.drivers.storage.snapshots(self.vm).await;
        let found = found.map_err(snapshot::in_words_of(OPERATION))?;
        let taken = record.snapshots.iter().any(|known| known.name == self.name)
            || found.iter().any(|known| known.name == on_disk);
        if taken {
            let text = format!("{OPERATION} error: snapshot \"{}\" already exists", self.name);
            return Err(refuse(Code::SnapshotExists, text));
        }
        if record.snapshots.len() >= MAX_SNAPSHOTS {
            let text = format!("{OPERATION} error: {MAX_SNAPSHOTS} snapshots are the limit");
            return Err(refuse(Code::TooManySnapshots, text));
        }
        let created_at = iso(ctx.drivers.clock.wall());
        let (name, task) = (self.name.clone(), ctx.task_id.clone());
        let reserve = |record: &mut VmRecord| {
            record.snapshots.push(SnapshotRecord { name, created_at, task, complete: false });
        };
        ctx.drivers.vms.update(self.vm, reserve).await?;
        Ok(())
    }

    /// Whether the guest's CPUs run.
    async fn is_going(&self, ctx: &TaskContext) -> Result<bool, TaskFailure> {
        match ctx.drivers.compute.info(self.vm, &["status".to_owned()]).await {
            Ok(info) => Ok(info["status"]["running"] == true),
            Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(false),
            Err(error) => Err(snapshot::in_words_of(OPERATION)(error)),
        }
    }

    async fn signal(&self, ctx: &TaskContext, wanted: GuestSignal) -> Result<(), TaskFailure> {
        if !ctx.notes::<Notes>()?.goes_on {
            return Ok(());
        }
        machine::signal(ctx, self.vm, wanted).await.map_err(snapshot::in_words_of(OPERATION))
    }

    async fn commit(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let commit = |record: &mut VmRecord| {
            for known in record.snapshots.iter_mut().filter(|known| known.name == self.name) {
                known.complete = true;
            }
        };
        ctx.drivers.vms.update(self.vm, commit).await?;
        snapshot::finish(ctx, OPERATION, self.vm).await
    }

    async fn pause(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.signal(ctx, GuestSignal::Pause).await
    }

    async fn take(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let taken = snapshot::take(ctx, self.vm, &self.name).await;
        taken.map_err(snapshot::in_words_of(OPERATION))
    }

    async fn resume(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.signal(ctx, GuestSignal::Resume).await
    }

    async fn remove(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !self.is_ours(ctx) {
            return Ok(());
        }
        let removed = snapshot::remove(ctx, self.vm, &self.name).await;
        removed.map_err(snapshot::in_words_of(OPERATION))
    }

    async fn go_on(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.is_ours(ctx) { self.resume(ctx).await } else { Ok(()) }
    }

    async fn release(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !self.is_ours(ctx) {
            return Ok(());
        }
        let release = |record: &mut VmRecord| {
            record.snapshots.retain(|s| s.name != self.name || s.task != ctx.task_id);
        };
        ctx.drivers.vms.update(self.vm, release).await?;
        Ok(())
    }
}
