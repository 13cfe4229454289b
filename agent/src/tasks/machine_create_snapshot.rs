//! `machine_create_snapshot`: all disks of a VM, or the root of a container, as they are at one moment, also
//! while it runs.

use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use super::container;
use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure, snapshot};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestSignal;
use crate::guest_agent;
use crate::vms::{SnapshotRecord, VmRecord};

const OPERATION: &str = "vmadm.create_snapshot";
/// Snapshots of one VM.
const MAX_SNAPSHOTS: usize = 64;
/// Longest time after which one is deleted by itself, seconds (30 days).
const MAX_EXPIRES_S: u64 = 30 * 24 * 3600;

/// Longest time in which a guest that was asked to go on is asked again.
const THAW_PATIENCE: Duration = Duration::from_secs(60);
/// Between such questions.
const THAW_PAUSE: Duration = Duration::from_secs(2);

/// The kind; parameters `uuid`, `snapshot_name`, `quiesce` (`none`; `pause`: the guest's CPUs stand
/// still meanwhile, as the processes of containers always do; `guest`: its file systems do), `expires_s` (after so many seconds the agent
/// deletes it).
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
        let quiesce = quiesce(params)?;
        let expires_s = expires_s(params)?;
        // Containers are always held still: their root is copied file by file.
        let (pauses, freezes) = (quiesce != Quiesce::Guest, quiesce == Quiesce::Guest);
        let plan =
            Plan::of(vec![Lock::Vm(vm)], TakeSnapshot { vm, name, quiesce, expires_s }, STEPS);
        let plan = plan.only_if(pauses, "pause").only_if(pauses, "resume");
        Ok(plan.only_if(freezes, "freeze").only_if(freezes, "thaw"))
    }
}

/// How the guest is made still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quiesce {
    None,
    /// Its CPUs stand still.
    Pause,
    /// Its guest agent makes its file systems stand still.
    Guest,
}

fn quiesce(params: &Params) -> Result<Quiesce, TaskFailure> {
    match params.get("quiesce") {
        None | Some(Value::Null) => Ok(Quiesce::None),
        Some(Value::String(how)) if how == "none" => Ok(Quiesce::None),
        Some(Value::String(how)) if how == "pause" => Ok(Quiesce::Pause),
        Some(Value::String(how)) if how == "guest" => Ok(Quiesce::Guest),
        Some(_) => Err(TaskFailure::bad_param("quiesce", "must be none, pause or guest")),
    }
}

/// The parameter `expires_s`.
fn expires_s(params: &Params) -> Result<Option<u64>, TaskFailure> {
    let Some(value) = params.get("expires_s").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let seconds = lenient::number(value).filter(|seconds| (1..=MAX_EXPIRES_S).contains(seconds));
    let problem = format!("must be 1 to {MAX_EXPIRES_S} seconds");
    seconds.map(Some).ok_or_else(|| TaskFailure::bad_param("expires_s", problem))
}

const STEPS: &[Row<TakeSnapshot>] = steps![
    ("reserve", 20, reserve, undo release),
    ("freeze", 25, freeze, undo thaw),
    ("pause", 30, pause, undo go_on),
    ("take", 80, take, undo remove),
    ("resume", 90, resume),
    ("thaw", 95, thaw),
    ("commit", 100, commit),
];

#[derive(Debug)]
struct TakeSnapshot {
    vm: VmUuid,
    name: String,
    quiesce: Quiesce,
    expires_s: Option<u64>,
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
        let is_container = record.is_container();
        match self.quiesce {
            Quiesce::None if !is_container => ctx.note(&Notes::default())?,
            Quiesce::Guest if is_container => return Err(self.no_guest_agent()),
            // A step before the pause: after a crash in between it could not be told who paused it.
            Quiesce::None | Quiesce::Pause => {
                ctx.note(&Notes { goes_on: self.is_going(ctx).await? })?
            }
            Quiesce::Guest => ctx.note(&Notes { goes_on: self.can_freeze(ctx).await? })?,
        }
        if self.is_ours(ctx) {
            return Ok(());
        }
        if is_container {
            container::must_have_root(ctx, OPERATION, self.vm).await?;
        } else if machine::disks(ctx, OPERATION, &record).await?.is_empty() {
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
        let now = ctx.drivers.clock.wall();
        let created_at = iso(now);
        let expires_at = self
            .expires_s
            .map(Duration::from_secs)
            .map(|expires| iso(now.saturating_add(expires).unwrap_or(Timestamp::MAX)));
        let (name, task) = (self.name.clone(), ctx.task_id.clone());
        let reserve = |record: &mut VmRecord| {
            record.snapshots.push(SnapshotRecord {
                name,
                created_at,
                task,
                complete: false,
                expires_at,
            });
        };
        ctx.drivers.vms.update(self.vm, reserve).await?;
        Ok(())
    }

    fn no_guest_agent(&self) -> TaskFailure {
        let text = format!(
            "{OPERATION} error: VM {} is a container, in which no guest agent freezes file systems: \
             without quiesce its processes are held still meanwhile",
            self.vm
        );
        refuse(Code::NotSupported, text)
    }

    /// Whether the guest's CPUs run.
    async fn is_going(&self, ctx: &TaskContext) -> Result<bool, TaskFailure> {
        match ctx.drivers.compute.info(self.vm, &["status".to_owned()]).await {
            Ok(info) => Ok(info["status"]["running"] == true),
            Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(false),
            Err(error) => Err(snapshot::in_words_of(OPERATION)(error)),
        }
    }

    /// Whether there is a guest to be frozen. One whose CPUs stand still would not hear of it.
    async fn can_freeze(&self, ctx: &TaskContext) -> Result<bool, TaskFailure> {
        let runs = machine::runs(ctx, self.vm).await?;
        if runs && !self.is_going(ctx).await? {
            let text = format!(
                "{OPERATION} error: VM {} is paused, so that its guest agent can't freeze its file \
                 systems: take the snapshot without quiesce, or let it go on",
                self.vm
            );
            return Err(refuse(Code::VmNotUsable, text));
        }
        Ok(runs)
    }

    async fn freeze(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.notes::<Notes>()?.goes_on {
            return Ok(());
        }
        guest_agent::freeze(&ctx.drivers.guest_agents, self.vm)
            .await
            .map_err(snapshot::in_words_of(OPERATION))
    }

    /// Whatever happens, the guest goes on: what does not succeed here is done by
    /// [`guest_agent::Looks`] once no task is at work on the VM.
    async fn thaw(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !self.is_ours(ctx) || !ctx.notes::<Notes>()?.goes_on {
            return Ok(());
        }
        let mut patience = pin!(sleep(THAW_PATIENCE));
        loop {
            match guest_agent::thaw(&ctx.drivers.guest_agents, self.vm).await {
                Ok(_) | Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => return Ok(()),
                Err(error) if patience.is_elapsed() => {
                    return Err(snapshot::in_words_of(OPERATION)(error));
                }
                Err(_) => tokio::select! {
                    () = &mut patience => {}
                    () = sleep(THAW_PAUSE) => {}
                },
            }
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
