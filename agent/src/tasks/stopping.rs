//! How the process of a VM is stopped: its guest is asked, then it is killed.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::json;

use super::machine::{FORCED, clean_up, failed, has_panicked, refuse, runs, signal};
use super::{TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestSignal;

/// A guest that was started less than this ago may still be booting, and miss its power button.
const BOOTING: Duration = Duration::from_secs(120);
/// Between presses of the button of a guest that may be booting.
const BUTTON_WHILE_BOOTING: Duration = Duration::from_secs(10);
/// Between presses otherwise: one that is shutting down may take another press for an order to cut
/// that short, so that it is pressed again only when nothing came of it.
const BUTTON_AGAIN: Duration = Duration::from_secs(60);
/// Time the hypervisor has to end by itself.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time a killed process has to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How a VM is to be stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// Without asking the guest.
    pub(super) force: bool,
    /// The end of the guest's time; survives a restart of the agent.
    pub(super) until: Timestamp,
    /// At most this long, whatever the wall clock did meanwhile.
    pub(super) at_most: Duration,
}

/// Stops the VM's process. One that does not run is no error.
pub(super) async fn stop(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
    how: Stop,
) -> Result<(), TaskFailure> {
    let failed = failed(operation);
    let compute = &ctx.drivers.compute;
    let stopped = if how.force {
        lenient(ctx, vm, GuestSignal::Quit).await;
        compute.wait_stopped(vm, QUIT_TIMEOUT).await.map_err(&failed)?
    } else {
        ask(ctx, vm, how).await.map_err(&failed)?
    };
    if !stopped {
        signal(ctx, vm, GuestSignal::Kill).await.map_err(&failed)?;
        if !compute.wait_stopped(vm, KILL_TIMEOUT).await.map_err(&failed)? {
            let text = format!("{operation} error: the process of VM {vm} does not end");
            return Err(refuse(Code::VmNotStopped, text));
        }
        if !how.force {
            tracing::warn!(vm_uuid = %vm, "a guest did not shut down in its time and was ended");
            ctx.result.lock()[FORCED] = json!(true);
        }
    }
    clean_up(ctx, operation, vm, false).await?;
    runs(ctx, vm).await?;
    Ok(())
}

fn may_be_booting(ctx: &TaskContext, vm: VmUuid) -> bool {
    let Some(entry) = ctx.drivers.vms.entry(vm) else { return false };
    let Some(live) = entry.observed.live() else { return false };
    let now_ms = u64::try_from(ctx.drivers.clock.wall().as_millisecond()).unwrap_or(0);
    Duration::from_millis(now_ms.saturating_sub(live.booted_at_ms)) < BOOTING
}

fn given_up(vm: VmUuid) -> DriverError {
    let text = format!("VM {vm} was still shutting down when its task was stopped");
    DriverError::refused(Code::Cancelled, text)
}

/// Presses the power button until the guest is gone or its time is over. Somebody in a hurry cuts
/// that time short; the end of the task leaves the guest alone.
async fn ask(ctx: &TaskContext, vm: VmUuid, how: Stop) -> Result<bool, DriverError> {
    let clock = &ctx.drivers.clock;
    let left = how.until.duration_since(clock.wall());
    let left = Duration::try_from(left).unwrap_or(Duration::ZERO).min(how.at_most);
    let deadline = clock.monotonic() + left;
    loop {
        if has_panicked(ctx, vm) {
            // Nobody hears the button.
            return Ok(false);
        }
        lenient(ctx, vm, GuestSignal::PowerDown).await;
        let again = if may_be_booting(ctx, vm) { BUTTON_WHILE_BOOTING } else { BUTTON_AGAIN };
        let left = deadline.saturating_sub(clock.monotonic());
        let stopped = tokio::select! {
            biased;
            () = ctx.hurried.cancelled() => return Ok(false),
            // The task's time is over, not the guest's.
            () = ctx.cancelled.cancelled() => return Err(given_up(vm)),
            stopped = ctx.drivers.compute.wait_stopped(vm, left.min(again)) => stopped?,
        };
        if stopped {
            return Ok(true);
        }
        if clock.monotonic() >= deadline {
            return Ok(false);
        }
    }
}

/// Sends a signal that a hypervisor which hangs can't take: the kill that follows needs no
/// cooperation.
async fn lenient(ctx: &TaskContext, vm: VmUuid, wanted: GuestSignal) {
    if let Err(error) = signal(ctx, vm, wanted).await {
        let error = Chain(&error).to_string();
        tracing::warn!(vm_uuid = %vm, signal = ?wanted, error, "a VM could not be signalled");
    }
}
