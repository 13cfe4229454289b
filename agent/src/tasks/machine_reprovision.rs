//! `machine_reprovision`: a VM gets a new boot disk from another image, a container a new root, and keeps
//! everything else.
//!
//! The old one is put aside until the record names the new image, which is the point of no
//! return: before it everything is brought back, after it the task only goes forward.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::container;
use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure, snapshot};
use crate::drivers::storage::{DiskSpec, RootWishes, Wishes};
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.reprovision";
/// Time the guest has to shut down, as in the reference.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The boot disk.
const BOOT_DISK: u32 = 0;

/// The kind; parameters `uuid`, `image_uuid`.
#[derive(Debug)]
pub struct MachineReprovision;

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
        let locks = vec![Lock::ImageUse(image), Lock::Vm(vm)];
        Ok(Plan::of(locks, Reprovision { vm, image }, STEPS))
    }
}

const STEPS: &[Row<Reprovision>] = steps![
    ("check", 10, check),
    ("image", 40, ensure_image),
    ("mark", 42, mark, undo unmark),
    ("stop", 50, stop, undo restart),
    ("stash", 55, stash, undo restore),
    ("clone", 70, clone_image),
    ("swap_image_uuid", 75, swap),
    ("boot", 95, boot),
    ("purge", 100, finish),
];

#[derive(Debug)]
struct Reprovision {
    vm: VmUuid,
    image: ImageUuid,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    was_running: bool,
    /// Of the old boot disk.
    size_mib: u64,
    /// The same; none when nothing tells.
    pool: Option<String>,
    lost_snapshots: Vec<String>,
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
        let was_running = machine::runs(ctx, self.vm).await?;
        let lost_snapshots = record.snapshots.iter().map(|known| known.name.clone()).collect();
        let notes = Notes { was_running, lost_snapshots, ..Notes::default() };
        if record.is_container() {
            container::must_have_root(ctx, OPERATION, self.vm).await?;
            return ctx.note(&notes);
        }
        let disks = ctx.drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?;
        let Some(boot) = disks.iter().find(|disk| disk.index == BOOT_DISK) else {
            let text = format!("{OPERATION} error: VM {} has no boot disk", self.vm);
            return Err(refuse(Code::DatasetNotFound, text));
        };
        let size_mib = boot.size_bytes.div_ceil(MIB);
        let pool = boot.identity.as_ref().map(|identity| identity.pool.clone());
        ctx.note(&Notes { size_mib, pool, ..notes })
    }

    fn is_container(&self, ctx: &TaskContext) -> bool {
        ctx.drivers.vms.get(self.vm).is_some_and(|record| record.is_container())
    }

    async fn ensure_image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let progress = |percent: u8| ctx.progress(10 + percent.min(100) / 10 * 3);
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let made = container::made(&record.properties);
        machine::bring_image(ctx, self.image, made, &progress).await
    }

    async fn mark(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.drivers.vms.update(self.vm, |record| record.provisioning = true).await?;
        Ok(())
    }

    async fn unmark(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if ctx.drivers.vms.get(self.vm).is_some() {
            ctx.drivers.vms.update(self.vm, |record| record.provisioning = false).await?;
        }
        Ok(())
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        // Only its boot disk is thrown away: what it has not yet written to the others counts.
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let at_most = STOP_TIMEOUT.min(machine::stop_timeout(&record));
        let until = ctx.drivers.clock.wall().saturating_add(at_most);
        let until = until.unwrap_or(Timestamp::MAX);
        let how = Stop { force: false, until, at_most };
        stopping::stop(ctx, OPERATION, self.vm, how).await
    }

    /// In the pool of the old disk; as large as that, or as the image if that is larger.
    async fn clone_image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        if self.is_container(ctx) {
            let wishes = RootWishes::of(&machine::record(ctx, OPERATION, self.vm)?.properties);
            let storage = &drivers.storage;
            let made = storage.create_root(self.vm, self.image, &wishes, &ctx.task_id).await;
            return made.map_err(failed(OPERATION));
        }
        let image = drivers.images.get(self.image).await.map_err(failed(OPERATION))?;
        let least = image.map_or(0, |image| image.size_bytes.div_ceil(MIB));
        let Notes { size_mib, pool, .. } = ctx.notes()?;
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let disk = record.list("disks").first();
        // Blocks are those of the image from now on.
        let wishes = Wishes { block_bytes: None, ..disk.map(Wishes::of).unwrap_or_default() };
        let spec = DiskSpec {
            wishes,
            vm: self.vm,
            index: BOOT_DISK,
            pool,
            image: Some(self.image),
            size_mib: Some(size_mib.max(least)),
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
        let spare = match self.is_container(ctx) {
            true => container::spare_ids(ctx, OPERATION, self.image).await?,
            false => None,
        };
        // Its files have other ids only where they are shown: nothing of the old root knows.
        let swap = |record: &mut VmRecord| {
            swap(record);
            record.user_ids = record.user_ids.filter(|_| spare.is_some());
        };
        container::give_ids(ctx, self.vm, spare, swap).await?;
        Ok(())
    }

    /// The old boot disk goes, and the snapshots with it: those of the other disks are of no use
    /// without its part, and their names would stay taken.
    async fn purge(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let storage = &ctx.drivers.storage;
        let purged = match self.is_container(ctx) {
            true => storage.purge_root_stash(self.vm).await,
            false => storage.purge_stash(self.vm, BOOT_DISK).await,
        };
        purged.map_err(failed(OPERATION))?;
        snapshot::remove_all(ctx, self.vm).await.map_err(failed(OPERATION))
    }

    fn is_committed(&self, ctx: &TaskContext) -> bool {
        let record = ctx.drivers.vms.get(self.vm);
        record.is_some_and(|record| record.reprovision_task.as_ref() == Some(&ctx.task_id))
    }

    async fn stash(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let storage = &ctx.drivers.storage;
        let stashed = match self.is_container(ctx) {
            true => storage.stash_root(self.vm, &ctx.task_id).await,
            false => storage.stash_disk(self.vm, BOOT_DISK, &ctx.task_id).await,
        };
        stashed.map_err(failed(OPERATION))
    }

    async fn restore(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.is_committed(ctx) {
            return self.purge(ctx).await;
        }
        let storage = &ctx.drivers.storage;
        let restored = match self.is_container(ctx) {
            true => storage.restore_root(self.vm, &ctx.task_id).await,
            false => storage.restore_disk(self.vm, BOOT_DISK, &ctx.task_id).await,
        };
        restored.map_err(failed(OPERATION))
    }

    async fn boot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.drivers.vms.update(self.vm, |record| record.provisioning = false).await?;
        if ctx.notes::<Notes>()?.was_running {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        Ok(())
    }

    /// The VM runs again if it ran.
    async fn restart(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let is_here = ctx.drivers.vms.get(self.vm).is_some();
        if is_here && !self.is_committed(ctx) && ctx.notes::<Notes>()?.was_running {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        Ok(())
    }

    async fn finish(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.purge(ctx).await?;
        machine::runs(ctx, self.vm).await?;
        let mut result = ctx.drivers.vms.result(self.vm);
        result["lost_snapshots"] = json!(ctx.notes::<Notes>()?.lost_snapshots);
        ctx.finish_with(result);
        Ok(())
    }
}
