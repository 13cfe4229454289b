//! `machine_rollback_snapshot`: gives a VM's disks the content of a snapshot. Newer snapshots go;
//! a VM that ran is stopped first and started again. Nothing is touched before every disk is known
//! to have the snapshot. Once begun it only goes forward: the agent tries by itself until all disks
//! got there, and does not start the VM before.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use serde_json::json;

use super::machine::{self, Stop};
use super::{
    Handler, Kind, Lock, OnFailure, Params, Plan, Step, TaskContext, TaskFailure, snapshot,
};
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.rollback_snapshot";
/// Noted for the last step.
const WAS_RUNNING: &str = "was_running";
/// Noted: the snapshots that are newer.
const NEWER: &str = "newer";

/// The kind; parameters `uuid`, `snapshot_name`.
#[derive(Debug)]
pub struct MachineRollbackSnapshot;

#[async_trait]
impl Handler for MachineRollbackSnapshot {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_rollback_snapshot", machine::MACHINE_TASKS, Duration::from_secs(900))
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Forward
    }

    fn example(&self) -> Params {
        snapshot::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let name = snapshot::name(params)?;
        let step = |part| -> Box<dyn Step> { Box::new(Rollback { vm, name: name.clone(), part }) };
        let parts = [Part::Check, Part::Stop, Part::Newer, Part::Disks, Part::Forget, Part::Start];
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps: parts.into_iter().map(step).collect() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Check,
    Stop,
    Newer,
    Disks,
    Forget,
    Start,
}

#[derive(Debug)]
struct Rollback {
    vm: VmUuid,
    name: String,
    part: Part,
}

impl Rollback {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let mended = VmRecord { rolling_back_to: None, ..record.clone() };
        machine::usable(OPERATION, &mended)?;
        let place = record.snapshots.iter().position(|s| s.name == self.name && s.complete);
        let place = place.ok_or_else(|| snapshot::not_found(OPERATION, self.vm, &self.name))?;
        snapshot::on_every_disk(ctx, OPERATION, &record, &self.name).await?;
        let newer: Vec<&str> =
            record.snapshots.iter().skip(place + 1).map(|known| known.name.as_str()).collect();
        ctx.note(NEWER, json!(newer));
        ctx.note(WAS_RUNNING, json!(machine::runs(ctx, self.vm).await?));
        Ok(())
    }

    fn newer(ctx: &TaskContext) -> Vec<String> {
        serde_json::from_value(ctx.noted(NEWER)).unwrap_or_default()
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        // What the guest has not written yet is to be lost anyway.
        let how = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        machine::stop(ctx, OPERATION, self.vm, how).await
    }

    /// One after the other, so that the record lists what the disks have.
    async fn remove_newer(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        for name in Self::newer(ctx).iter().rev() {
            let removed = snapshot::remove(ctx, self.vm, name).await;
            removed.map_err(snapshot::told(OPERATION))?;
            snapshot::forget(ctx, self.vm, name).await?;
        }
        Ok(())
    }

    async fn go_back(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let ran = ctx.noted(WAS_RUNNING) == true;
        let begun = |record: &mut VmRecord| {
            record.rolling_back_to = Some(self.name.clone());
            record.start_when_rolled_back |= ran;
        };
        ctx.drivers.vms.update(self.vm, begun).await?;
        let done = ctx.drivers.storage.roll_back(self.vm, &snapshot::on_disk(&self.name)).await;
        done.map_err(snapshot::told(OPERATION))
    }

    async fn forget(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let disks = ctx.drivers.storage.disks(self.vm).await.map_err(snapshot::told(OPERATION))?;
        let record = machine::record(ctx, OPERATION, self.vm)?;
        if record.start_when_rolled_back {
            ctx.note(WAS_RUNNING, json!(true));
        }
        let done = |record: &mut VmRecord| {
            record.rolling_back_to = None;
            record.start_when_rolled_back = false;
            // They may have grown since.
            machine::describe_disks(record, &disks);
        };
        ctx.drivers.vms.update(self.vm, done).await?;
        Ok(())
    }
}

#[async_trait]
impl Step for Rollback {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Check => "check",
            Part::Stop => "stop",
            Part::Newer => "newer",
            Part::Disks => "disks",
            Part::Forget => "forget",
            Part::Start => "start",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match self.part {
            Part::Check => self.check(ctx).await,
            Part::Stop => self.stop(ctx).await,
            Part::Newer => self.remove_newer(ctx).await,
            Part::Disks => self.go_back(ctx).await,
            Part::Forget => self.forget(ctx).await,
            Part::Start => {
                if ctx.noted(WAS_RUNNING) == true {
                    machine::start(ctx, OPERATION, self.vm).await?;
                }
                snapshot::finish(ctx, OPERATION, self.vm).await
            }
        }
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Check => 10,
            Part::Stop => 40,
            Part::Newer => 50,
            Part::Disks => 80,
            Part::Forget => 85,
            Part::Start => 100,
        }
    }
}
