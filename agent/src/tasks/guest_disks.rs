//! The disks of a guest that runs, brought to what they are to be.

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use super::TaskContext;
use super::guest_nics::unless_hurried;
use crate::drivers::DriverError;
use crate::node::Drivers;
use crate::vm_record::disks::{numbered, numbers};
use crate::vms::live_disks::is_pluggable;

/// Gives a guest these disks, whose files are there. Whatever was done of it before is not done again.
/// Nothing is done about a guest that does not run, or ends meanwhile: it starts with what its record
/// says.
pub(super) async fn settle(
    ctx: &TaskContext,
    vm: VmUuid,
    wanted: &[Value],
) -> Result<(), DriverError> {
    match settle_running(ctx, vm, wanted).await {
        Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(()),
        other => other,
    }
}

async fn settle_running(
    ctx: &TaskContext,
    vm: VmUuid,
    wanted: &[Value],
) -> Result<(), DriverError> {
    let Drivers { compute, storage, .. } = ctx.drivers.as_ref();
    let Some(guest) = compute.disks(vm).await? else { return Ok(()) };
    let kept = numbers(wanted);
    for disk in guest.present.iter().filter(|disk| !kept.contains(&disk.number)) {
        let unplugged = compute.unplug_disk(vm, disk.number);
        unless_hurried(ctx, vm, &format!("disk {}", disk.number), unplugged).await?;
    }
    let has = |number: u32| guest.present.iter().any(|disk| disk.number == number);
    let missing = |(number, disk): &(u32, &Value)| !has(*number) && is_pluggable(disk);
    let missing: Vec<(u32, &Value)> = numbered(wanted).filter(missing).collect();
    if !missing.is_empty() {
        let disks = storage.disks(vm).await?;
        for (number, described) in missing {
            let disk = disks.iter().find(|disk| disk.index == number);
            let lost = || {
                let text = format!("disk {number} of VM {vm} is missing");
                DriverError::refused(Code::DatasetNotFound, text)
            };
            compute.plug_disk(vm, disk.ok_or_else(lost)?, described).await?;
        }
    }
    compute.settle_disks(vm);
    Ok(())
}
