//! One device less for a guest that runs: it is asked until it has given the device up, or for too long.
//! What it was asked for it may give up at any later time, so that is noted where the next agent finds
//! it.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::Serialize;
use serde_json::Value;

use super::control::Control;
use super::hotplug::{absent, devices, remove_netdev};
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError};
use super::{Qemu, bays, drives, nics, not_running};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestNic;

/// Longest wait until a guest has given up a device.
const UNPLUG_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is asked: one that boots does not hear it.
const UNPLUG_PERIOD: Duration = Duration::from_secs(3);

/// Asks the guest to give it up.
#[derive(Debug, Serialize)]
struct DeviceDel {
    id: String,
}

impl qapi::Command for DeviceDel {
    type Ok = Value;
    const NAME: &'static str = "device_del";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for DeviceDel {}

/// What a guest is asked for, by its number.
#[derive(Clone, Copy, Debug)]
enum Device {
    Nic(usize),
    Disk(u32),
}

impl Device {
    fn id(self) -> String {
        match self {
            Self::Nic(number) => nics::device_id(number),
            Self::Disk(number) => drives::device_id(number),
        }
    }

    /// How many of its kind the guest has given up.
    fn removed(self, control: &Control) -> u64 {
        match self {
            Self::Nic(_) => control.nics_removed,
            Self::Disk(_) => control.disks_removed,
        }
    }

    /// Closes what the hypervisor has open for one that the guest does not have; true: it is closed.
    async fn close(self, qmp: &Arc<Qmp>) -> Result<bool, QmpError> {
        match self {
            Self::Nic(number) => remove_netdev(qmp, number).await.map(|()| true),
            Self::Disk(number) => bays::close(qmp, number).await,
        }
    }
}

/// Asks a guest for a device, once more if it was asked before.
async fn ask(qmp: &Arc<Qmp>, id: String) -> Result<(), QmpError> {
    match absent(qmp.send(DeviceDel { id }, ANSWER_TIMEOUT).await) {
        // Some versions need not be told again.
        Err(QmpError::Refused { reason, .. }) if reason.contains("in the process of unplug") => {
            Ok(())
        }
        other => other.map(drop),
    }
}

impl Qemu {
    /// Returns once the guest has given up the network interface.
    pub(super) async fn unplug(&self, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError> {
        self.guests.settle_nics(vm, false);
        match self.pull(vm, Device::Nic(nic.number)).await {
            Some(pulled) => pulled,
            None => {
                Err(keeps(vm, &format!("its network interface {} (net{})", nic.mac, nic.number)))
            }
        }
    }

    /// Returns once the guest has given up the disk.
    pub(super) async fn pull_out(&self, vm: VmUuid, number: u32) -> Result<(), DriverError> {
        self.guests.settle_disks(vm, false);
        match self.pull(vm, Device::Disk(number)).await {
            Some(pulled) => pulled,
            None => Err(keeps(vm, &format!("disk {number}"))),
        }
    }

    /// `None`: the guest keeps it.
    async fn pull(&self, vm: VmUuid, device: Device) -> Option<Result<(), DriverError>> {
        tokio::time::timeout(UNPLUG_TIMEOUT, self.ask_until_gone(vm, device)).await.ok()
    }

    async fn ask_until_gone(&self, vm: VmUuid, device: Device) -> Result<(), DriverError> {
        let id = device.id();
        loop {
            let qmp = self.hypervisor(vm).await?;
            let guest = self.guests.get(vm).ok_or_else(|| not_running(vm))?;
            let removed = device.removed(&guest.control.borrow());
            match self.ask_for(vm, &qmp, device).await {
                Ok(true) => {
                    self.has_anew(vm, &id);
                    return Ok(());
                }
                Ok(false) => {}
                Err(AskError::Note(error)) => return Err(error),
                Err(AskError::Qmp(error)) => return Err(self.lost(vm, error).await),
            }
            guest.wait(UNPLUG_PERIOD, |control| device.removed(control) != removed).await;
        }
    }

    /// True: the guest does not have it, and all of it is closed.
    async fn ask_for(&self, vm: VmUuid, qmp: &Arc<Qmp>, device: Device) -> Result<bool, AskError> {
        let id = device.id();
        if !devices(qmp).await?.contains(&id) {
            return Ok(device.close(qmp).await?);
        }
        self.guests.folder(vm).note_asked(&id).map_err(|error| {
            AskError::Note(DriverError::failed(
                format!("note that VM {vm} is asked for {id}"),
                error,
            ))
        })?;
        ask(qmp, id).await?;
        Ok(false)
    }
}

/// Why a guest was not asked.
#[derive(Debug)]
enum AskError {
    Note(DriverError),
    Qmp(QmpError),
}

impl From<QmpError> for AskError {
    fn from(error: QmpError) -> Self {
        Self::Qmp(error)
    }
}

fn keeps(vm: VmUuid, what: &str) -> DriverError {
    let text = format!(
        "the guest of VM {vm} did not give up {what} within {} s, and keeps it: it is booting, paused, or \
         hangs, or its system can't do that. Try again, or have it restarted: with reboot=always, or \
         muster vm update --reboot",
        UNPLUG_TIMEOUT.as_secs()
    );
    DriverError::refused(Code::GuestRefused, text)
}
