//! What a VM used between two looks at its counters. What can't be told from them is absent.

use muster_shared::wire::usage::VmUsage;
use serde::Serialize;

/// Use of one VM between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// CPU time of its process, percent of one CPU of the host.
    pub(crate) cpu_percent: Option<f64>,
    /// Time for which its virtual CPUs waited for a CPU of the host, percent of one.
    pub(crate) wait_percent: Option<f64>,
    /// Bytes read from its disks, per second.
    pub(crate) disk_read_bytes_per_s: Option<f64>,
    /// Bytes written to its disks, per second.
    pub(crate) disk_written_bytes_per_s: Option<f64>,
    /// Reads and writes, per second.
    pub(crate) disk_operations_per_s: Option<f64>,
    /// Bytes received, per second.
    pub(crate) net_received_bytes_per_s: Option<f64>,
    /// Bytes sent, per second.
    pub(crate) net_sent_bytes_per_s: Option<f64>,
}

impl Rates {
    /// From the older figures to the newer ones. Counters of another process tell nothing.
    pub(crate) fn between(old: &VmUsage, new: &VmUsage) -> Self {
        if old.started_at_ms != new.started_at_ms {
            return Self::default();
        }
        // ms a second, of which ten are a percent.
        let percent = |old: Option<u64>, new: Option<u64>, (from, to)| {
            Some(per_second(old?, new?, from, to)? / 10.0)
        };
        let seen = (old.at_ms, new.at_ms);
        let mut rates = Self {
            cpu_percent: percent(old.cpu_ms, new.cpu_ms, seen),
            wait_percent: percent(old.run_delay_ms, new.run_delay_ms, seen),
            ..Self::default()
        };
        if let (Some(old), Some(new)) = (&old.disk, &new.disk) {
            let rate =
                |old_count, new_count| per_second(old_count, new_count, old.at_ms, new.at_ms);
            rates.disk_read_bytes_per_s = rate(old.read_bytes, new.read_bytes);
            rates.disk_written_bytes_per_s = rate(old.written_bytes, new.written_bytes);
            let operations = |reads: u64, writes: u64| reads.saturating_add(writes);
            rates.disk_operations_per_s =
                rate(operations(old.reads, old.writes), operations(new.reads, new.writes));
        }
        if let (Some(old), Some(new)) = (&old.net, &new.net) {
            let rate =
                |old_count, new_count| per_second(old_count, new_count, old.at_ms, new.at_ms);
            rates.net_received_bytes_per_s = rate(old.received_bytes, new.received_bytes);
            rates.net_sent_bytes_per_s = rate(old.sent_bytes, new.sent_bytes);
        }
        rates
    }

    /// Bytes to and from disks, per second.
    pub(crate) fn disk(&self) -> Option<f64> {
        Some(self.disk_read_bytes_per_s? + self.disk_written_bytes_per_s?)
    }

    /// Bytes over the network, per second.
    pub(crate) fn net(&self) -> Option<f64> {
        Some(self.net_received_bytes_per_s? + self.net_sent_bytes_per_s?)
    }
}

/// What a counter grew by in a second; `None` when it went backwards or no time has passed.
#[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
fn per_second(old: u64, new: u64, from_ms: u64, to_ms: u64) -> Option<f64> {
    let grown = new.checked_sub(old)?;
    let took_ms = to_ms.checked_sub(from_ms).filter(|ms| *ms > 0)?;
    Some(grown as f64 * 1000.0 / took_ms as f64)
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::usage::{DiskUsage, NetUsage};
    use proptest::prelude::*;

    use super::*;

    fn at(at_ms: u64, count: u64) -> VmUsage {
        VmUsage {
            at_ms,
            started_at_ms: 1,
            booted_at_ms: 1,
            cpu_ms: Some(count),
            vcpu_ms: Some(count),
            run_delay_ms: Some(count / 10),
            rss_bytes: Some(1 << 20),
            disk: Some(DiskUsage {
                at_ms,
                read_bytes: count,
                written_bytes: 2 * count,
                reads: count,
                writes: count,
                flushes: 0,
                errors: 0,
            }),
            disk_age_ms: None,
            net: None,
        }
    }

    #[test]
    fn counters_become_rates() {
        let rates = Rates::between(&at(1_000, 500), &at(3_000, 2_500));
        assert_eq!(rates.cpu_percent, Some(100.0));
        assert_eq!(rates.wait_percent, Some(10.0));
        assert_eq!(rates.disk_read_bytes_per_s, Some(1000.0));
        assert_eq!(rates.disk(), Some(3000.0));
        assert_eq!(rates.disk_operations_per_s, Some(2000.0));
        assert_eq!(rates.net(), None);
    }

    #[test]
    fn what_two_looks_do_not_tell_is_absent() {
        let old = at(1_000, 500);
        let restarted = VmUsage { started_at_ms: 2, ..at(3_000, 2_500) };
        assert_eq!(Rates::between(&old, &restarted), Rates::default());
        assert_eq!(Rates::between(&old, &old), Rates::default());
        let silent = VmUsage { disk: None, disk_age_ms: Some(1), ..at(3_000, 2_500) };
        let rates = Rates::between(&old, &silent);
        assert_eq!((rates.disk(), rates.cpu_percent), (None, Some(100.0)));
        let backwards = Rates::between(&at(1_000, 500), &at(3_000, 400));
        assert_eq!(backwards, Rates::default());
    }

    fn any_usage() -> impl Strategy<Value = VmUsage> {
        let times = (0..3_u64, any::<u64>(), any::<u64>());
        let cpu = (any::<Option<u64>>(), any::<Option<u64>>());
        let disk = any::<Option<[u64; 5]>>();
        let net = any::<Option<[u64; 3]>>();
        (times, cpu, disk, net).prop_map(|((started_at_ms, at_ms, _), cpu, disk, net)| VmUsage {
            at_ms,
            started_at_ms,
            cpu_ms: cpu.0,
            run_delay_ms: cpu.1,
            disk: disk.map(|[at_ms, read_bytes, written_bytes, reads, writes]| DiskUsage {
                at_ms,
                read_bytes,
                written_bytes,
                reads,
                writes,
                ..DiskUsage::default()
            }),
            net: net.map(|[at_ms, received_bytes, sent_bytes]| NetUsage {
                at_ms,
                received_bytes,
                sent_bytes,
                ..NetUsage::default()
            }),
            ..VmUsage::default()
        })
    }

    proptest! {
        #[test]
        fn no_rate_is_negative_or_no_number(old in any_usage(), new in any_usage()) {
            let rates = Rates::between(&old, &new);
            let all = [
                rates.cpu_percent,
                rates.wait_percent,
                rates.disk_read_bytes_per_s,
                rates.disk_written_bytes_per_s,
                rates.disk_operations_per_s,
                rates.net_received_bytes_per_s,
                rates.net_sent_bytes_per_s,
            ];
            for rate in all.into_iter().flatten() {
                prop_assert!(rate.is_finite() && rate >= 0.0, "{}", rate);
            }
            if old.started_at_ms != new.started_at_ms {
                prop_assert_eq!(rates, Rates::default());
            }
        }

        #[test]
        fn a_rate_is_what_was_added_over_its_time(
            count in 0..1_u64 << 40, more in 0..1_u64 << 40, ms in 1..1_u64 << 30,
        ) {
            let rates = Rates::between(&at(7, count), &at(7 + ms, count + more));
            let expected = more as f64 * 1000.0 / ms as f64;
            prop_assert_eq!(rates.disk_read_bytes_per_s, Some(expected));
        }
    }
}
