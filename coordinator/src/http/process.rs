//! What this process uses, under Prometheus' usual names.

use jiff::Timestamp;

/// Ticks of `/proc/self/stat` in a second; fixed in Linux' interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process uses; 0 where `/proc` does not say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Resident memory, bytes.
    pub(super) resident_bytes: u64,
    /// Address space, bytes.
    virtual_bytes: u64,
    /// User and system time, s.
    cpu_seconds: f64,
    /// Open descriptors.
    open_fds: usize,
}

/// What this process uses now.
pub(super) fn usage() -> Usage {
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

/// Metrics in Prometheus' text format, with the coordinator's labels.
pub(super) fn metrics(started: Timestamp, labels: &str) -> String {
    let usage = usage();
    let values: [(&str, &str, &str, String); 5] = [
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size",
            usage.resident_bytes.to_string(),
        ),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory size",
            usage.virtual_bytes.to_string(),
        ),
        (
            "process_cpu_seconds_total",
            "counter",
            "User and system time",
            usage.cpu_seconds.to_string(),
        ),
        ("process_open_fds", "gauge", "Open file descriptors", usage.open_fds.to_string()),
        (
            "process_start_time_seconds",
            "gauge",
            "When the process started",
            started.as_second().to_string(),
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in values {
        text +=
            &format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n");
    }
    text
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
