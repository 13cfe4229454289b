//! What is different about a VM that is a container.

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use super::machine::{self, MadeOf, failed, refuse};
use super::{TaskContext, TaskFailure};
use crate::drivers::compute::Abilities;
use crate::drivers::images::ContainerImage;
use crate::drivers::storage;
use crate::host::idmap::IdRange;
use crate::vm_record::{VmRecord, user_ids};
use crate::vms::payload;

/// Refuses a VM of a kind that does not run here.
pub(super) fn check_able(
    properties: &Map<String, Value>,
    abilities: &Abilities,
) -> Result<(), TaskFailure> {
    if payload::is_container(properties) {
        if abilities.containers.is_some() {
            return Ok(());
        }
        let why = abilities.no_containers.as_deref().unwrap_or("nothing runs them");
        let text = format!("containers can't run here: {why}");
        return Err(refuse(Code::ContainerNotSupported, text));
    }
    if abilities.hvm {
        return Ok(());
    }
    let why = abilities.degraded.join("; ");
    Err(refuse(Code::HvmNotSupported, format!("hardware VMs can't run here: {why}")))
}

/// The image of a container.
pub(super) fn image(properties: &Map<String, Value>) -> Result<ImageUuid, TaskFailure> {
    machine::image(properties, "image_uuid")
}

/// What is made from the image of a VM.
pub(super) fn made(properties: &Map<String, Value>) -> MadeOf {
    if payload::is_container(properties) { MadeOf::Root } else { MadeOf::Disk }
}

/// The ids of the host of which a container of this image gets some for its own; `None`: those of the host
/// are its own. A node that can't do that says so in `Muster.degraded`, or its log.
pub(super) async fn spare_ids(
    ctx: &TaskContext,
    operation: &'static str,
    image: ImageUuid,
) -> Result<Option<IdRange>, TaskFailure> {
    let drivers = &ctx.drivers;
    let Some(spare) = drivers.compute.abilities().user_ids else { return Ok(None) };
    let found = installed(ctx, operation, image).await?;
    if found.manifest["requirements"]["host_ids"] == true {
        return Ok(None);
    }
    if let Some(why) = drivers.storage.lacks_ids(user_ids::one_of(spare)).await {
        tracing::warn!(why, "a container gets no user namespace");
        return Ok(None);
    }
    Ok(Some(spare))
}

/// Gives a container ids of its own, unless it has some, or none are spared.
///
/// # Errors
/// `NotSupported`: all of them are other containers'.
pub(super) async fn give_ids(
    ctx: &TaskContext,
    vm: VmUuid,
    spare: Option<IdRange>,
    change: impl FnOnce(&mut VmRecord) + Send,
) -> Result<VmRecord, TaskFailure> {
    let vms = &ctx.drivers.vms;
    let give = |record: &mut VmRecord| {
        change(record);
        if let Some(spare) = spare.filter(|_| record.user_ids.is_none()) {
            record.user_ids = vms.free_ids(spare);
        }
    };
    let record = vms.update(vm, give).await?;
    if spare.is_some() && record.user_ids.is_none() {
        let text = "all ids that containers may have for their own are given to others";
        return Err(refuse(Code::NotSupported, text));
    }
    Ok(record)
}

/// Refuses a container whose root is gone.
pub(super) async fn must_have_root(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
) -> Result<ImageUuid, TaskFailure> {
    let failed = failed(operation);
    let image = ctx.drivers.storage.root(vm).await.map_err(&failed)?;
    image.ok_or_else(|| failed(storage::no_root(vm)))
}

/// The image of containers that a root was made from.
pub(super) async fn installed(
    ctx: &TaskContext,
    operation: &'static str,
    image: ImageUuid,
) -> Result<ContainerImage, TaskFailure> {
    let failed = failed(operation);
    let found = ctx.drivers.images.container(image).await.map_err(&failed)?;
    found.ok_or_else(|| failed(storage::image_not_installed(image)))
}
