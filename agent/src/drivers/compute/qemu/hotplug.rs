//! Network interfaces of a guest that runs: which it has, and one more. What it has is asked of
//! its hypervisor each time, so that an agent that starts anew knows as much as the last one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::vm::MAX_DEVICES;
use muster_shared::wire::Code;
use serde::Serialize;
use serde_json::{Map, Value};

use super::nics::{self, Card};
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError};
use super::{Qemu, not_running, talk_failed};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestNic, GuestNics};
use crate::drivers::network::{Attached, Backend};
use crate::host::Tap;

/// Longest wait for the end of a process whose control socket has gone.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Where the hypervisor keeps the devices that have names.
const DEVICES: &str = "/machine/peripheral";

#[derive(Debug, Serialize)]
struct QomList {
    path: &'static str,
}

#[derive(Debug, Serialize)]
struct QomGet {
    path: String,
    property: &'static str,
}

/// Takes the descriptor that comes with it.
#[derive(Debug, Serialize)]
struct GetFd {
    fdname: String,
}

#[derive(Debug, Serialize)]
struct CloseFd {
    fdname: String,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct NetdevAdd(Value);

#[derive(Debug, Serialize)]
struct NetdevDel {
    id: String,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct DeviceAdd(pub(super) Map<String, Value>);

macro_rules! commands {
    ($($command:ty: $name:literal;)+) => {
        $(
            impl qapi::Command for $command {
                type Ok = Value;
                const NAME: &'static str = $name;
                const ALLOW_OOB: bool = false;
            }

            impl qapi::qmp::QmpCommand for $command {}
        )+
    };
}

commands! {
    QomList: "qom-list";
    QomGet: "qom-get";
    GetFd: "getfd";
    CloseFd: "closefd";
    NetdevAdd: "netdev_add";
    NetdevDel: "netdev_del";
    DeviceAdd: "device_add";
}

/// The names of all devices that have one.
pub(super) async fn devices(qmp: &Arc<Qmp>) -> Result<BTreeSet<String>, QmpError> {
    let listed = qmp.send(QomList { path: DEVICES }, ANSWER_TIMEOUT).await?;
    let names = listed.as_array().into_iter().flatten().filter_map(|it| it["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// A property of a device; `None`: the device is gone.
pub(super) async fn property(
    qmp: &Arc<Qmp>,
    device: &str,
    property: &'static str,
) -> Result<Option<Value>, QmpError> {
    let path = format!("{DEVICES}/{device}");
    absent(qmp.send(QomGet { path, property }, ANSWER_TIMEOUT).await)
}

/// What is not there is no error.
pub(super) fn absent<T>(answer: Result<T, QmpError>) -> Result<Option<T>, QmpError> {
    match answer {
        Err(QmpError::Refused { not_found: true, .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// The numbers whose slot is there and has nothing in it. A machine without ports has a bus instead, in
/// which there is room for some.
fn free_slots(devices: &BTreeSet<String>) -> BTreeSet<usize> {
    let ports: BTreeSet<usize> = devices.iter().filter_map(|name| nics::slot_of(name)).collect();
    let all = if ports.is_empty() { (0..MAX_DEVICES).collect() } else { ports };
    all.into_iter().filter(|number| !devices.contains(&nics::device_id(*number))).collect()
}

async fn read(qmp: &Arc<Qmp>) -> Result<GuestNics, QmpError> {
    let devices = devices(qmp).await?;
    let mut present = Vec::new();
    for device in &devices {
        let Some(number) = nics::number_of(device) else { continue };
        let mac = property(qmp, device, "mac").await?;
        let removable = property(qmp, device, "hotpluggable").await?;
        let (Some(mac), Some(removable)) = (mac, removable) else { continue };
        let mac = mac.as_str().unwrap_or_default().to_lowercase();
        present.push(GuestNic { number, mac, removable: removable == true });
    }
    present.sort_by_key(|nic| nic.number);
    Ok(GuestNics { present, free: free_slots(&devices) })
}

/// Takes away what an agent left that died over a NIC: its host's side, and a tap that was handed over
/// and not used. Nobody else could open that.
async fn clear(qmp: &Arc<Qmp>, number: usize) -> Result<(), QmpError> {
    remove_netdev(qmp, number).await?;
    match qmp.send(CloseFd { fdname: nics::netdev_id(number) }, ANSWER_TIMEOUT).await {
        // There is none, as ever.
        Err(QmpError::Refused { .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// Hands the host's end of a NIC to the hypervisor.
pub(super) async fn hand_over(qmp: &Arc<Qmp>, number: usize, tap: Tap) -> Result<(), QmpError> {
    let take = GetFd { fdname: nics::netdev_id(number) };
    qmp.hand_over(tap.into(), take, ANSWER_TIMEOUT).await.map(drop)
}

/// Makes the host's side of a NIC.
pub(super) async fn add_netdev(qmp: &Arc<Qmp>, attached: &Attached) -> Result<(), QmpError> {
    qmp.send(NetdevAdd(nics::netdev(attached)), ANSWER_TIMEOUT).await.map(drop)
}

async fn add(
    qmp: &Arc<Qmp>,
    attached: &Attached,
    tap: Option<Tap>,
    in_slot: bool,
) -> Result<(), QmpError> {
    if let Some(tap) = tap {
        hand_over(qmp, attached.nic.number, tap).await?;
    }
    add_netdev(qmp, attached).await?;
    let card = Card::new(attached, in_slot).booted_from(None);
    qmp.send(DeviceAdd(card.members()), ANSWER_TIMEOUT).await.map(drop)
}

/// Closes the host's side of a NIC, if there is one.
pub(super) async fn remove_netdev(qmp: &Arc<Qmp>, number: usize) -> Result<(), QmpError> {
    let id = nics::netdev_id(number);
    absent(qmp.send(NetdevDel { id }, ANSWER_TIMEOUT).await).map(drop)
}

impl Qemu {
    pub(super) async fn guest_nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError> {
        let read = async {
            let qmp = self.hypervisor(vm).await?;
            match read(&qmp).await {
                Ok(nics) => Ok(nics),
                Err(error) => Err(self.lost(vm, error).await),
            }
        };
        match read.await {
            Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    pub(super) async fn plug(&self, vm: VmUuid, attached: &Attached) -> Result<(), DriverError> {
        let qmp = self.hypervisor(vm).await?;
        let number = attached.nic.number;
        let present = match devices(&qmp).await {
            Ok(present) => present,
            Err(error) => return Err(self.lost(vm, error).await),
        };
        if present.contains(&nics::device_id(number)) {
            return Ok(());
        }
        self.guests.settle_nics(vm, false);
        if let Err(error) = clear(&qmp, number).await {
            return Err(self.lost(vm, error).await);
        }
        let tap = open_tap(attached)?;
        let in_slot = present.contains(&nics::port_id(number));
        let Err(error) = add(&qmp, attached, tap, in_slot).await else {
            self.has_anew(vm, &nics::device_id(number));
            return Ok(());
        };
        if let Err(error) = clear(&qmp, number).await {
            // The next attempt does it.
            tracing::warn!(%error, number, "the host's side of a network interface is left");
        }
        Err(self.lost(vm, error).await)
    }

    /// Notes that a guest has a device which it may have been asked for before.
    pub(super) fn has_anew(&self, vm: VmUuid, device: &str) {
        if let Err(error) = self.guests.folder(vm).forget_asked(device) {
            // At worst the next agent looks once more.
            tracing::warn!(vm_uuid = %vm, device, %error, "a question to a guest is not forgotten");
        }
    }

    /// The connection to the hypervisor of a guest that runs.
    pub(super) async fn hypervisor(&self, vm: VmUuid) -> Result<Arc<Qmp>, DriverError> {
        match self.guests.qmp(vm).await {
            Err(_) if self.guests.live(vm).is_none() => Err(not_running(vm)),
            other => other,
        }
    }

    /// A guest that ended meanwhile has nothing that could be changed.
    pub(super) async fn lost(&self, vm: VmUuid, error: QmpError) -> DriverError {
        if matches!(error, QmpError::Io(_)) {
            // A process goes a moment after its control socket.
            drop(tokio::time::timeout(END_TIMEOUT, self.guests.gone(vm)).await);
        }
        match self.guests.live(vm) {
            Some(_) => talk_failed(vm, error),
            None => not_running(vm),
        }
    }
}

/// By now the hypervisor is a user without rights: the agent opens it.
fn open_tap(attached: &Attached) -> Result<Option<Tap>, DriverError> {
    match &attached.backend {
        Backend::User { .. } | Backend::Pair { .. } => Ok(None),
        Backend::Tap { name, .. } => {
            let opened = Tap::open(name).map(Some);
            opened.map_err(|error| DriverError::failed(format!("open tap {name}"), error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_free_that_are_there_and_hold_nothing() {
        let free =
            |devices: &[&str]| free_slots(&devices.iter().map(|name| (*name).to_owned()).collect());
        let ports = ["spare1", "spare2", "spare3", "spare4", "disk0dev", "nic0"];
        assert_eq!(free(&ports), BTreeSet::from([1, 2, 3]));
        assert_eq!(free(&[&ports[..], &["nic2", "nic9"]].concat()), BTreeSet::from([1, 3]));
        // The old machine.
        let free = free(&["nic0", "disk0dev"]);
        assert_eq!((free.contains(&0), free.contains(&1), free.len()), (false, true, 31));
    }
}
