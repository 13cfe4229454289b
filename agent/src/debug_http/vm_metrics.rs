//! What each VM uses, in Prometheus' text form: as many samples of a name as VMs run. What nobody
//! can tell has none.

use muster_shared::exposition::{Exposition, Kind};
use muster_shared::wire::usage::{Usages, VmUsage};

/// A figure: its name, type and help, and where it is.
type Figure = (&'static str, Kind, &'static str, fn(&VmUsage) -> Option<f64>);

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
    ("muster_vm_start_time_seconds", Kind::Gauge, "When its process started.", |vm| {
        seconds(Some(vm.started_at_ms))
    }),
    ("muster_vm_boot_time_seconds", Kind::Gauge, "When the guest booted last.", |vm| {
        seconds(Some(vm.booted_at_ms))
    }),
    ("muster_vm_cpu_seconds_total", Kind::Counter, "CPU time of its hypervisor's threads.", |vm| {
        seconds(vm.cpu_ms)
    }),
    ("muster_vm_vcpu_seconds_total", Kind::Counter, "CPU time of its virtual CPUs.", |vm| {
        seconds(vm.vcpu_ms)
    }),
    (
        "muster_vm_run_delay_seconds_total",
        Kind::Counter,
        "Time its virtual CPUs waited for a CPU of the host.",
        |vm| seconds(vm.run_delay_ms),
    ),
    ("muster_vm_resident_bytes", Kind::Gauge, "Memory of the host that it has.", |vm| {
        vm.rss_bytes.map(number)
    }),
    ("muster_vm_disk_read_bytes_total", Kind::Counter, "Bytes read from its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.read_bytes))
    }),
    ("muster_vm_disk_written_bytes_total", Kind::Counter, "Bytes written to its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.written_bytes))
    }),
    ("muster_vm_disk_reads_total", Kind::Counter, "Reads from its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.reads))
    }),
    ("muster_vm_disk_writes_total", Kind::Counter, "Writes to its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.writes))
    }),
    ("muster_vm_disk_flushes_total", Kind::Counter, "Flushes of its disks.", |vm| {
        Some(number(vm.disk.as_ref()?.flushes))
    }),
    ("muster_vm_disk_errors_total", Kind::Counter, "Operations on its disks that failed.", |vm| {
        Some(number(vm.disk.as_ref()?.errors))
    }),
    (
        "muster_vm_disk_unknown_seconds",
        Kind::Gauge,
        "For how long its hypervisor has not told what it does to its disks.",
        |vm| seconds(vm.disk_age_ms),
    ),
    ("muster_vm_net_received_bytes_total", Kind::Counter, "Bytes it received.", |vm| {
        Some(number(vm.net.as_ref()?.received_bytes))
    }),
    ("muster_vm_net_sent_bytes_total", Kind::Counter, "Bytes it sent.", |vm| {
        Some(number(vm.net.as_ref()?.sent_bytes))
    }),
    ("muster_vm_net_received_packets_total", Kind::Counter, "Packets it received.", |vm| {
        Some(number(vm.net.as_ref()?.received_packets))
    }),
    ("muster_vm_net_sent_packets_total", Kind::Counter, "Packets it sent.", |vm| {
        Some(number(vm.net.as_ref()?.sent_packets))
    }),
];

/// Adds all figures of all VMs.
pub(super) fn describe(page: &mut Exposition, usages: &Usages) {
    let vms: Vec<(String, &VmUsage)> =
        usages.iter().map(|(vm, usage)| (vm.to_string(), usage)).collect();
    for (name, kind, help, get) in FIGURES {
        let known = vms.iter().filter_map(|(vm, usage)| Some((vm.as_str(), get(usage)?)));
        let samples: Vec<_> = known.map(|(vm, value)| ([("vm_uuid", vm)], value)).collect();
        page.family(name, *kind, help, samples.iter().map(|(labels, it)| (&labels[..], *it)));
    }
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
        let render = |usages: &Usages| {
            let mut page = Exposition::default();
            describe(&mut page, usages);
            page.into_text()
        };
        let text = render(&Usages::from([(one, known), (two, hangs)]));
        for line in [
            format!("muster_vm_cpu_seconds_total{{vm_uuid=\"{one}\"}} 1.5"),
            format!("muster_vm_disk_read_bytes_total{{vm_uuid=\"{one}\"}} 4096"),
            format!("muster_vm_disk_unknown_seconds{{vm_uuid=\"{two}\"}} 2.5"),
            "# TYPE muster_vm_cpu_seconds_total counter".to_owned(),
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
        assert!(!text.contains("\nmuster_vm_net_"), "{text}");
        assert!(!text.contains(&format!("cpu_seconds_total{{vm_uuid=\"{two}\"}}")), "{text}");
        assert!(render(&Usages::new()).lines().all(|line| line.starts_with("# ")));
    }
}
