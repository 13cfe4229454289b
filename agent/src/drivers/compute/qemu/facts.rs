//! What a guest uses: its process, as the host counts it, and its disks, as the hypervisor does.

use std::io;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::usage::{DiskUsage, VmUsage};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::{Qemu, not_running, qmp, talk_failed};
use crate::drivers::DriverError;
use crate::drivers::compute::GuestFacts;
use crate::host::procfs;
use crate::host::threads::{self, Seen};

/// What lies between ns and ms.
const NS_PER_MS: u64 = 1_000_000;
/// The metadata disk, which is the agent's own: see [`super::argv`].
const METADATA_DEVICE: &str = "cidatadev";

#[async_trait]
impl GuestFacts for Qemu {
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
        let Some(guest) = self.guests.get(vm) else { return Ok(None) };
        let (live, failed) = (guest.observed(), |error| {
            DriverError::failed(format!("read what VM {vm} uses"), error)
        });
        let Some(taken) = procfs::taken(live.pid).map_err(failed)? else { return Ok(None) };
        let vcpus = guest.vcpus.times(live.pid).map_err(failed)?;
        Ok(Some(VmUsage {
            at_ms: self.guests.now_ms(),
            started_at_ms: live.started_at_ms,
            booted_at_ms: live.booted_at_ms,
            cpu_ms: Some(taken.cpu_ms),
            vcpu_ms: vcpus.map(|(run_ms, _)| run_ms),
            run_delay_ms: vcpus.map(|(_, delay_ms)| delay_ms),
            rss_bytes: Some(taken.resident_bytes).filter(|bytes| *bytes > 0),
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

    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
        self.process_list(vm)
    }
}

/// Whether QEMU gives this name to a thread of virtual CPUs: `CPU 0/KVM`, or one for all of them.
fn is_vcpu(name: &str) -> bool {
    name.starts_with("CPU ") || name.starts_with("ALL CPUs/")
}

/// The threads of one process that are its guest's virtual CPUs. They stay the same as long as it
/// lives, so they are looked for once.
#[derive(Debug, Default)]
pub(super) struct Vcpus(Mutex<Vec<u32>>);

impl Vcpus {
    /// Time on a CPU and time waiting for one, ms; `None` when the kernel counts neither, or there is
    /// no such thread.
    fn times(&self, pid: u32) -> io::Result<Option<(u64, u64)>> {
        let mut known = self.0.lock();
        if !known.is_empty()
            && let Some(sum) = sum(&known, |thread| threads::times(pid, thread))?
        {
            return Ok(sum);
        }
        let all = threads::threads(pid)?.unwrap_or_default();
        *known = all.iter().filter(|it| is_vcpu(&it.name)).map(|it| it.id).collect();
        Ok(sum(&known, |thread| threads::times(pid, thread))?.flatten())
    }
}

/// The sum over all threads, ms: time on a CPU and time waiting for one; `None` within when the kernel
/// counts neither, or there are none. `None` outside when one of them is gone.
fn sum(
    threads: &[u32],
    times: impl Fn(u32) -> io::Result<Seen>,
) -> io::Result<Option<Option<(u64, u64)>>> {
    let mut sum = (0_u64, 0_u64);
    for thread in threads {
        match times(*thread)? {
            Seen::Gone => return Ok(None),
            Seen::Uncounted => return Ok(Some(None)),
            Seen::Times(it) => {
                sum = (sum.0.saturating_add(it.run_ns), sum.1.saturating_add(it.delay_ns));
            }
        }
    }
    let known = (sum.0 / NS_PER_MS, sum.1 / NS_PER_MS);
    Ok(Some((!threads.is_empty()).then_some(known)))
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
    use crate::host::threads::Times;

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
        for name in ["CPU 0/KVM", "CPU 12/TCG", "ALL CPUs/TCG"] {
            assert!(is_vcpu(name), "{name}");
        }
        for name in ["qemu-system-x86", "IO mon_iothread", "CPUs", ""] {
            assert!(!is_vcpu(name), "{name}");
        }
    }

    #[test]
    fn times_of_virtual_cpus_are_summed_up() {
        let times = |run_ns, delay_ns| Seen::Times(Times { run_ns, delay_ns });
        let of = |thread| {
            Ok(match thread {
                1 => times(5_000_000, 1_000_000),
                2 => times(3_900_000, 2_000_000),
                3 => Seen::Uncounted,
                _ => Seen::Gone,
            })
        };
        assert_eq!(sum(&[1, 2], of).unwrap(), Some(Some((8, 3))));
        assert_eq!(sum(&[1, 3], of).unwrap(), Some(None));
        assert_eq!(sum(&[1, 4], of).unwrap(), None);
        assert_eq!(sum(&[], of).unwrap(), Some(None));
    }

    #[test]
    fn threads_are_looked_for_again_when_one_is_gone() {
        let vcpus = Vcpus::default();
        vcpus.0.lock().push(u32::MAX);
        assert_eq!(vcpus.times(std::process::id()).unwrap(), None, "no thread here is a CPU");
        assert!(vcpus.0.lock().is_empty());
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
