//! What a guest's process may take from its host, as its VM's record wants it, and how that is
//! enforced: by systemd, where the guest has a scope of its own; by the agent itself in the cgroup
//! hierarchy, where an administrator has given it a place there; else not at all.
//!
//! Under systemd nothing is delegated: systemd is the only writer below its own slices, so the
//! limits are properties of the scope, which it translates to whichever version of cgroups there is.

use std::io;
use std::path::Path;

use muster_shared::ids::VmUuid;

use super::cgroup::{Controller, Tree};
use crate::drivers::DriverError;
use crate::host::{Exec, ProcessId, UnitProperty, UnitValue};
use crate::vm_record::VmRecord;

/// Memory that QEMU itself needs beside its guest's, at the least. A record may want less of it, and
/// the kernel would end the guest as soon as that uses all of its memory.
const MIN_OVERHEAD_MIB: u64 = 256;
/// Threads that QEMU itself needs beside one for each virtual CPU: its main loop and a pool of at
/// most 64 for disks, and as many again for displays and jobs.
const MIN_THREADS: u64 = 128;
/// What a record without the property means.
const DEFAULT_WEIGHT: u64 = 100;
const DEFAULT_THREADS: u64 = 2000;
/// The kernel's limits of a weight.
const WEIGHTS: (u64, u64) = (1, 10_000);
const MIB: u64 = 1024 * 1024;
/// systemd counts a quota in microseconds of each second.
const US_PER_PERCENT: u64 = 10_000;

/// Of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::drivers) struct Limits {
    /// Over this the kernel ends it, bytes.
    pub(super) memory_bytes: u64,
    /// Swap beside that, bytes.
    pub(super) swap_bytes: u64,
    /// Percent of one CPU.
    pub(super) cpu_percent: Option<u64>,
    pub(super) cpu_weight: u64,
    pub(super) io_weight: u64,
    pub(super) tasks: u64,
}

impl Limits {
    /// What a record wants for a process whose guest has `ram_mib` of memory. That is not always
    /// what the record says: it may have changed since the process was started.
    pub(in crate::drivers) fn of(vm: &VmRecord, ram_mib: u64) -> Self {
        let number = |name| vm.number(name);
        let weight = |name| number(name).unwrap_or(DEFAULT_WEIGHT).clamp(WEIGHTS.0, WEIGHTS.1);
        let needed = ram_mib.saturating_add(MIN_OVERHEAD_MIB);
        let memory = number("max_physical_memory").unwrap_or(needed);
        let swap = number("max_swap").unwrap_or(memory).saturating_sub(memory);
        let threads = number("vcpus").unwrap_or(1).saturating_add(MIN_THREADS);
        Self {
            memory_bytes: memory.max(needed).saturating_mul(MIB),
            swap_bytes: swap.saturating_mul(MIB),
            cpu_percent: number("cpu_cap").filter(|cap| *cap > 0),
            cpu_weight: weight("cpu_shares"),
            io_weight: weight("zfs_io_priority"),
            tasks: number("max_lwps").unwrap_or(DEFAULT_THREADS).max(threads),
        }
    }

    /// Over this the kernel takes pages back before it has to end anything, bytes.
    pub(super) fn memory_high_bytes(&self) -> u64 {
        self.memory_bytes / 100 * 98
    }

    /// As properties of a systemd unit, all of them each time, so that a change also takes away.
    fn properties(&self) -> Vec<UnitProperty> {
        let cpu = self.cpu_percent.map(|percent| percent.saturating_mul(US_PER_PERCENT));
        let cpu = cpu.map_or(UnitValue::Infinity, UnitValue::Number);
        vec![
            UnitProperty::number("MemoryMax", self.memory_bytes),
            UnitProperty::number("MemoryHigh", self.memory_high_bytes()),
            UnitProperty::number("MemorySwapMax", self.swap_bytes),
            UnitProperty { name: "CPUQuotaPerSecUSec", value: cpu },
            UnitProperty::number("CPUWeight", self.cpu_weight),
            UnitProperty::number("IOWeight", self.io_weight),
            UnitProperty::number("TasksMax", self.tasks),
        ]
    }
}

/// Who enforces limits on this host.
#[derive(Debug)]
enum Enforcer {
    /// systemd, on the guests' scopes.
    Scopes,
    /// The agent, in cgroups of its own.
    Cgroups(Tree),
    /// Nobody.
    Nobody,
}

/// The limits of all guests.
#[derive(Debug)]
pub(in crate::drivers) struct Limiter {
    enforcer: Enforcer,
    /// What can't be limited, for `Muster.degraded`.
    pub(in crate::drivers) degraded: Vec<String>,
}

impl Limiter {
    /// Looks who can enforce limits. `parent` is `compute.cgroup_parent`; `root` is `/`, or what a
    /// test has in its place.
    pub(in crate::drivers) fn open(supervisor: &str, parent: &str, root: &Path) -> Self {
        match (supervisor, parent) {
            ("systemd", _) => {
                let degraded = match Tree::find(root, "/") {
                    Ok(tree) => missing(&tree),
                    Err(error) => vec![format!("limits of guests can't be checked: {error}")],
                };
                Self { enforcer: Enforcer::Scopes, degraded }
            }
            (_, "") => Self::nobody(
                "guests run without limits: systemd is not the init system and \
                 compute.cgroup_parent names no cgroup"
                    .to_owned(),
            ),
            (_, parent) => {
                match Tree::find(root, parent).and_then(|tree| tree.make().map(|()| tree)) {
                    Ok(tree) => {
                        let degraded = missing(&tree);
                        Self { enforcer: Enforcer::Cgroups(tree), degraded }
                    }
                    Err(error) => Self::nobody(format!(
                        "guests run without limits: compute.cgroup_parent = {parent:?}: {error}"
                    )),
                }
            }
        }
    }

    fn nobody(why: String) -> Self {
        Self { enforcer: Enforcer::Nobody, degraded: vec![why] }
    }

    /// What a guest's scope is made with.
    pub(in crate::drivers) fn properties(&self, limits: &Limits) -> Vec<UnitProperty> {
        match self.enforcer {
            Enforcer::Scopes => limits.properties(),
            Enforcer::Cgroups(_) | Enforcer::Nobody => Vec::new(),
        }
    }

    /// Puts a process that was just started, and has no children yet, under its limits. `name` is that of
    /// its control groups: for a guest its VM's.
    pub(in crate::drivers) fn enter(
        &self,
        name: &str,
        process: ProcessId,
        limits: &Limits,
    ) -> io::Result<()> {
        match &self.enforcer {
            Enforcer::Cgroups(tree) => {
                tree.set(name, limits)?;
                tree.enter(name, process.pid)
            }
            // systemd made the scope around it.
            Enforcer::Scopes | Enforcer::Nobody => Ok(()),
        }
    }

    /// Changes the limits of a running guest; `unit` is its scope.
    pub(super) async fn change(
        &self,
        vm: VmUuid,
        unit: &str,
        limits: &Limits,
        exec: &dyn Exec,
    ) -> Result<(), DriverError> {
        let what = || format!("change the limits of VM {vm}");
        match &self.enforcer {
            Enforcer::Nobody => Ok(()),
            Enforcer::Cgroups(tree) => tree
                .set(&vm.to_string(), limits)
                .map_err(|error| DriverError::failed(what(), error)),
            Enforcer::Scopes => {
                let changed = exec.change_unit(unit, &limits.properties()).await;
                changed.map_err(|error| DriverError::failed(what(), error))
            }
        }
    }

    /// Removes what is left of a guest, or of a build, that has ended.
    pub(in crate::drivers) fn remove(&self, name: &str) -> io::Result<()> {
        match &self.enforcer {
            Enforcer::Cgroups(tree) => tree.remove(name),
            // Scopes go with their last process.
            Enforcer::Scopes | Enforcer::Nobody => Ok(()),
        }
    }

    /// Removes the control group above those that were removed, if nothing else is in it.
    pub(in crate::drivers) fn remove_parent(&self) {
        if let Enforcer::Cgroups(tree) = &self.enforcer {
            tree.remove_parent();
        }
    }
}

/// A line for each kind of limit that the kernel does not offer.
fn missing(tree: &Tree) -> Vec<String> {
    let absent = Controller::ALL.into_iter().filter(|controller| !tree.has(*controller));
    let line = |controller: Controller| {
        format!(
            "guests have no limits of {}: the kernel offers no cgroup controller {}",
            controller.limits(),
            controller.name()
        )
    };
    absent.map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::host::FakeExec;
    use crate::vms::sim::record;

    fn vm(properties: serde_json::Value) -> VmRecord {
        let serde_json::Value::Object(properties) = properties else { panic!("an object") };
        VmRecord { properties, ..record(0xabc) }
    }

    #[test]
    fn limits_follow_the_record_but_leave_the_hypervisor_what_it_needs() {
        let wanted = vm(json!({
            "ram": 512, "vcpus": 2, "max_physical_memory": 1536, "max_swap": 2048, "cpu_cap": 150,
            "cpu_shares": 65_535, "zfs_io_priority": 0, "max_lwps": 3000,
        }));
        let limits = Limits::of(&wanted, 512);
        let expected = Limits {
            memory_bytes: 1536 * MIB,
            swap_bytes: 512 * MIB,
            cpu_percent: Some(150),
            cpu_weight: 10_000,
            io_weight: 1,
            tasks: 3000,
        };
        assert_eq!(limits, expected);
        // A guest that has not seen its new size yet.
        assert_eq!(Limits::of(&wanted, 2048).memory_bytes, (2048 + 256) * MIB);
        let tight = vm(json!({ "ram": 512, "max_physical_memory": 512, "max_lwps": 1 }));
        let limits = Limits::of(&tight, 512);
        assert_eq!((limits.memory_bytes, limits.tasks), ((512 + 256) * MIB, 129));
        let plain = Limits::of(&vm(json!({ "ram": 512 })), 512);
        assert_eq!((plain.cpu_percent, plain.cpu_weight, plain.swap_bytes), (None, 100, 0));
    }

    #[tokio::test]
    async fn systemd_is_told_at_the_start_and_at_each_change() {
        let root = tempfile::tempdir().unwrap();
        let limiter = Limiter::open("systemd", "", root.path());
        assert!(limiter.degraded[0].contains("can't be checked"), "{limiter:?}");
        let mut limits = Limits::of(&vm(json!({ "ram": 64 })), 64);
        let made = limiter.properties(&limits);
        let of = |made: &[UnitProperty]| made.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(of(&made).contains(&"MemoryMax=335544320".to_owned()), "{made:?}");
        assert!(of(&made).contains(&"CPUQuotaPerSecUSec=infinity".to_owned()), "{made:?}");
        limits.cpu_percent = Some(50);
        let made = limiter.properties(&limits);
        assert!(of(&made).contains(&"CPUQuotaPerSecUSec=500000".to_owned()), "{made:?}");

        let exec = FakeExec::default();
        limits.cpu_percent = None;
        let vm = record(0xabc).uuid;
        limiter.change(vm, "x.scope", &limits, &exec).await.unwrap();
        let call = exec.calls()[0].join(" ");
        assert!(call.starts_with("change x.scope MemoryMax="), "{call}");
        let none = " CPUQuotaPerSecUSec=infinity ";
        assert!(call.contains(none), "an old quota is taken away: {call}");
    }

    #[test]
    fn without_systemd_and_without_a_place_it_is_said() {
        let root = tempfile::tempdir().unwrap();
        let limiter = Limiter::open("direct", "", root.path());
        assert!(limiter.degraded[0].contains("compute.cgroup_parent"), "{limiter:?}");
        let limiter = Limiter::open("direct", "/guests", root.path());
        assert!(limiter.degraded[0].contains("\"/guests\""), "{limiter:?}");
        let process = ProcessId { pid: 1, start_ticks: 1 };
        limiter.enter("one", process, &Limits::of(&vm(json!({})), 64)).unwrap();
    }
}
