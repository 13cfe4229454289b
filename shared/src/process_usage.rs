//! What this process uses, under Prometheus' usual names.

use jiff::Timestamp;

use crate::exposition::{Exposition, Kind};

/// Ticks of `/proc/self/stat` in a second; fixed in Linux' interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process uses; 0 where `/proc` does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Address space, bytes.
    pub virtual_bytes: u64,
    /// User and system time, s.
    pub cpu_seconds: f64,
    /// Open descriptors.
    pub open_fds: usize,
}

/// What this process uses now.
#[must_use]
pub fn usage() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Usage {
        resident_bytes: status_bytes(&status, "VmRSS:"),
        virtual_bytes: status_bytes(&status, "VmSize:"),
        cpu_seconds: cpu_seconds(&stat),
        open_fds: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
    }
}

fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Fields 14 and 15 of `/proc/self/stat`; the name in field 2 may contain spaces.
fn cpu_seconds(stat: &str) -> f64 {
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0.0 };
    let ticks: f64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}

/// Adds what this process uses, and since when it runs, to a page of metrics.
#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
pub fn describe(page: &mut Exposition, started: Timestamp) {
    let usage = usage();
    for (name, kind, help, value) in [
        (
            "process_resident_memory_bytes",
            Kind::Gauge,
            "Resident memory size.",
            usage.resident_bytes as f64,
        ),
        (
            "process_virtual_memory_bytes",
            Kind::Gauge,
            "Virtual memory size.",
            usage.virtual_bytes as f64,
        ),
        ("process_cpu_seconds_total", Kind::Counter, "User and system time.", usage.cpu_seconds),
        ("process_open_fds", Kind::Gauge, "Open file descriptors.", usage.open_fds as f64),
        (
            "process_start_time_seconds",
            Kind::Gauge,
            "When the process started.",
            started.as_second() as f64,
        ),
    ] {
        page.one(name, kind, help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let status = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t     100 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), 102_400);
        assert_eq!(status_bytes(status, "VmSwap:"), 0);
        let stat = "1 (a b) c) S 0 1 1 0 -1 4 5 6 7 8 150 50 0 0 20";
        assert!((cpu_seconds(stat) - 2.0).abs() < 1e-9);
        assert!(usage().resident_bytes > 0 && usage().open_fds > 0);
    }
}
