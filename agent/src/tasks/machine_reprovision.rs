//! `machine_reprovision`: a VM gets a new boot disk from another image and keeps everything else.
//!
//! The old disk is put aside until the record names the new image, which is the point of no
//! return: before it everything is brought back, after it the task only goes forward.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, Stop, failed, refuse};
use super::{
    Handler, Kind, Lock, OnFailure, Params, Plan, Step, TaskContext, TaskFailure, snapshot,
};
use crate::drivers::storage::DiskSpec;
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.reprovision";
/// Time the guest has to shut down, as in the reference.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The boot disk.
const BOOT_DISK: u32 = 0;
/// Noted for later steps.
const WAS_RUNNING: &str = "was_running";
const SIZE_MIB: &str = "size_mib";
const LOST: &str = "lost_snapshots";

/// The kind; parameters `uuid`, `image_uuid`.
#[derive(Debug)]
pub struct MachineReprovision;

#[async_trait]
impl Handler for MachineReprovision {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "machine_reprovision",
            super::machine_create::queue(),
            Duration::from_secs(3600),
        )
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("image_uuid".to_owned(), json!("01020304-0506-4708-890a-0b0c0d0e0f10"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let image = machine::image(params, "image_uuid")?;
        let step = |part| -> Box<dyn Step> { Box::new(Reprovision { vm, image, part }) };
        let parts = [
            Part::Check,
            Part::Image,
            Part::Mark,
            Part::Stop,
            Part::Stash,
            Part::Clone,
            Part::SwapImageUuid,
            Part::Boot,
            Part::Purge,
        ];
        let locks = vec![Lock::ImageUse(image), Lock::Vm(vm)];
        Ok(Plan { locks, steps: parts.into_iter().map(step).collect() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Check,
    Image,
    Mark,
    Stop,
    Stash,
    Clone,
    SwapImageUuid,
    Boot,
    Purge,
}

#[derive(Debug)]
struct Reprovision {
    vm: VmUuid,
    image: ImageUuid,
    part: Part,
}

impl Reprovision {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(record) = ctx.drivers.vms.get(self.vm) else {
            return Err(refuse(Code::VmNotFound, format!("VM {} does not exist.", self.vm)));
        };
        let repaired = VmRecord { failed: false, ..record.clone() };
        machine::usable(OPERATION, &repaired)?;
        if record.flag("indestructible_zoneroot") {
            let text = format!("{OPERATION} error: VM {} is indestructible", self.vm);
            return Err(refuse(Code::VmIndestructible, text));
        }
        let disks = ctx.drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?;
        let Some(boot) = disks.iter().find(|disk| disk.index == BOOT_DISK) else {
            let text = format!("{OPERATION} error: VM {} has no boot disk", self.vm);
            return Err(refuse(Code::DatasetNotFound, text));
        };
        let lost: Vec<&str> = record.snapshots.iter().map(|known| known.name.as_str()).collect();
        ctx.note(LOST, json!(lost));
        ctx.note(SIZE_MIB, json!(boot.size_bytes.div_ceil(MIB)));
        ctx.note(WAS_RUNNING, json!(machine::runs(ctx, self.vm).await?));
        Ok(())
    }

    async fn ensure_image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let progress = |percent: u8| ctx.progress(10 + percent.min(100) / 10 * 3);
        machine::bring_image(ctx, self.image, &progress).await
    }

    async fn mark(&self, ctx: &TaskContext, provisioning: bool) -> Result<(), TaskFailure> {
        ctx.drivers.vms.update(self.vm, |record| record.provisioning = provisioning).await?;
        Ok(())
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        // Only its boot disk is thrown away: what it has not yet written to the others counts.
        let until = ctx.drivers.clock.wall().saturating_add(STOP_TIMEOUT);
        let until = until.unwrap_or(Timestamp::MAX);
        let how = Stop { force: false, until, at_most: STOP_TIMEOUT };
        machine::stop(ctx, OPERATION, self.vm, how).await
    }

    /// As large as the old disk, or as the image if that is larger.
    async fn clone_image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let image = drivers.images.get(self.image).await.map_err(failed(OPERATION))?;
        let least = image.map_or(0, |image| image.size_bytes.div_ceil(MIB));
        let size_mib = ctx.noted(SIZE_MIB).as_u64().unwrap_or(0).max(least);
        let spec = DiskSpec {
            vm: self.vm,
            index: BOOT_DISK,
            image: Some(self.image),
            size_mib: Some(size_mib),
        };
        let made = drivers.storage.create_disk(&spec, &ctx.task_id).await;
        made.map(drop).map_err(failed(OPERATION))
    }

    /// From here on the VM is that of the new image.
    async fn swap(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let made = drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?;
        let swap = |record: &mut VmRecord| {
            record.reprovision_task = Some(ctx.task_id.clone());
            record.failed = false;
            let image = json!(self.image);
            if record.properties.contains_key("image_uuid") {
                record.properties.insert("image_uuid".to_owned(), image.clone());
            }
            if let Some(Value::Array(disks)) = record.properties.get_mut("disks")
                && let Some(Value::Object(boot)) = disks.first_mut()
            {
                boot.insert("image_uuid".to_owned(), image);
            }
            machine::describe_disks(record, &made);
        };
        drivers.vms.update(self.vm, swap).await?;
        Ok(())
    }

    async fn purge(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let purged = ctx.drivers.storage.purge_stash(self.vm, BOOT_DISK).await;
        purged.map_err(failed(OPERATION))
    }

    fn is_committed(&self, ctx: &TaskContext) -> bool {
        let record = ctx.drivers.vms.get(self.vm);
        record.is_some_and(|record| record.reprovision_task.as_ref() == Some(&ctx.task_id))
    }

    /// The VM runs again if it ran.
    async fn restart(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if ctx.noted(WAS_RUNNING) == true && ctx.drivers.vms.get(self.vm).is_some() {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Step for Reprovision {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Check => "check",
            Part::Image => "image",
            Part::Mark => "mark",
            Part::Stop => "stop",
            Part::Stash => "stash",
            Part::Clone => "clone",
            Part::SwapImageUuid => "swap_image_uuid",
            Part::Boot => "boot",
            Part::Purge => "purge",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match self.part {
            Part::Check => self.check(ctx).await,
            Part::Image => self.ensure_image(ctx).await,
            Part::Mark => self.mark(ctx, true).await,
            Part::Stop => self.stop(ctx).await,
            Part::Stash => {
                let storage = &ctx.drivers.storage;
                let stashed = storage.stash_disk(self.vm, BOOT_DISK, &ctx.task_id).await;
                stashed.map_err(failed(OPERATION))
            }
            Part::Clone => self.clone_image(ctx).await,
            Part::SwapImageUuid => self.swap(ctx).await,
            Part::Boot => {
                self.mark(ctx, false).await?;
                if ctx.noted(WAS_RUNNING) == true {
                    machine::start(ctx, OPERATION, self.vm).await?;
                }
                Ok(())
            }
            Part::Purge => {
                self.purge(ctx).await?;
                // Those of the other disks are of no use without the boot disk's part, and their
                // names would stay taken.
                snapshot::remove_all(ctx, self.vm).await.map_err(failed(OPERATION))?;
                machine::runs(ctx, self.vm).await?;
                let mut result = ctx.drivers.vms.result(self.vm);
                result[LOST] = ctx.noted(LOST);
                ctx.finish_with(result);
                Ok(())
            }
        }
    }

    async fn undo(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let committed = self.is_committed(ctx);
        match self.part {
            Part::Stash if committed => self.purge(ctx).await,
            Part::Stash => {
                let storage = &ctx.drivers.storage;
                let restored = storage.restore_disk(self.vm, BOOT_DISK, &ctx.task_id).await;
                restored.map_err(failed(OPERATION))
            }
            Part::Stop if !committed => self.restart(ctx).await,
            Part::Mark if ctx.drivers.vms.get(self.vm).is_some() => self.mark(ctx, false).await,
            _ => Ok(()),
        }
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Check => 10,
            Part::Image => 40,
            Part::Mark => 42,
            Part::Stop => 50,
            Part::Stash => 55,
            Part::Clone => 70,
            Part::SwapImageUuid => 75,
            Part::Boot => 95,
            Part::Purge => 100,
        }
    }
}
