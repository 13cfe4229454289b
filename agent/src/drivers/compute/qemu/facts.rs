//! What a guest uses: its process, as the host counts it, and its disks, as the hypervisor does.

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::usage::{DiskUsage, NetUsage, VmUsage};
use serde::Deserialize;
use serde_json::Value;

use super::{Qemu, not_running, qmp, talk_failed};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestFacts;
use crate::host::{Thread, procfs, threads};

/// What lies between ns and ms.
const NS_PER_MS: u64 = 1_000_000;
/// The metadata disk, which is the agent's own: see [`super::argv`].
const METADATA_DEVICE: &str = "cidatadev";

#[async_trait]
impl GuestFacts for Qemu {
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
        let Some(live) = self.guests.live_now(vm) else { return Ok(None) };
        let failed = |error| DriverError::failed(format!("read what VM {vm} uses"), error);
        let Some(cpu_ms) = procfs::cpu_ms(live.pid).map_err(failed)? else { return Ok(None) };
        let status = procfs::status(live.pid).map_err(failed)?.unwrap_or_default();
        let threads = threads(live.pid, is_vcpu).map_err(failed)?.unwrap_or_default();
        let vcpus = vcpus(&threads);
        Ok(Some(VmUsage {
            at_ms: self.guests.now_ms(),
            started_at_ms: live.started_at_ms,
            booted_at_ms: live.booted_at_ms,
            cpu_ms: Some(cpu_ms),
            vcpu_ms: vcpus.map(|(run_ms, _)| run_ms),
            run_delay_ms: vcpus.map(|(_, delay_ms)| delay_ms),
            rss_bytes: Some(status.resident_kib.saturating_mul(1024)).filter(|bytes| *bytes > 0),
            ..VmUsage::default()
        }))
    }

    async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError> {
        if self.guests.live(vm).is_none() {
            return Err(not_running(vm));
        }
        let qmp = self.guests.qmp(vm).await?;
        let answer = qmp.execute::<qmp::QueryBlockstats>().await;
        let answer = answer.map_err(|error| talk_failed(vm, error))?;
        let usage = disks(&answer).map_err(|error| {
            DriverError::failed(format!("read what the hypervisor of VM {vm} says"), error)
        })?;
        Ok(DiskUsage { at_ms: self.guests.now_ms(), ..usage })
    }

    /// User-mode networking counts nothing.
    async fn net_usage(&self, _vm: VmUuid) -> Result<Option<NetUsage>, DriverError> {
        Ok(None)
    }

    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
        self.process_list(vm)
    }
}

/// Whether QEMU gives this name to a thread of virtual CPUs: `CPU 0/KVM`, or one for all of them.
fn is_vcpu(name: &str) -> bool {
    name.starts_with("CPU ") || name.starts_with("ALL CPUs/")
}

/// Time on a CPU and time waiting for one of the virtual CPUs, ms; `None` when the kernel counts
/// neither, or there is no such thread.
fn vcpus(threads: &[Thread]) -> Option<(u64, u64)> {
    let mut vcpus = threads.iter().filter(|thread| is_vcpu(&thread.name)).peekable();
    vcpus.peek()?;
    let mut sum = (0_u64, 0_u64);
    for vcpu in vcpus {
        let times = vcpu.times?;
        sum = (sum.0.saturating_add(times.run_ns), sum.1.saturating_add(times.delay_ns));
    }
    Some((sum.0 / NS_PER_MS, sum.1 / NS_PER_MS))
}

/// A device in the answer to `query-blockstats`.
#[derive(Deserialize)]
struct Device {
    /// Its path in QEMU's tree of objects; other nodes have none.
    qdev: Option<String>,
    stats: Stats,
}

#[derive(Deserialize)]
struct Stats {
    rd_bytes: u64,
    wr_bytes: u64,
    rd_operations: u64,
    wr_operations: u64,
    flush_operations: u64,
    failed_rd_operations: u64,
    failed_wr_operations: u64,
    failed_flush_operations: u64,
    /// Older versions do not count it.
    #[serde(default)]
    failed_unmap_operations: u64,
}

/// The sum over all devices but the metadata disk; counters are the guest's to fill, so they
/// saturate.
fn disks(answer: &Value) -> Result<DiskUsage, serde_json::Error> {
    let devices = Vec::<Device>::deserialize(answer)?;
    let is_metadata = |qdev: &str| qdev.split('/').any(|part| part == METADATA_DEVICE);
    let of_guest = |device: &&Device| device.qdev.as_deref().is_some_and(|q| !is_metadata(q));
    let mut sum = DiskUsage::default();
    for Device { stats, .. } in devices.iter().filter(of_guest) {
        let failed = [
            stats.failed_rd_operations,
            stats.failed_wr_operations,
            stats.failed_flush_operations,
            stats.failed_unmap_operations,
        ];
        for (total, more) in [
            (&mut sum.read_bytes, stats.rd_bytes),
            (&mut sum.written_bytes, stats.wr_bytes),
            (&mut sum.reads, stats.rd_operations),
            (&mut sum.writes, stats.wr_operations),
            (&mut sum.flushes, stats.flush_operations),
        ] {
            *total = total.saturating_add(more);
        }
        sum.errors = failed.into_iter().fold(sum.errors, u64::saturating_add);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::host::Times;

    fn device(qdev: Option<&str>, counters: [u64; 9]) -> Value {
        let [rd, wr, rds, wrs, flushes, bad_rds, bad_wrs, bad_flushes, bad_unmaps] = counters;
        let mut device = json!({ "node-name": "x", "stats": {
            "rd_bytes": rd, "wr_bytes": wr, "rd_operations": rds, "wr_operations": wrs,
            "flush_operations": flushes, "failed_rd_operations": bad_rds,
            "failed_wr_operations": bad_wrs, "failed_flush_operations": bad_flushes,
            "failed_unmap_operations": bad_unmaps, "idle_time_ns": 7, "account_failed": true,
        } });
        if let Some(qdev) = qdev {
            device["qdev"] = json!(qdev);
        }
        device
    }

    #[test]
    fn the_guests_disks_are_summed_up() {
        let disk0 = device(Some("/machine/peripheral/disk0dev/virtio-backend"), [1; 9]);
        let disk1 = device(Some("/machine/peripheral/disk1dev"), [10; 9]);
        let metadata = device(Some("/machine/peripheral/cidatadev/virtio-backend"), [100; 9]);
        let node = device(None, [1000; 9]);
        let usage = disks(&json!([disk0, metadata, disk1, node])).unwrap();
        let expected = DiskUsage {
            at_ms: 0,
            read_bytes: 11,
            written_bytes: 11,
            reads: 11,
            writes: 11,
            flushes: 11,
            errors: 44,
        };
        assert_eq!(usage, expected);
        assert_eq!(disks(&json!([])).unwrap(), DiskUsage::default());
    }

    #[test]
    fn an_answer_without_counters_is_none() {
        for bad in [json!({}), json!([{}]), json!([{ "qdev": "x", "stats": { "rd_bytes": 1 } }])] {
            disks(&bad).unwrap_err();
        }
    }

    #[test]
    fn only_virtual_cpus_wait_for_the_guest() {
        let thread = |name: &str, times: Option<(u64, u64)>| Thread {
            name: name.to_owned(),
            times: times.map(|(run_ns, delay_ns)| Times { run_ns, delay_ns }),
        };
        let all = [
            thread("qemu-system-x86", Some((9_000_000, 9_000_000))),
            thread("CPU 0/TCG", Some((5_000_000, 1_000_000))),
            thread("CPU 1/TCG", Some((3_900_000, 2_000_000))),
        ];
        assert_eq!(vcpus(&all), Some((8, 3)));
        assert_eq!(vcpus(&[thread("ALL CPUs/TCG", Some((2_000_000, 0)))]), Some((2, 0)));
        assert_eq!(vcpus(&all[..1]), None);
        assert_eq!(vcpus(&[thread("CPU 0/KVM", None)]), None);
    }

    proptest! {
        #[test]
        fn no_answer_overflows(counters in prop::collection::vec(any::<[u64; 9]>(), 0..5)) {
            let answer: Vec<_> = counters.iter().map(|c| device(Some("/d"), *c)).collect();
            let usage = disks(&json!(answer)).unwrap();
            let read = counters.iter().fold(0, |sum: u64, c| sum.saturating_add(c[0]));
            prop_assert_eq!(usage.read_bytes, read);
        }

        #[test]
        fn a_cut_answer_is_no_panic(at in 0_usize..400) {
            let whole = json!([device(Some("/d"), [5; 9])]).to_string();
            if let Ok(cut) = serde_json::from_str::<Value>(&whole[..at.min(whole.len())]) {
                disks(&cut).unwrap();
            }
        }
    }
}
