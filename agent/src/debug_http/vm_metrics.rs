//! What each VM uses, in Prometheus' text form: as many lines of a name as VMs run. What nobody
//! can tell has no line.

use std::fmt::Write as _;

use muster_shared::wire::usage::{Usages, VmUsage};

/// A figure: its name, type and help, and where it is.
type Figure = (&'static str, &'static str, &'static str, fn(&VmUsage) -> Option<f64>);

/// What lies between ms and s.
const MS: f64 = 1000.0;

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(ms: Option<u64>) -> Option<f64> {
    ms.map(|ms| number(ms) / MS)
}

const FIGURES: &[Figure] = &[
    ("muster_vm_start_time_seconds", "gauge", "When its process started.", |vm| {
        seconds(Some(vm.started_at_ms))
    }),
    ("muster_vm_boot_time_seconds", "gauge", "When the guest booted last.", |vm| {
        seconds(Some(vm.booted_at_ms))
    }),
    ("muster_vm_cpu_seconds_total", "counter", "CPU time of its hypervisor's threads.", |vm| {
        seconds(vm.cpu_ms)
    }),
    ("muster_vm_vcpu_seconds_total", "counter", "CPU time of its virtual CPUs.", |vm| {
        seconds(vm.vcpu_ms)
    }),
    (
        "muster_vm_run_delay_seconds_total",
        "counter",
        "Time its virtual CPUs waited for a CPU of the host.",
        |vm| seconds(vm.run_delay_ms),
    ),
    ("muster_vm_resident_bytes", "gauge", "Memory of the host that it has.", |vm| {
        vm.rss_bytes.map(number)
    }),
    ("muster_vm_disk_read_bytes_total", "counter", "Bytes read from its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.read_bytes))
    }),
    ("muster_vm_disk_written_bytes_total", "counter", "Bytes written to its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.written_bytes))
    }),
    ("muster_vm_disk_reads_total", "counter", "Reads from its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.reads))
    }),
    ("muster_vm_disk_writes_total", "counter", "Writes to its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.writes))
    }),
    ("muster_vm_disk_flushes_total", "counter", "Flushes of its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.flushes))
    }),
    ("muster_vm_disk_errors_total", "counter", "Operations on its disks that failed.", |vm| {
        Some(number(vm.disk.as_ref()?.errors))
    }),
    (
        "muster_vm_disk_unknown_seconds",
        "gauge",
        "For how long its hypervisor has not told what it does to its disks.",
        |vm| seconds(vm.disk_age_ms),
    ),
    ("muster_vm_net_received_bytes_total", "counter", "Bytes it received.", |vm| {
        Some(number(vm.net.as_ref()?.received_bytes))
    }),
    ("muster_vm_net_sent_bytes_total", "counter", "Bytes it sent.", |vm| {
        Some(number(vm.net.as_ref()?.sent_bytes))
    }),
    ("muster_vm_net_received_packets_total", "counter", "Packets it received.", |vm| {
        Some(number(vm.net.as_ref()?.received_packets))
    }),
    ("muster_vm_net_sent_packets_total", "counter", "Packets it sent.", |vm| {
        Some(number(vm.net.as_ref()?.sent_packets))
    }),
];

/// All figures of all VMs.
pub(super) fn render(usages: &Usages) -> String {
    let mut text = String::new();
    for (name, kind, help, get) in FIGURES {
        let mut lines = String::new();
        for (vm, usage) in usages {
            if let Some(value) = get(usage) {
                // Writing to a String can't fail.
                writeln!(lines, "{name}{{vm_uuid=\"{vm}\"}} {value}").ok();
            }
        }
        if !lines.is_empty() {
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
            text.push_str(&lines);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::VmUuid;
    use muster_shared::wire::usage::DiskUsage;

    use super::*;

    #[test]
    fn what_is_not_known_has_no_line() {
        let [one, two] = [1, 2].map(|n| VmUuid(uuid::Uuid::from_u128(n)));
        let disk = Some(DiskUsage { read_bytes: 4096, ..DiskUsage::default() });
        let known = VmUsage { cpu_ms: Some(1500), disk, ..VmUsage::default() };
        let hangs = VmUsage { disk_age_ms: Some(2500), ..VmUsage::default() };
        let text = render(&Usages::from([(one, known), (two, hangs)]));
        for line in [
            format!("muster_vm_cpu_seconds_total{{vm_uuid=\"{one}\"}} 1.5"),
            format!("muster_vm_disk_read_bytes_total{{vm_uuid=\"{one}\"}} 4096"),
            format!("muster_vm_disk_unknown_seconds{{vm_uuid=\"{two}\"}} 2.5"),
            "# TYPE muster_vm_cpu_seconds_total counter".to_owned(),
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
        assert!(!text.contains("muster_vm_net_"), "{text}");
        assert!(!text.contains(&format!("cpu_seconds_total{{vm_uuid=\"{two}\"}}")), "{text}");
        assert_eq!(render(&Usages::new()), "");
    }
}
