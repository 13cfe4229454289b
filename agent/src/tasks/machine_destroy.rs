//! `machine_destroy`: removes a VM with all that belongs to it. Once begun it only goes forward.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::machine::{self, Stop, failed, refuse};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, Step, TaskContext, TaskFailure};
use crate::vms::StorageState;

const OPERATION: &str = "delete";

/// The kind; parameters `uuid`, `include_dni`.
#[derive(Debug)]
pub struct MachineDestroy;

#[async_trait]
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
        let parts =
            [Part::Mark, Part::Stop, Part::Archive, Part::Storage, Part::Cleanup, Part::Forget];
        let step = |part| -> Box<dyn Step> { Box::new(DestroyStep { vm, include_dni, part }) };
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps: parts.into_iter().map(step).collect() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Mark,
    Stop,
    Archive,
    Storage,
    Cleanup,
    Forget,
}

#[derive(Debug)]
struct DestroyStep {
    vm: VmUuid,
    include_dni: bool,
    part: Part,
}

impl DestroyStep {
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
        let how = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        machine::stop(ctx, OPERATION, self.vm, how).await
    }

    async fn archive(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        if !drivers.vms.get(self.vm).is_some_and(|record| record.flag("archive_on_delete")) {
            return Ok(());
        }
        let console = drivers.compute.console_log(self.vm, None).await;
        let console = console.map_err(failed(OPERATION))?;
        drivers.vms.archive(self.vm, &console.bytes).await.map_err(failed(OPERATION))
    }

    async fn storage(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let storage = |state| move |record: &mut crate::vms::VmRecord| record.storage = state;
        drivers.vms.update(self.vm, storage(StorageState::Incomplete)).await?;
        drivers.storage.destroy_disks(self.vm, None).await.map_err(failed(OPERATION))?;
        drivers.vms.update(self.vm, storage(StorageState::None)).await?;
        Ok(())
    }
}

#[async_trait]
impl Step for DestroyStep {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Mark => "mark",
            Part::Stop => "stop",
            Part::Archive => "archive",
            Part::Storage => "storage",
            Part::Cleanup => "cleanup",
            Part::Forget => "forget",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if matches!(self.part, Part::Mark) {
            return self.mark(ctx).await;
        }
        // Nothing is touched without a record that says so; what has none belongs to nobody here.
        let marked = ctx.drivers.vms.get(self.vm).is_some_and(|record| record.destroying);
        if !marked {
            return Ok(());
        }
        match self.part {
            Part::Mark => Ok(()),
            Part::Stop => self.stop(ctx).await,
            Part::Archive => self.archive(ctx).await,
            Part::Storage => self.storage(ctx).await,
            Part::Cleanup => machine::clean_up(ctx, OPERATION, self.vm, true).await,
            Part::Forget => ctx.drivers.vms.remove(self.vm).await.map_err(failed(OPERATION)),
        }
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Mark => 10,
            Part::Stop => 40,
            Part::Archive => 45,
            Part::Storage => 80,
            Part::Cleanup => 90,
            Part::Forget => 100,
        }
    }
}
