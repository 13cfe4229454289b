//! What a container may take from its host.

use std::collections::HashMap;
use std::path::Path;

use muster_shared::units::MIB;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxCpuBuilder, LinuxDeviceCgroupBuilder, LinuxMemoryBuilder, LinuxPidsBuilder,
    LinuxResources, LinuxResourcesBuilder,
};

use crate::host::Hierarchy;
use crate::vm_record::VmRecord;

/// Length of the period of which a container gets its share, µs; the kernel's default.
const PERIOD_US: u64 = 100_000;
/// The kernel's limits of a weight, in version 2 of control groups.
const WEIGHTS: (u64, u64) = (1, 10_000);
const DEFAULT_WEIGHT: u64 = 100;
const DEFAULT_TASKS: u64 = 2000;

/// What the host can limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Offered {
    pub(in super::super) memory: bool,
    pub(in super::super) swap: bool,
    pub(in super::super) cpu: bool,
    pub(in super::super) pids: bool,
    /// By control groups of version 2.
    pub(in super::super) unified: bool,
}

impl Offered {
    /// What the host below `root` offers.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(in super::super) fn find(root: &Path) -> std::io::Result<Self> {
        let all = Hierarchy::all(root)?;
        let with = |name: &str| all.iter().find(|hierarchy| hierarchy.offers(name));
        let memory = with("memory");
        let counts_swap = |memory: &Hierarchy| {
            memory.unified || memory.path.join("memory.memsw.limit_in_bytes").exists()
        };
        Ok(Self {
            memory: memory.is_some(),
            swap: memory.is_some_and(counts_swap),
            cpu: with("cpu").is_some(),
            pids: with("pids").is_some(),
            unified: memory.or(with("cpu")).is_some_and(|hierarchy| hierarchy.unified),
        })
    }

    /// A line for each kind of limit that the kernel does not offer.
    pub(in super::super) fn missing(self) -> Vec<String> {
        let kinds = [
            (self.memory, "memory", "memory"),
            (self.cpu, "CPU time", "cpu"),
            (self.pids, "processes", "pids"),
        ];
        let line = |(_, what, controller): (bool, &str, &str)| {
            format!(
                "containers have no limits of {what}: the kernel offers no cgroup controller \
                 {controller}"
            )
        };
        kinds.into_iter().filter(|(offered, ..)| !offered).map(line).collect()
    }
}

/// The limits of a VM's record, as far as the host has them. No device of the host is allowed beside
/// those that every container has.
pub(in super::super) fn limits(
    vm: &VmRecord,
    offered: Offered,
) -> Result<LinuxResources, OciSpecError> {
    let none = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
    let mut resources = LinuxResourcesBuilder::default().devices(vec![none]);
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let memory_mib = vm.number("max_physical_memory").or(vm.number("ram"));
    if let Some(mib) = memory_mib.filter(|mib| *mib > 0 && offered.memory) {
        let memory = LinuxMemoryBuilder::default().limit(signed(mib.saturating_mul(MIB)));
        // Both together, as the record has it.
        let both = vm.number("max_swap").unwrap_or(mib).max(mib).saturating_mul(MIB);
        let memory = if offered.swap { memory.swap(signed(both)) } else { memory };
        resources = resources.memory(memory.build()?);
    }
    if offered.cpu {
        let weight = vm.number("cpu_shares").unwrap_or(DEFAULT_WEIGHT).clamp(WEIGHTS.0, WEIGHTS.1);
        let quota = vm.number("cpu_cap").filter(|cap| *cap > 0).map(|cap| cap * PERIOD_US / 100);
        let mut cpu = LinuxCpuBuilder::default().period(PERIOD_US).quota(quota.map_or(-1, signed));
        if offered.unified {
            let weight = HashMap::from([("cpu.weight".to_owned(), weight.to_string())]);
            resources = resources.unified(weight);
        } else {
            // 1024 is what 100 is in version 2; the kernel's limits are 2 and 262144.
            cpu = cpu.shares((weight * 1024 / 100).clamp(2, 262_144));
        }
        resources = resources.cpu(cpu.build()?);
    }
    if offered.pids {
        let tasks = vm.number("max_lwps").filter(|tasks| *tasks > 0).unwrap_or(DEFAULT_TASKS);
        resources = resources.pids(LinuxPidsBuilder::default().limit(signed(tasks)).build()?);
    }
    resources.build()
}
