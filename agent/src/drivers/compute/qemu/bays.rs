//! Disks of a guest that runs: which it has, and one more. What it has is asked of its hypervisor
//! each time, so that an agent that starts anew knows as much as the last one.
//!
//! By then the hypervisor is a user without rights: the agent opens the files and hands them over.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_shared::ids::VmUuid;
use muster_shared::vm::MAX_DEVICES;
use muster_shared::wire::Code;
use serde::Serialize;
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::hotplug::{DeviceAdd, devices, property};
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError};
use super::{Qemu, drives, nics, throttle};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestDisk, GuestDisks};
use crate::drivers::storage::qcow2::content::MAX_ORIGINS;
use crate::drivers::storage::{Disk, qcow2};

/// Sets of descriptors are numbered; so many are kept for each disk, its own file first.
const FIRST_SET: u32 = 1000;
const SETS: u32 = 64;
/// Files that a disk may be based on, one on another: its image, and what that builds on.
const MAX_BASES: usize = MAX_ORIGINS + 1;

/// Takes the descriptor that comes with it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct AddFd {
    fdset_id: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct RemoveFd {
    fdset_id: u32,
}

#[derive(Debug, Serialize)]
struct QueryFdsets {}

#[derive(Debug, Serialize)]
struct QueryNodes {
    flat: bool,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct BlockdevAdd(Value);

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct BlockdevDel {
    node_name: String,
}

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
    AddFd: "add-fd";
    RemoveFd: "remove-fd";
    QueryFdsets: "query-fdsets";
    QueryNodes: "query-named-block-nodes";
    BlockdevAdd: "blockdev-add";
    BlockdevDel: "blockdev-del";
}

/// The files of a disk, open: its own, and those that it is based on, one on another.
pub(super) struct Files {
    own: OwnedFd,
    bases: Vec<OwnedFd>,
}

/// The numbers of the sets of a disk.
fn sets(number: u32) -> Range<u32> {
    let first = FIRST_SET + SETS * number;
    first..first + SETS
}

/// How the hypervisor opens what is in a set.
fn path_of(set: u32) -> PathBuf {
    PathBuf::from(format!("/dev/fdset/{set}"))
}

/// The numbers whose bay is there and has nothing in it. A machine without ports has a bus instead, in
/// which there is room for some.
fn free_bays(devices: &BTreeSet<String>) -> BTreeSet<u32> {
    let has_ports = devices.iter().any(|name| nics::slot_of(name).is_some());
    let all: BTreeSet<u32> = if has_ports {
        devices.iter().filter_map(|name| drives::bay_of(name)).collect()
    } else {
        (1..u32::try_from(MAX_DEVICES).unwrap_or(0)).collect()
    };
    all.into_iter().filter(|number| !devices.contains(&drives::device_id(*number))).collect()
}

async fn read(qmp: &Arc<Qmp>) -> Result<GuestDisks, QmpError> {
    let devices = devices(qmp).await?;
    let mut present = Vec::new();
    for device in &devices {
        let Some(number) = drives::number_of(device) else { continue };
        let removable = property(qmp, device, "hotpluggable").await?;
        let Some(removable) = removable else { continue };
        present.push(GuestDisk { number, removable: removable == true });
    }
    present.sort_by_key(|disk| disk.number);
    Ok(GuestDisks { present, free: free_bays(&devices) })
}

/// Opens what the guest is to get.
pub(super) async fn open(disk: &Disk) -> io::Result<Files> {
    let own = File::options().read(true).write(true).open(&disk.path).await?;
    let mut base = match disk.format.as_str() {
        "qcow2" => base_of(&disk.path).await?,
        _ => None,
    };
    let mut bases = Vec::new();
    while let Some(path) = base {
        if bases.len() >= MAX_BASES {
            let text = format!("it is based on more than {MAX_BASES} files");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        bases.push(File::open(&path).await?.into_std().await.into());
        base = base_of(&path).await?;
    }
    Ok(Files { own: own.into_std().await.into(), bases })
}

/// The file that a disk, or an image, names as its base.
async fn base_of(disk: &Path) -> io::Result<Option<PathBuf>> {
    let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut file = File::open(disk).await?;
    let mut start = vec![0; qcow2::HEADER_BYTES];
    file.read_exact(&mut start).await?;
    let Some(name) = qcow2::base_name(&start).map_err(damaged)? else { return Ok(None) };
    file.seek(io::SeekFrom::Start(name.offset_bytes)).await?;
    let mut text = vec![0; name.length_bytes];
    file.read_exact(&mut text).await?;
    let folder = disk.parent().unwrap_or(Path::new("/"));
    Ok(Some(folder.join(OsStr::from_bytes(&text))))
}

/// Lets go of the descriptors: what the hypervisor opened of them stays open.
async fn forget_files(qmp: &Arc<Qmp>, number: u32) -> Result<(), QmpError> {
    let known = qmp.send(QueryFdsets {}, ANSWER_TIMEOUT).await?;
    let known = known.as_array().into_iter().flatten();
    let known = known.filter_map(|set| u32::try_from(set["fdset-id"].as_u64()?).ok());
    for fdset_id in known.filter(|set| sets(number).contains(set)) {
        match qmp.send(RemoveFd { fdset_id }, ANSWER_TIMEOUT).await {
            // There is none, as ever.
            Ok(_) | Err(QmpError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Closes the node of a disk that the guest does not have; true: it is closed.
pub(super) async fn close(qmp: &Arc<Qmp>, number: u32) -> Result<bool, QmpError> {
    let node_name = drives::node_name(number);
    let nodes = qmp.send(QueryNodes { flat: true }, ANSWER_TIMEOUT).await?;
    let is_it = |node: &Value| node["node-name"] == node_name.as_str();
    if !nodes.as_array().is_some_and(|nodes| nodes.iter().any(is_it)) {
        return Ok(true);
    }
    match qmp.send(BlockdevDel { node_name }, ANSWER_TIMEOUT).await {
        // Its device lets go of it a moment after it is gone.
        Err(QmpError::Refused { reason, .. }) if reason.contains("in use") => Ok(false),
        other => other.map(|_| true),
    }
}

/// Takes away what an agent left that died over a disk.
async fn clear(qmp: &Arc<Qmp>, number: u32) -> Result<(), QmpError> {
    close(qmp, number).await?;
    forget_files(qmp, number).await
}

/// Has the hypervisor open a disk.
pub(super) async fn add_node(
    qmp: &Arc<Qmp>,
    disk: &Disk,
    described: &Value,
    files: Files,
) -> Result<(), QmpError> {
    let mut paths = Vec::new();
    for (fd, fdset_id) in std::iter::once(files.own).chain(files.bases).zip(sets(disk.index)) {
        qmp.hand_over(fd, AddFd { fdset_id }, ANSWER_TIMEOUT).await?;
        paths.push(path_of(fdset_id));
    }
    let node = drives::node_on_bases(disk, described, &paths);
    qmp.send(BlockdevAdd(node), ANSWER_TIMEOUT).await.map(drop)
}

async fn add(
    qmp: &Arc<Qmp>,
    disk: &Disk,
    described: &Value,
    files: Files,
    in_bay: bool,
) -> Result<(), QmpError> {
    let number = disk.index;
    add_node(qmp, disk, described, files).await?;
    forget_files(qmp, number).await?;
    let device = drives::device(number, described, in_bay);
    qmp.send(DeviceAdd(device), ANSWER_TIMEOUT).await.map(drop)
}

impl Qemu {
    pub(super) async fn guest_disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError> {
        let read = async {
            let qmp = self.hypervisor(vm).await?;
            match read(&qmp).await {
                Ok(disks) => Ok(disks),
                Err(error) => Err(self.lost(vm, error).await),
            }
        };
        match read.await {
            Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    pub(super) async fn plug_in(
        &self,
        vm: VmUuid,
        disk: &Disk,
        described: &Value,
    ) -> Result<(), DriverError> {
        let qmp = self.hypervisor(vm).await?;
        let plugged = match devices(&qmp).await {
            Ok(present) if present.contains(&drives::device_id(disk.index)) => Ok(()),
            Ok(present) => self.add_disk(vm, &qmp, disk, described, &present).await?,
            Err(error) => Err(error),
        };
        // Also of one that an agent plugged in and died over.
        let limited = match plugged {
            Ok(()) => throttle::set_disk(&qmp, disk.index, described).await,
            Err(error) => Err(error),
        };
        match limited {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(vm, error).await),
        }
    }

    /// What the hypervisor refuses is within.
    async fn add_disk(
        &self,
        vm: VmUuid,
        qmp: &Arc<Qmp>,
        disk: &Disk,
        described: &Value,
        present: &BTreeSet<String>,
    ) -> Result<Result<(), QmpError>, DriverError> {
        self.guests.settle_disks(vm, false);
        let number = disk.index;
        if let Err(error) = clear(qmp, number).await {
            return Ok(Err(error));
        }
        let files = open(disk).await.map_err(|error| {
            DriverError::failed(format!("open {} for VM {vm}", disk.path.display()), error)
        })?;
        let in_bay = present.contains(&drives::bay_id(number));
        let added = add(qmp, disk, described, files, in_bay).await;
        if added.is_ok() {
            self.has_anew(vm, &drives::device_id(number));
        } else if let Err(error) = clear(qmp, number).await {
            // The next attempt does it.
            tracing::warn!(%error, number, "the file of a disk is left open");
        }
        Ok(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bays_are_free_that_are_there_and_hold_nothing() {
        let free =
            |devices: &[&str]| free_bays(&devices.iter().map(|name| (*name).to_owned()).collect());
        let machine = ["spare1", "bay1", "bay2", "bay3", "disk0dev", "nic0", "cidatabay"];
        assert_eq!(free(&machine), BTreeSet::from([1, 2, 3]));
        assert_eq!(free(&[&machine[..], &["disk2dev"]].concat()), BTreeSet::from([1, 3]));
        // Of an agent that knew no bays; and the old machine.
        assert_eq!(free(&["spare1", "disk0dev"]), BTreeSet::new());
        let free = free(&["nic0", "disk0dev", "disk3dev"]);
        assert_eq!((free.contains(&0), free.contains(&3), free.len()), (false, false, 30));
    }
}
