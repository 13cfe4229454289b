//! `machine_rollback_snapshot`: gives a VM's disks, or a container's root, the content of a snapshot.
//! Newer snapshots go; a VM that ran is stopped first and started again. Nothing is touched before every disk is known
//! to have the snapshot. Once the disks are begun with it only goes forward: the agent tries by itself
//! until all of them got there, and does not start the VM before.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine;
use super::snapshot::BEFORE_PREPARE;
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure, snapshot};
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.rollback_snapshot";

/// The kind; parameters `uuid`, `snapshot_name`.
#[derive(Debug)]
pub struct MachineRollbackSnapshot;

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
        let name = match params.get("snapshot_name").and_then(Value::as_str) {
            // The agent's own, see [`Rollback::newer`].
            Some(BEFORE_PREPARE) => BEFORE_PREPARE.to_owned(),
            _ => snapshot::name(params)?,
        };
        Ok(Plan::of(vec![Lock::Vm(vm)], Rollback { vm, name }, STEPS))
    }
}

const STEPS: &[Row<Rollback>] = steps![
    ("check", 10, check),
    ("stop", 40, stop),
    ("newer", 50, remove_newer),
    ("disks", 80, go_back),
    ("forget", 85, forget),
    ("start", 100, start),
];

#[derive(Debug)]
struct Rollback {
    vm: VmUuid,
    name: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// The snapshots that are newer.
    newer: Vec<String>,
    was_running: bool,
}

impl Rollback {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let mended = VmRecord { rolling_back_to: None, ..record.clone() };
        machine::usable(OPERATION, &mended)?;
        let newer = self.newer(&record);
        let newer = newer.ok_or_else(|| snapshot::not_found(OPERATION, self.vm, &self.name))?;
        snapshot::on_every_disk(ctx, OPERATION, &record, &self.name).await?;
        ctx.note(&Notes { newer, was_running: machine::runs(ctx, self.vm).await? })
    }

    /// The snapshots that are newer; none if the VM has no such snapshot. That of a VM which prepared
    /// itself for an image is there if the disks have to be brought back to it, and is the newest.
    fn newer(&self, record: &VmRecord) -> Option<Vec<String>> {
        if self.name == BEFORE_PREPARE {
            return (record.rolling_back_to.as_deref() == Some(BEFORE_PREPARE)).then(Vec::new);
        }
        let place = record.snapshots.iter().position(|s| s.name == self.name && s.complete)?;
        Some(record.snapshots.iter().skip(place + 1).map(|known| known.name.clone()).collect())
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let ran = ctx.notes::<Notes>()?.was_running;
        // Whatever happens next: it is to run again, with its disks as they were or rolled back.
        let again = |record: &mut VmRecord| record.start_when_rolled_back |= ran;
        ctx.drivers.vms.update(self.vm, again).await?;
        // What the guest has not written yet is to be lost anyway.
        let how = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        stopping::stop(ctx, OPERATION, self.vm, how).await
    }

    /// One after the other, so that the record lists what the disks have.
    async fn remove_newer(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        for name in ctx.notes::<Notes>()?.newer.iter().rev() {
            let removed = snapshot::remove(ctx, self.vm, name).await;
            removed.map_err(snapshot::in_words_of(OPERATION))?;
            snapshot::forget(ctx, self.vm, name).await?;
        }
        Ok(())
    }

    async fn go_back(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let begun = |record: &mut VmRecord| record.rolling_back_to = Some(self.name.clone());
        ctx.drivers.vms.update(self.vm, begun).await?;
        let done = ctx.drivers.storage.roll_back(self.vm, &snapshot::on_disk(&self.name)).await;
        done.map_err(snapshot::in_words_of(OPERATION))
    }

    async fn forget(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let disks =
            ctx.drivers.storage.disks(self.vm).await.map_err(snapshot::in_words_of(OPERATION))?;
        let done = |record: &mut VmRecord| {
            record.rolling_back_to = None;
            // They may have grown since.
            machine::describe_disks(record, &disks);
        };
        ctx.drivers.vms.update(self.vm, done).await?;
        if self.name == BEFORE_PREPARE {
            let removed = snapshot::remove(ctx, self.vm, &self.name).await;
            removed.map_err(snapshot::in_words_of(OPERATION))?;
        }
        Ok(())
    }

    async fn start(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if machine::record(ctx, OPERATION, self.vm)?.start_when_rolled_back {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        snapshot::finish(ctx, OPERATION, self.vm).await
    }
}
