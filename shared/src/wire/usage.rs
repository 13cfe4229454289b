//! What each VM uses: counters since its process started, and what it has now. A member is absent
//! when nobody can tell it; it is never 0 for that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::VmUuid;
use crate::vm::json_bytes;

/// A VM's key in a map of figures with its punctuation, bytes.
const KEY_BYTES: usize = 40;

/// What the VMs of a server use, by uuid; those that do not run have no entry.
pub type Usages = BTreeMap<VmUuid, VmUsage>;

/// What one VM uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmUsage {
    /// When the figures of its process were read, ms since the epoch by its server's clock.
    pub at_ms: u64,
    /// When its process started, ms since the epoch; the counters began at 0 then.
    pub started_at_ms: u64,
    /// When the guest booted last, ms since the epoch.
    pub booted_at_ms: u64,
    /// CPU time of all threads of its hypervisor, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// CPU time of its virtual CPUs, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu_ms: Option<u64>,
    /// Time for which its virtual CPUs were ready to run but the host gave them no CPU, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_delay_ms: Option<u64>,
    /// Memory of the host that its process has, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// What it did to its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskUsage>,
    /// Without `disk`: for how long its hypervisor has not told it, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_age_ms: Option<u64>,
    /// What went over its network interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<NetUsage>,
}

/// What a VM did to its disks, all together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskUsage {
    /// When its hypervisor told, ms since the epoch by its server's clock.
    pub at_ms: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads that were done.
    pub reads: u64,
    /// Writes that were done.
    pub writes: u64,
    /// Flushes that were done.
    pub flushes: u64,
    /// Reads, writes, flushes and trims that failed.
    pub errors: u64,
}

/// What went over a VM's network interfaces, all together, as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetUsage {
    /// When it was read, ms since the epoch by its server's clock.
    pub at_ms: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
}

/// What the task `vms_usage` returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAnswer {
    /// The figures.
    pub usage: Usages,
    /// How many VMs had no room in it.
    #[serde(default)]
    pub left_out: usize,
}

/// Leaves out the last VMs until the JSON of the others has at most `most_bytes`; returns how many
/// were left out.
pub fn fit(usages: &mut Usages, most_bytes: usize) -> usize {
    let mut bytes = 2;
    let first_out = usages.iter().find_map(|(vm, usage)| {
        bytes += KEY_BYTES + json_bytes(usage);
        (bytes > most_bytes).then_some(*vm)
    });
    first_out.map_or(0, |vm| usages.split_off(&vm).len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usages(count: u128) -> Usages {
        let usage = VmUsage { cpu_ms: Some(1 << 40), ..VmUsage::default() };
        (0..count).map(|n| (VmUuid(uuid::Uuid::from_u128(n)), usage.clone())).collect()
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_counted() {
        for count in [0, 1, 10, 100] {
            let whole = usages(count);
            for most in [2, 100, 500, 5_000, 50_000] {
                let mut cut = whole.clone();
                let left_out = fit(&mut cut, most);
                assert_eq!(cut.len() + left_out, whole.len());
                assert!(json_bytes(&cut) <= most, "{} of {most}", json_bytes(&cut));
            }
        }
        assert_eq!(fit(&mut usages(100), 50_000), 0);
    }

    #[test]
    fn what_nobody_can_tell_is_absent() {
        let text = serde_json::to_string(&VmUsage::default()).unwrap();
        assert_eq!(text, r#"{"at_ms":0,"started_at_ms":0,"booted_at_ms":0}"#);
        assert_eq!(serde_json::from_str::<VmUsage>(&text).unwrap(), VmUsage::default());
    }
}
