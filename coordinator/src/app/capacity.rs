//! Free capacity of a server, by the formulas of sdc-designation
//! (`calculate-server-unreserved.js`). Pure.

use muster_shared::wire::status::VmReport;
use serde_json::{Map, Value};

use super::fleet::Figures;

const MB: f64 = 1_048_576.0;
const GB: f64 = 1024.0 * MB;
/// Share of a pool that may be used.
const USABLE: f64 = 0.94;

/// How far a resource may be promised beyond what is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Processors.
    pub cpu: f64,
    /// Memory of containers.
    pub ram: f64,
    /// Disk of containers.
    pub disk: f64,
}

impl Default for Ratios {
    fn default() -> Self {
        Self { cpu: 4.0, ram: 1.0, disk: 1.0 }
    }
}

/// What is left of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Percent of a core.
    pub cpu: i64,
    /// MiB.
    pub ram: i64,
    /// MiB.
    pub disk: i64,
}

/// What the formulas read.
#[derive(Debug)]
pub struct Input<'a> {
    /// The record.
    pub record: &'a Map<String, Value>,
    /// The sysinfo; empty when there is none.
    pub sysinfo: &'a Map<String, Value>,
    /// Volatile figures.
    pub figures: &'a Figures,
    /// The VMs, promised ones included.
    pub vms: &'a [&'a VmReport],
    /// Overprovisioning.
    pub ratios: Ratios,
}

/// Computes what is left.
#[must_use]
pub fn capacity(input: &Input<'_>) -> Capacity {
    if input.sysinfo.is_empty() {
        return Capacity::default();
    }
    let (cpu, ram) = cpu_and_ram(input);
    Capacity { cpu: floor(cpu), ram: floor(ram), disk: floor(disk(input) / MB) }
}

fn cpu_and_ram(input: &Input<'_>) -> (f64, f64) {
    let cores = input.sysinfo.get("CPU Online Count").or(input.sysinfo.get("CPU Total Cores"));
    let mut cpu = 100.0 * cores.and_then(Value::as_f64).unwrap_or(0.0);
    let reservation = input.record.get("reservation_ratio").and_then(Value::as_f64).unwrap_or(0.0);
    let mut ram = input.figures.get("memory_total_bytes") / MB * (1.0 - reservation);
    for vm in input.vms.iter().map(|vm| &vm.vm) {
        let failed = vm.state == "failed";
        match vm.cpu_cap {
            None => cpu = 0.0,
            Some(cap) if !failed => cpu -= float(cap) / input.ratios.cpu,
            Some(_) => {}
        }
        if !failed {
            let ratio = if is_hvm(&vm.brand) { 1.0 } else { input.ratios.ram };
            ram -= float(vm.max_physical_memory) / ratio;
        }
    }
    (cpu, ram)
}

fn disk(input: &Input<'_>) -> f64 {
    let get = |name| input.figures.get(name);
    let usable = get("disk_pool_size_bytes") * USABLE;
    let kvm = input.vms.iter().filter(|vm| vm.vm.brand == "kvm").count();
    let kvm_roots = float(u64::try_from(kvm).unwrap_or(u64::MAX)) * 10.0 * GB;
    let zone_used = get("disk_zone_quota_used_bytes");
    let free = usable
        - get("disk_system_used_bytes")
        - get("disk_installed_images_used_bytes")
        - get("disk_cores_quota_used_bytes")
        - (get("disk_kvm_zvol_volsize_bytes") + kvm_roots)
        - (zone_used + (get("disk_zone_quota_bytes") - zone_used) / input.ratios.disk);
    free.min(usable - get("disk_pool_alloc_bytes"))
}

/// Whether VMs of this brand have memory of their own.
#[must_use]
pub fn is_hvm(brand: &str) -> bool {
    matches!(brand, "kvm" | "bhyve")
}

/// Memory a hypervisor needs beside the guest's, MiB.
#[must_use]
pub fn overhead_mib(brand: &str) -> u64 {
    match brand {
        "kvm" => 1024,
        "bhyve" => 1280,
        _ => 0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, reason = "saturates, and sizes are far below 2^63")]
fn floor(value: f64) -> i64 {
    value.floor() as i64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_server_has_the_capacity_observed_on_the_reference() {
        let record = json!({ "reservation_ratio": 0.15 }).as_object().cloned().unwrap();
        let sysinfo = json!({ "CPU Online Count": 8 }).as_object().cloned().unwrap();
        let mut figures = Figures::default();
        figures.set("memory_total_bytes", 8_579_944_448);
        figures.set("disk_pool_size_bytes", 206_997_137_408);
        figures.set("disk_pool_alloc_bytes", 7_662_300_672);
        figures.set("disk_system_used_bytes", 7_662_300_672);
        let input = Input {
            record: &record,
            sysinfo: &sysinfo,
            figures: &figures,
            vms: &[],
            ratios: Ratios::default(),
        };
        assert_eq!(capacity(&input), Capacity { cpu: 800, ram: 6955, disk: 178_256 });
        let nothing = Map::new();
        assert_eq!(capacity(&Input { sysinfo: &nothing, ..input }), Capacity::default());
    }
}
