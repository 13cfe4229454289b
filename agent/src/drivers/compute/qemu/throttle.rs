//! How fast a guest may use each of its disks: the hypervisor itself slows it down, whatever the
//! host can do. Set before its CPUs start, and again whenever the record changes.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::drives::node_name;
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError, QueryBlock};
use crate::vm_record::VmRecord;
use crate::vm_record::disks::numbered;

const MIB: u64 = 1024 * 1024;

/// Limits of one disk; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rate {
    /// Reads and writes a second.
    iops: u64,
    /// Read and written a second.
    bytes: u64,
}

impl Rate {
    /// None of a disk that was never limited. One that is no longer limited says so with a 0.
    fn of(disk: &Value) -> Option<Self> {
        let number = |name: &str| disk.get(name).and_then(Value::as_u64);
        let (iops, mib) = (number("max_iops"), number("max_mib_per_second"));
        let bytes = mib.unwrap_or(0).saturating_mul(MIB);
        iops.or(mib).map(|_| Self { iops: iops.unwrap_or(0), bytes })
    }
}

/// QEMU wants all that can be told, and takes limits of both directions or of each.
#[derive(Debug, Serialize)]
struct SetThrottle {
    id: String,
    bps: u64,
    bps_rd: u64,
    bps_wr: u64,
    iops: u64,
    iops_rd: u64,
    iops_wr: u64,
}

impl qapi::Command for SetThrottle {
    type Ok = Value;
    const NAME: &'static str = "block_set_io_throttle";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for SetThrottle {}

/// Whether there is anything to set.
pub(super) fn is_wanted(vm: &VmRecord) -> bool {
    vm.list("disks").iter().any(|disk| Rate::of(disk).is_some())
}

/// Gives the disks the limits of the record.
pub(super) async fn set(qmp: &Arc<Qmp>, vm: &VmRecord) -> Result<(), QmpError> {
    if !is_wanted(vm) {
        return Ok(());
    }
    let backends = qmp.execute::<QueryBlock>().await?;
    for (number, disk) in numbered(vm.list("disks")) {
        set_one(qmp, &backends, number, disk).await?;
    }
    Ok(())
}

/// Gives one disk the limits of its description.
pub(super) async fn set_disk(qmp: &Arc<Qmp>, number: u32, disk: &Value) -> Result<(), QmpError> {
    let backends = qmp.execute::<QueryBlock>().await?;
    set_one(qmp, &backends, number, disk).await
}

async fn set_one(
    qmp: &Arc<Qmp>,
    backends: &Value,
    number: u32,
    disk: &Value,
) -> Result<(), QmpError> {
    let Some(rate) = Rate::of(disk) else { return Ok(()) };
    // One that the guest does not have yet is limited when it gets it.
    let Some(id) = device_of(backends, number) else { return Ok(()) };
    let command = SetThrottle {
        id: id.to_owned(),
        bps: rate.bytes,
        bps_rd: 0,
        bps_wr: 0,
        iops: rate.iops,
        iops_rd: 0,
        iops_wr: 0,
    };
    qmp.send(command, ANSWER_TIMEOUT).await.map(drop)
}

/// The part of a device that reads and writes, which is not always the device that the command line
/// names. The disk's node is called there as in `argv`.
fn device_of(backends: &Value, number: u32) -> Option<&str> {
    let name = node_name(number);
    let is_it = |backend: &&Value| backend["inserted"]["node-name"] == name.as_str();
    backends.as_array()?.iter().find(is_it)?["qdev"].as_str()
}
