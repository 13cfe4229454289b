//! `machine_destroy`: removes a VM with all that belongs to it. Once begun it only goes forward.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure};
use crate::vms::{StorageState, VmRecord};

const OPERATION: &str = "delete";

/// The kind; parameters `uuid`, `include_dni`.
#[derive(Debug)]
pub struct MachineDestroy;

impl Handler for MachineDestroy {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_destroy", machine::MACHINE_TASKS, Duration::from_secs(1800))
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Forward
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let include_dni = machine::flag(params, "include_dni")?;
        Ok(Plan::of(vec![Lock::Vm(vm)], Destroy { vm, include_dni }, STEPS))
    }
}

const STEPS: &[Row<Destroy>] = steps![
    ("mark", 10, mark),
    ("stop", 40, stop),
    ("archive", 45, archive),
    ("storage", 80, storage),
    ("cleanup", 90, cleanup),
    ("forget", 100, forget),
];

#[derive(Debug)]
struct Destroy {
    vm: VmUuid,
    include_dni: bool,
}

impl Destroy {
    /// Nothing is touched without a record that says so; what has none belongs to nobody here.
    fn marked(&self, ctx: &TaskContext) -> Option<VmRecord> {
        ctx.drivers.vms.get(self.vm).filter(|record| record.destroying)
    }

    async fn mark(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(record) = ctx.drivers.vms.get(self.vm) else { return Ok(()) };
        if record.flag("do_not_inventory") && !self.include_dni {
            // As good as not there.
            return Ok(());
        }
        if record.flag("indestructible_zoneroot") || record.flag("indestructible_delegated") {
            let text = format!("{OPERATION} error: VM {} is indestructible", self.vm);
            return Err(refuse(Code::VmIndestructible, text));
        }
        ctx.drivers.vms.update(self.vm, |record| record.destroying = true).await?;
        Ok(())
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.marked(ctx).is_none() {
            return Ok(());
        }
        let how = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        stopping::stop(ctx, OPERATION, self.vm, how).await
    }

    async fn archive(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        if !self.marked(ctx).is_some_and(|record| record.flag("archive_on_delete")) {
            return Ok(());
        }
        let console = drivers.compute.console_log(self.vm, None).await;
        let console = console.map_err(failed(OPERATION))?;
        drivers.vms.archive(self.vm, &console.bytes).await.map_err(failed(OPERATION))
    }

    async fn storage(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.marked(ctx).is_none() {
            return Ok(());
        }
        let drivers = &ctx.drivers;
        let storage = |state| move |record: &mut VmRecord| record.storage = state;
        drivers.vms.update(self.vm, storage(StorageState::Incomplete)).await?;
        drivers.storage.destroy_disks(self.vm, None).await.map_err(failed(OPERATION))?;
        drivers.storage.destroy_root(self.vm, None).await.map_err(failed(OPERATION))?;
        drivers.vms.update(self.vm, storage(StorageState::None)).await?;
        Ok(())
    }

    async fn cleanup(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.marked(ctx).is_none() {
            return Ok(());
        }
        machine::clean_up(ctx, OPERATION, self.vm, true).await
    }

    async fn forget(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.marked(ctx).is_none() {
            return Ok(());
        }
        ctx.drivers.vms.remove(self.vm).await.map_err(failed(OPERATION))
    }
}
