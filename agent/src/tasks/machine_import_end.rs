//! `machine_import_end`: makes what was filled in the content of a VM's disks, or gives the import
//! up. Once begun it only goes forward.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;

use super::machine::{self, failed};
use super::machine_import::{self, role};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure, machine_create};
use crate::vms::VmRecord;
use crate::vms::reconcile::BY_ITSELF;

const OPERATION: &str = "import";

/// The kind; parameters `uuid`, `start` (it runs when this returns), `discard` (the VM goes instead).
#[derive(Debug)]
pub struct MachineImportEnd;

impl Handler for MachineImportEnd {
    fn kind(&self) -> Kind {
        let limit = Duration::from_secs(4 * 3600);
        Kind::mutate("machine_import_end", machine_create::queue(), limit)
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("start".to_owned(), true.into());
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let by_itself = machine::flag(params, BY_ITSELF)?;
        let discards = machine::flag(params, "discard")? || by_itself;
        let starts = machine::flag(params, "start")? && !discards;
        let plan = Plan::of(vec![Lock::Vm(vm)], End { vm, by_itself }, STEPS);
        let plan = plan.only_if(discards, "discard").only_if(!discards, "fill");
        Ok(plan.only_if(!discards, "commit").only_if(starts, "boot"))
    }
}

const STEPS: &[Row<End>] = steps![
    ("discard", 100, discard),
    ("fill", 80, fill),
    ("commit", 90, commit),
    ("boot", 100, boot),
];

#[derive(Debug)]
struct End {
    vm: VmUuid,
    by_itself: bool,
}

impl End {
    /// The reconciler does the rest.
    async fn discard(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(record) = ctx.drivers.vms.get(self.vm) else { return Ok(()) };
        if record.destroying {
            return Ok(());
        }
        let importing = machine_import::importing(ctx, OPERATION, self.vm)?;
        let is_over = importing
            .until
            .parse::<Timestamp>()
            .is_ok_and(|until| until <= ctx.drivers.clock.wall());
        // Somebody may have gone on with it since.
        if !self.by_itself || is_over {
            ctx.drivers.vms.update(self.vm, |record| record.destroying = true).await?;
        }
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }

    async fn fill(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let importing = machine_import::importing(ctx, OPERATION, self.vm)?;
        let count = importing.volumes.len().max(1);
        for (done, volume) in importing.volumes.iter().enumerate() {
            ctx.progress(u8::try_from(done * 80 / count).unwrap_or(80));
            let ended = ctx.drivers.storage.end_fill(self.vm, role(volume.role)).await;
            ended.map_err(failed(OPERATION))?;
        }
        Ok(())
    }

    async fn commit(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let boot_id = ctx.drivers.vms.boot_id().to_owned();
        let commit = |record: &mut VmRecord| {
            record.provisioning = false;
            record.importing = None;
            // It starts with the next boot of the host, if it is to.
            record.boot_id = Some(boot_id);
        };
        ctx.drivers.vms.update(self.vm, commit).await?;
        machine::runs(ctx, self.vm).await?;
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }

    async fn boot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::start(ctx, OPERATION, self.vm).await?;
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }
}
