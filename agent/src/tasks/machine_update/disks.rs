//! Disks that come and go with an update: their files, and the guest that has them while it runs.
//!
//! A file is made before the guest or the record has the disk, and goes when neither has it any more.
//! Until then the record says that it is to go, so that it does also when nobody asks again.

use std::collections::BTreeSet;

use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Notes, OPERATION, Update, list};
use crate::drivers::DriverError;
use crate::drivers::storage::{self, Disk, DiskSpec, Wishes};
use crate::tasks::machine::{self, failed, refuse};
use crate::tasks::{Params, TaskContext, TaskFailure, guest_disks};
use crate::vm_record::GoingDisk;
use crate::vm_record::disks::{numbered, with_number};
use crate::vms::payload::image_of;
use crate::vms::{VmRecord, at_start, live_disks, volumes};

/// What becomes of the disks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Disks {
    /// Numbers of those that come.
    add: Vec<u32>,
    /// Those of them that the guest gets while it runs.
    hot: BTreeSet<u32>,
    /// Those that go.
    remove: Vec<GoingDisk>,
    /// The guest runs, and goes on.
    live: bool,
}

/// Whether an update is about disks; it may be one that failed halfway, and is asked for again.
fn names_disks(params: &Params) -> bool {
    let given = |name: &str| params.get(name).is_some_and(|value| !value.is_null());
    ["add_disks", "remove_disks", "update_disks"].into_iter().any(given)
}

impl Disks {
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// Notes in the record what its disks are known by, and which are to go. To be called while the
    /// record still has the disks that it had.
    pub(super) fn note(&self, record: &mut VmRecord, found: &[Disk]) {
        if let Some(known) = &mut record.volumes {
            let concerned = |index: u32| {
                self.add.contains(&index) || self.remove.iter().any(|gone| gone.index == index)
            };
            known.retain(|volume| !concerned(volume.index));
            let new = found.iter().filter(|disk| self.add.contains(&disk.index)).cloned();
            known.extend(volumes::of(&new.collect::<Vec<_>>()));
        }
        for gone in &self.remove {
            if !record.going_disks.contains(gone) {
                record.going_disks.push(gone.clone());
            }
        }
    }

    /// Notes what of the change the guest, which had these disks, has now.
    pub(super) fn keep(&self, record: &mut VmRecord, running: &[Value]) {
        if self.live {
            let live = live_disks::live(running, record.list("disks"), &self.hot);
            at_start::keep_devices(record, "disks", live);
        }
    }
}

impl Update {
    /// What becomes of the disks; `None`: nobody asks. With `goes_on` the guest runs and is not restarted.
    pub(super) async fn plan_disks(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
        new: &Map<String, Value>,
        goes_on: bool,
    ) -> Result<Option<Disks>, TaskFailure> {
        if !names_disks(&ctx.params) {
            return Ok(None);
        }
        let (old, wanted) = (record.list("disks"), list(new, "disks"));
        let (add, gone) = (live_disks::only_in(wanted, old), live_disks::only_in(old, wanted));
        check_new(ctx, record, wanted, &add)?;
        let drivers = &ctx.drivers;
        let present = match goes_on {
            true => drivers.compute.disks(self.vm).await.map_err(failed(OPERATION))?,
            false => None,
        };
        let mut hot = BTreeSet::new();
        if let Some(present) = &present {
            if let Some(number) = live_disks::stuck(present, live_disks::running(record), &gone) {
                return Err(stuck(old, number));
            }
            hot = live_disks::can_come(present, wanted, &add);
        }
        let found = match gone.is_empty() {
            true => Vec::new(),
            false => drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?,
        };
        let owner = |index: u32| {
            let disk = found.iter().find(|disk| disk.index == index)?;
            disk.identity.as_ref().map(|identity| identity.owner.clone())
        };
        let remove = gone.into_iter().map(|index| GoingDisk { index, owner: owner(index) });
        Ok(Some(Disks { add, hot, remove: remove.collect(), live: present.is_some() }))
    }

    pub(super) async fn bring_images(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let notes: Notes = ctx.notes()?;
        let Some(disks) = &notes.disks else { return Ok(()) };
        let new = numbered(list(&notes.changes, "disks"));
        let new = new.filter(|(number, _)| disks.add.contains(number));
        for image in new.filter_map(|(_, disk)| image_of(disk)) {
            // The share of this step in the whole task.
            let progress = |percent: u8| ctx.progress(20 + percent.min(100) / 10);
            machine::bring_image(ctx, image, machine::MadeOf::Disk, &progress).await?;
        }
        Ok(())
    }

    pub(super) async fn settle_disks(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let mut notes: Notes = ctx.notes()?;
        let Some(disks) = notes.disks.clone() else { return Ok(()) };
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let running = live_disks::running(&record);
        if !record.going_disks.is_empty() {
            // Their numbers may be those of disks that come.
            if disks.live {
                let settled = guest_disks::settle(ctx, self.vm, running).await;
                settled.map_err(failed(OPERATION))?;
            }
            self.purge(ctx).await?;
        }
        self.make_disks(ctx, &record, &disks, &mut notes).await?;
        if disks.live {
            let wanted = notes.changed(record.properties.clone());
            let live = live_disks::live(running, list(&wanted, "disks"), &disks.hot);
            guest_disks::settle(ctx, self.vm, &live).await.map_err(failed(OPERATION))?;
        }
        Ok(())
    }

    /// Makes the files, and notes what clients see of them.
    async fn make_disks(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
        disks: &Disks,
        notes: &mut Notes,
    ) -> Result<(), TaskFailure> {
        let storage = &ctx.drivers.storage;
        let pools = storage.pools();
        let mut made = Vec::new();
        for &index in &disks.add {
            let disk = with_number(list(&notes.changes, "disks"), index).unwrap_or(&Value::Null);
            let named = disk.get("zpool").and_then(Value::as_str).or(record.text("zpool"));
            let pool = named.and_then(|name| storage::find_pool(&pools, name)).map(str::to_owned);
            let size_mib = disk.get("size").and_then(Value::as_u64);
            let (image, wishes) = (image_of(disk), Wishes::of(disk));
            let spec = DiskSpec { vm: self.vm, index, pool, image, size_mib, wishes };
            let disk = storage.create_disk(&spec, &ctx.task_id).await;
            made.push(disk.map_err(failed(OPERATION))?);
        }
        if let Some(Value::Array(disks)) = notes.changes.get_mut("disks") {
            machine::describe(disks, &made);
        }
        ctx.note(&notes)
    }

    /// Unless the record has the change: then the guest is to have it.
    pub(super) async fn unsettle_disks(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Ok(notes) = ctx.notes::<Notes>() else { return Ok(()) };
        let Some(disks) = &notes.disks else { return Ok(()) };
        let record = machine::record(ctx, OPERATION, self.vm)?;
        if notes.changed(record.properties.clone()) == record.properties {
            return Ok(());
        }
        let Err(error) = self.take_back(ctx, &record, disks).await else { return Ok(()) };
        let owner = Some(ctx.task_id.clone());
        let going = |record: &mut VmRecord| {
            for &index in &disks.add {
                record.going_disks.push(GoingDisk { index, owner: owner.clone() });
            }
        };
        ctx.drivers.vms.update(self.vm, going).await?;
        Err(failed(OPERATION)(error))
    }

    async fn take_back(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
        disks: &Disks,
    ) -> Result<(), DriverError> {
        if disks.live {
            guest_disks::settle(ctx, self.vm, live_disks::running(record)).await?;
        }
        for &index in &disks.add {
            ctx.drivers.storage.destroy_disk(self.vm, index, Some(&ctx.task_id)).await?;
        }
        Ok(())
    }

    /// Removes the files of disks that are to go.
    pub(super) async fn purge(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let going = machine::record(ctx, OPERATION, self.vm)?.going_disks;
        if going.is_empty() {
            return Ok(());
        }
        for disk in &going {
            let owner = disk.owner.as_ref();
            let destroyed = ctx.drivers.storage.destroy_disk(self.vm, disk.index, owner).await;
            destroyed.map_err(failed(OPERATION))?;
        }
        let gone = |record: &mut VmRecord| record.going_disks.retain(|disk| !going.contains(disk));
        ctx.drivers.vms.update(self.vm, gone).await?;
        Ok(())
    }
}

/// Checks disks that come, before anything of them is made.
fn check_new(
    ctx: &TaskContext,
    record: &VmRecord,
    wanted: &[Value],
    add: &[u32],
) -> Result<(), TaskFailure> {
    if !add.is_empty() && !record.snapshots.is_empty() {
        let problem = "the VM has snapshots, which are of all its disks: delete them first";
        return Err(TaskFailure::bad_param("add_disks", problem));
    }
    let pools = ctx.drivers.storage.pools();
    for number in add {
        let pool = with_number(wanted, *number).and_then(|disk| disk.get("zpool")?.as_str());
        if let Some(name) = pool.filter(|name| storage::find_pool(&pools, name).is_none()) {
            return Err(TaskFailure::bad_param("add_disks", storage::no_pool(name, &pools)));
        }
    }
    Ok(())
}

fn stuck(disks: &[Value], number: u32) -> TaskFailure {
    let disk = with_number(disks, number).unwrap_or(&Value::Null);
    let path = disk["path"].as_str().unwrap_or_default();
    let text = format!(
        "{OPERATION} error: remove_disks: the guest runs and can't give up disk {number} ({path}): only \
         a disk of model virtio in a bay can go meanwhile. Stop the VM first, or have it restarted with \
         reboot=always"
    );
    refuse(Code::VmNotStopped, text)
}
