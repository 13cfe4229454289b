//! Memory that a guest gives back while it runs, and takes again: never more than it was started with.
//! Its system does it, with a driver for the device; the hypervisor tells how much it has.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::Qemu;
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError, QueryBalloon};
use crate::drivers::DriverError;

/// The device, as the command line has it.
pub(super) const DEVICE: &str = "virtio-balloon-pci,id=balloon0";
/// Longest wait for a guest that gives memory back.
const PATIENCE: Duration = Duration::from_secs(60);
/// One that has not moved for so long has no driver, or nothing to give.
const STALL: Duration = Duration::from_secs(5);
/// How often the hypervisor is asked.
const PERIOD: Duration = Duration::from_millis(200);
/// The hypervisor tells of it at most once a second.
const NEWS: Duration = Duration::from_secs(3);

/// What the guest is to have, bytes.
#[derive(Debug, Serialize)]
struct Balloon {
    value: u64,
}

impl qapi::Command for Balloon {
    type Ok = Value;
    const NAME: &'static str = "balloon";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for Balloon {}

/// What the guest has, bytes; `None`: it has no such device.
pub(super) async fn actual(qmp: &Arc<Qmp>) -> Result<Option<u64>, QmpError> {
    match qmp.execute::<QueryBalloon>().await {
        Ok(told) => Ok(told["actual"].as_u64()),
        Err(QmpError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until the guest has so many bytes, or does not come nearer.
async fn reach(qmp: &Arc<Qmp>, wanted: u64) -> Result<u64, QmpError> {
    let mut nearest = u64::MAX;
    let mut still = Duration::ZERO;
    loop {
        let now = actual(qmp).await?.unwrap_or(wanted);
        let left = now.abs_diff(wanted);
        if left < nearest {
            (nearest, still) = (left, Duration::ZERO);
        }
        if left == 0 || still >= STALL {
            return Ok(now);
        }
        sleep(PERIOD).await;
        still += PERIOD;
    }
}

impl Qemu {
    /// Returns once the guest has as much memory as it is to have, or won't.
    pub(super) async fn inflate(&self, vm: VmUuid, ram_mib: u64) -> Result<(), DriverError> {
        let qmp = match self.hypervisor(vm).await {
            Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => return Ok(()),
            other => other?,
        };
        match self.inflate_with(&qmp, vm, ram_mib).await {
            Ok(()) => Ok(()),
            Err(error) => match self.lost(vm, error).await {
                DriverError::Refused { code: Code::VmNotRunning, .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    async fn inflate_with(&self, qmp: &Arc<Qmp>, vm: VmUuid, ram_mib: u64) -> Result<(), QmpError> {
        let Some(guest) = self.guests.get(vm) else { return Ok(()) };
        if actual(qmp).await?.is_none() {
            // It was started without the device.
            return Ok(());
        }
        let most_mib = guest.ram_mib.unwrap_or(ram_mib);
        let value = ram_mib.min(most_mib).saturating_mul(MIB);
        qmp.send(Balloon { value }, ANSWER_TIMEOUT).await?;
        // Out of time it goes on by itself.
        if let Ok(reached) = timeout(PATIENCE, reach(qmp, value)).await {
            let reached = reached?;
            guest.wait(NEWS, |control| control.memory_bytes == Some(reached)).await;
        }
        Ok(())
    }
}
