//! What the three kinds about snapshots share: names, where a snapshot is changed, parameters.

use std::collections::BTreeSet;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, failed, refuse};
use super::{Params, TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::compute::SnapshotChange;
use crate::drivers::storage::{Disk, Role};
use crate::vms::VmRecord;

/// Longest name, characters.
const MAX_NAME_CHARS: usize = 64;
/// Before a snapshot's name on disk, as in the reference.
const PREFIX: &str = "vmsnap-";
/// What a VM was before it prepared itself for an image. No client can name it so.
pub(super) const BEFORE_PREPARE: &str = "@imgadm-create-pre-prepare";

/// The parameters of an example.
pub(super) fn example() -> Params {
    let mut params = machine::example();
    params.insert("snapshot_name".to_owned(), json!("one"));
    params
}

/// The parameter `snapshot_name`.
pub(super) fn name(params: &Params) -> Result<String, TaskFailure> {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    match params.get("snapshot_name") {
        Some(Value::String(text))
            if (1..=MAX_NAME_CHARS).contains(&text.len()) && text.chars().all(usable) =>
        {
            Ok(text.clone())
        }
        _ => Err(TaskFailure::bad_param("snapshot_name", "Invalid snapshot name")),
    }
}

/// The snapshot's name on disk. That of a task's own begins with `@` and is as it is.
pub(super) fn on_disk(name: &str) -> String {
    name.strip_prefix('@').map_or_else(|| format!("{PREFIX}{name}"), str::to_owned)
}

/// Takes the snapshot of every volume, unless every one has it. What an earlier attempt left on
/// some of them is taken again: they have to be of one moment.
pub(super) async fn take(ctx: &TaskContext, vm: VmUuid, name: &str) -> Result<(), DriverError> {
    let drivers = &ctx.drivers;
    let of = drivers.storage.roles(vm).await?;
    let name = on_disk(name);
    let having = having(ctx, vm, &name).await?;
    if having.len() == of.len() {
        return Ok(());
    }
    remove_from(ctx, vm, &name, having).await?;
    let change = SnapshotChange::Create { name: name.clone(), of };
    let left = drivers.compute.snapshot(vm, &change).await?;
    if left.is_empty() {
        return Ok(());
    }
    drivers.storage.create_snapshot(vm, &name, &left).await
}

/// Deletes the snapshot from every volume that has it.
pub(super) async fn remove(ctx: &TaskContext, vm: VmUuid, name: &str) -> Result<(), DriverError> {
    let name = on_disk(name);
    let having = having(ctx, vm, &name).await?;
    remove_from(ctx, vm, &name, having).await
}

/// Deletes every snapshot of the VM, of which disks and record may know different ones.
pub(super) async fn remove_all(ctx: &TaskContext, vm: VmUuid) -> Result<(), DriverError> {
    let found = ctx.drivers.storage.snapshots(vm).await?;
    let named = found.iter().filter_map(|found| found.name.strip_prefix(PREFIX));
    for name in named.collect::<BTreeSet<_>>() {
        remove(ctx, vm, name).await?;
        forget(ctx, vm, name).await?;
    }
    ctx.drivers.vms.update(vm, |record| record.snapshots.clear()).await.map(drop)
}

/// Takes the snapshot out of the record, once no disk has it any more.
pub(super) async fn forget(ctx: &TaskContext, vm: VmUuid, name: &str) -> Result<(), DriverError> {
    let forget = |record: &mut VmRecord| record.snapshots.retain(|known| known.name != name);
    ctx.drivers.vms.update(vm, forget).await.map(drop)
}

/// Refuses unless every disk has the snapshot, whatever the record says.
pub(super) async fn on_every_disk(
    ctx: &TaskContext,
    operation: &'static str,
    record: &VmRecord,
    name: &str,
) -> Result<(), TaskFailure> {
    let vm = record.uuid;
    let disks = machine::disks(ctx, operation, record).await?;
    let having = having(ctx, vm, &on_disk(name)).await.map_err(in_words_of(operation))?;
    if record.is_container() && !having.contains(&Role::Root) {
        let text = format!("{operation} error: the root of VM {vm} has no snapshot \"{name}\"");
        return Err(refuse(Code::SnapshotNotFound, text));
    }
    let has = |disk: &Disk| having.contains(&Role::Disk(disk.index));
    let Some(lacking) = disks.iter().find(|disk| !has(disk)) else {
        return Ok(());
    };
    let index = lacking.index;
    let text = format!("{operation} error: disk {index} of VM {vm} has no snapshot \"{name}\"");
    Err(refuse(Code::SnapshotNotFound, text))
}

async fn having(ctx: &TaskContext, vm: VmUuid, name: &str) -> Result<Vec<Role>, DriverError> {
    let found = ctx.drivers.storage.snapshots(vm).await?;
    Ok(found.into_iter().filter(|found| found.name == name).map(|found| found.volume).collect())
}

async fn remove_from(
    ctx: &TaskContext,
    vm: VmUuid,
    name: &str,
    from: Vec<Role>,
) -> Result<(), DriverError> {
    if from.is_empty() {
        return Ok(());
    }
    let drivers = &ctx.drivers;
    let change = SnapshotChange::Delete { name: name.to_owned(), from };
    let left = drivers.compute.snapshot(vm, &change).await?;
    if left.is_empty() {
        return Ok(());
    }
    drivers.storage.delete_snapshot(vm, name, &left).await
}

/// The VM has no such snapshot.
pub(super) fn not_found(operation: &'static str, vm: VmUuid, name: &str) -> TaskFailure {
    let text = format!("{operation} error: No snapshot named \"{name}\" for {vm}");
    refuse(Code::SnapshotNotFound, text)
}

/// Ends the task with the VM.
pub(super) async fn finish(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
) -> Result<(), TaskFailure> {
    machine::runs(ctx, vm).await?;
    machine::record(ctx, operation, vm)?;
    ctx.finish_with(ctx.drivers.vms.result(vm));
    Ok(())
}

/// The driver's refusals in the words of the operation.
pub(super) fn in_words_of(operation: &'static str) -> impl Fn(DriverError) -> TaskFailure {
    failed(operation)
}
