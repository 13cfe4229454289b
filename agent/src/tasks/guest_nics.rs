//! The network interfaces of a guest that runs, and their host's side, brought to what they are to be.

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use super::TaskContext;
use crate::drivers::DriverError;
use crate::drivers::compute::GuestNic;
use crate::drivers::network::{Attached, Backend, Nic};
use crate::node::Drivers;
use crate::vms::live_nics;

/// Gives a guest the NICs of these properties, and the host's side of each what they say. Whatever was
/// done of it before is not done again. Nothing is done about a guest that does not run, or ends
/// meanwhile: it starts with what its record says.
///
/// Devices go before their host's side does, and come after it: one that the guest keeps is never cut
/// off.
pub(super) async fn settle(
    ctx: &TaskContext,
    vm: VmUuid,
    wanted: &Map<String, Value>,
) -> Result<Vec<Attached>, DriverError> {
    match settle_running(ctx, vm, wanted).await {
        Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(Vec::new()),
        other => other,
    }
}

async fn settle_running(
    ctx: &TaskContext,
    vm: VmUuid,
    wanted: &Map<String, Value>,
) -> Result<Vec<Attached>, DriverError> {
    let Drivers { compute, networks, .. } = ctx.drivers.as_ref();
    let Some(guest) = compute.nics(vm).await? else { return Ok(Vec::new()) };
    let nics = wanted.get("nics").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for nic in guest.present.iter().filter(|nic| !live_nics::is_among(nics, nic)) {
        unplug(ctx, vm, nic).await?;
    }
    let attached = networks.attach(vm, &Nic::of(wanted)?).await?;
    let has = |nic: &Nic| guest.present.iter().any(|had| had.mac == nic.mac);
    for attached in attached.iter().filter(|attached| !has(&attached.nic)) {
        compute.plug_nic(vm, attached).await?;
    }
    for attached in &attached {
        compute.set_link(vm, &attached.nic).await?;
    }
    compute.settle_nics(vm);
    Ok(attached)
}

async fn unplug(ctx: &TaskContext, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError> {
    let unplugged = ctx.drivers.compute.unplug_nic(vm, nic);
    unless_hurried(ctx, vm, "a network interface", unplugged).await
}

/// Somebody in a hurry does not wait until the guest has given something up.
pub(super) async fn unless_hurried(
    ctx: &TaskContext,
    vm: VmUuid,
    device: &str,
    given_up: impl Future<Output = Result<(), DriverError>>,
) -> Result<(), DriverError> {
    let stopped = || {
        let text = format!("VM {vm} had not given up {device} when its task was stopped");
        Err(DriverError::refused(Code::Cancelled, text))
    };
    tokio::select! {
        biased;
        given_up = given_up => given_up,
        () = ctx.hurried.cancelled() => stopped(),
        () = ctx.cancelled.cancelled() => stopped(),
    }
}

/// Whether the host's side is one whose addresses are those of the record: a user-mode network has its
/// own.
pub(super) fn is_on_bridge(attached: &[Attached], mac: &str) -> bool {
    let mut taps = attached
        .iter()
        .filter(|nic| matches!(nic.backend, Backend::Tap { .. } | Backend::Pair { .. }));
    taps.any(|attached| attached.nic.mac == mac)
}
