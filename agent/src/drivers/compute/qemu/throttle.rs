//! How fast a guest may use each of its disks: the hypervisor itself slows it down, whatever the
//! host can do. Set before its CPUs start, and again whenever the record changes.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError, QueryBlock};
use crate::vm_record::VmRecord;

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
    for (index, disk) in vm.list("disks").iter().enumerate() {
        let Some(rate) = Rate::of(disk) else { continue };
        // One that the guest does not have yet is limited when it starts next.
        let Some(id) = device_of(&backends, index) else { continue };
        let command = SetThrottle {
            id: id.to_owned(),
            bps: rate.bytes,
            bps_rd: 0,
            bps_wr: 0,
            iops: rate.iops,
            iops_rd: 0,
            iops_wr: 0,
        };
        qmp.send(command, ANSWER_TIMEOUT).await?;
    }
    Ok(())
}

/// The part of a device that reads and writes, which is not always the device that the command line
/// names. The disk's node is called there as in `argv`.
fn device_of(backends: &Value, index: usize) -> Option<&str> {
    let name = format!("disk{index}");
    let is_it = |backend: &&Value| backend["inserted"]["node-name"] == name.as_str();
    backends.as_array()?.iter().find(is_it)?["qdev"].as_str()
}
