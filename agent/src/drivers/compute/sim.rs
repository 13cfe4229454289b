//! Simulated guests: processes that outlive the simulated agent.

mod channels;
mod devices;
mod knobs;
mod life;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::SharedClock;
use muster_shared::ids::VmUuid;
use muster_shared::vm::CONTAINER_BRANDS;
use muster_shared::wire::Code;
use muster_shared::wire::usage::{DiskUsage, VmUsage};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use super::{
    Abilities, Activity, AgentChannel, Compute, Ended, GuestConsole, GuestDevices, GuestDisk,
    GuestDisks, GuestDisplay, GuestFacts, GuestInside, GuestIo, GuestNic, GuestNics, GuestPort,
    GuestProcesses, GuestSignal, Live, Logged, Observed, Picture, Resources, RunningGuest,
    SnapshotChange, check_info_types, not_running,
};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;
use crate::drivers::network::{Attached, Nic};
use crate::drivers::storage::{Disk, Role};
use crate::vm_record::VmRecord;

/// How long a simulated guest takes to shut down when asked.
const SHUTDOWN: Duration = Duration::from_millis(200);
/// How long a process takes to go that is killed and dies slowly.
const DEATH: Duration = Duration::from_millis(500);
/// How often a wait looks.
const POLL: Duration = Duration::from_millis(20);
/// What a simulated console says when it is opened.
pub const CONSOLE_GREETING: &str = "up\r\n";
/// Memory that a simulated guest has.
const RSS_BYTES: u64 = 64 << 20;
/// Memory of a simulated host, MiB.
const SIM_MEMORY_MIB: u64 = 1 << 20;
/// Network interfaces that a simulated guest can be given while it runs.
const SLOTS: usize = 4;
/// The last disk beside the first for which it has a bay.
const LAST_BAY: u32 = 4;
/// Buffer of a simulated console, bytes.
const CONSOLE_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug)]
struct Guest {
    pid: u32,
    ram_mib: u64,
    /// What it has of that.
    memory_mib: u64,
    started_at_ms: u64,
    booted_at_ms: u64,
    reboots: u32,
    activity: Activity,
    leaves_at: Option<Timestamp>,
    leaves_with: i32,
    /// Percent of one CPU that it gets, in place of all limits.
    cpu_cap: Option<u64>,
    /// The order of devices that it was started with.
    boot: Option<String>,
    /// Sizes of disks that it was told while it ran, bytes.
    grown: BTreeMap<u32, u64>,
    /// Addresses of its network interfaces, by number.
    nics: BTreeMap<usize, String>,
    /// Numbers of those whose cable is out.
    links_down: BTreeSet<usize>,
    nics_unsettled: bool,
    /// Numbers of its disks.
    disks: BTreeSet<u32>,
    disks_unsettled: bool,
    /// That its display asks for.
    password: Option<String>,
    /// Its file systems stand still.
    frozen: bool,
}

impl Guest {
    fn set_link(&mut self, nic: &Nic) {
        match nic.link_down {
            true => drop(self.links_down.insert(nic.number)),
            false => drop(self.links_down.remove(&nic.number)),
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    last_pid: u32,
    running: BTreeMap<VmUuid, Guest>,
    exits: BTreeMap<VmUuid, i32>,
    /// Records that the driver made ready for, or started from, last.
    prepared: BTreeMap<VmUuid, VmRecord>,
    /// Counts up when the host gets another hypervisor.
    upgrades: u32,
    ignores_acpi: BTreeSet<VmUuid>,
    kept_nics: BTreeSet<(VmUuid, usize)>,
    kept_disks: BTreeSet<(VmUuid, u32)>,
    kept_memory: BTreeSet<VmUuid>,
    dies_slowly: BTreeSet<VmUuid>,
    starts: BTreeMap<VmUuid, u64>,
    /// VMs in which a guest agent runs.
    agents: BTreeSet<VmUuid>,
    /// What those of them say that only say what they were told to.
    said: BTreeMap<VmUuid, VecDeque<Vec<u8>>>,
    metadata_ports: BTreeMap<VmUuid, tokio::io::DuplexStream>,
}

impl Content {
    fn end(&mut self, vm: VmUuid, exit_status: i32) {
        if self.running.remove(&vm).is_some() {
            self.metadata_ports.remove(&vm);
            self.exits.insert(vm, exit_status);
        }
    }

    /// Lets the guests leave whose time has come.
    fn settle(&mut self, now: Timestamp) -> bool {
        let due = |guest: &Guest| guest.leaves_at.is_some_and(|at| at <= now);
        let leaving: Vec<_> =
            self.running.iter().filter(|(_, guest)| due(guest)).map(|(vm, _)| *vm).collect();
        for &vm in &leaving {
            let status = self.running.get(&vm).map_or(0, |guest| guest.leaves_with);
            self.end(vm, status);
        }
        !leaving.is_empty()
    }
}

/// The guests of one simulated host; clones share them, agent crashes leave them running.
#[derive(Clone, Debug)]
pub struct SimGuests {
    content: Arc<Mutex<Content>>,
    changes: watch::Sender<u64>,
}

impl Default for SimGuests {
    fn default() -> Self {
        Self { content: Arc::default(), changes: watch::channel(0).0 }
    }
}

impl SimGuests {
    /// Pid of each guest that runs.
    #[must_use]
    pub fn running(&self) -> BTreeMap<VmUuid, u32> {
        self.content.lock().running.iter().map(|(vm, guest)| (*vm, guest.pid)).collect()
    }

    /// The order of devices that a running guest was started with.
    #[must_use]
    pub fn booted_from(&self, vm: VmUuid) -> Option<String> {
        self.content.lock().running.get(&vm)?.boot.clone()
    }

    /// How often a VM's process was started (adopting is no start).
    #[must_use]
    pub fn starts(&self, vm: VmUuid) -> u64 {
        self.content.lock().starts.get(&vm).copied().unwrap_or(0)
    }

    /// Percent of one CPU that a running VM gets.
    #[must_use]
    pub fn cpu_cap(&self, vm: VmUuid) -> Option<u64> {
        self.content.lock().running.get(&vm)?.cpu_cap
    }

    /// The size of a disk that a running guest was told since it started, bytes.
    #[must_use]
    pub fn disk_size(&self, vm: VmUuid, index: u32) -> Option<u64> {
        self.content.lock().running.get(&vm)?.grown.get(&index).copied()
    }

    /// The password that the display of a running guest asks for.
    #[must_use]
    pub fn password(&self, vm: VmUuid) -> Option<String> {
        self.content.lock().running.get(&vm)?.password.clone()
    }

    /// VMs that left something outside storage, e.g. a metadata disk.
    #[must_use]
    pub fn leftovers(&self) -> BTreeSet<VmUuid> {
        self.content.lock().prepared.keys().copied().collect()
    }

    /// The record that a VM's metadata and process were made from.
    #[must_use]
    pub fn record(&self, vm: VmUuid) -> Option<VmRecord> {
        self.content.lock().prepared.get(&vm).cloned()
    }

    /// The host gets a newer hypervisor, whose machines are of another version.
    pub fn upgrade(&self) {
        self.content.lock().upgrades += 1;
    }

    /// The guest will not react to its power button.
    pub fn ignore_acpi(&self, vm: VmUuid) {
        self.content.lock().ignores_acpi.insert(vm);
    }

    /// The guest's process takes a moment to go once it is killed, as a real one does.
    pub fn die_slowly(&self, vm: VmUuid) {
        self.content.lock().dies_slowly.insert(vm);
    }

    /// The guest ends by itself.
    pub fn exit(&self, vm: VmUuid, exit_status: i32) {
        self.content.lock().end(vm, exit_status);
        self.changed();
    }

    /// The guest's system gives up.
    pub fn panic(&self, vm: VmUuid) {
        if let Some(guest) = self.content.lock().running.get_mut(&vm) {
            guest.activity = Activity::Panicked;
        }
        self.changed();
    }

    /// The host boots: no process is left, nor what the last one returned.
    pub fn reboot(&self) {
        let mut content = self.content.lock();
        content.running.clear();
        content.metadata_ports.clear();
        content.exits.clear();
        drop(content);
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    fn settle(&self, now: Timestamp) {
        if self.content.lock().settle(now) {
            self.changed();
        }
    }
}

impl GuestProcesses for SimCompute {}

#[async_trait]
impl GuestInside for SimCompute {}

/// The driver of one simulated agent.
#[derive(Debug)]
pub struct SimCompute {
    guests: SimGuests,
    clock: SharedClock,
    faults: Faults,
    brands: &'static [&'static str],
}

impl SimCompute {
    /// Operations in `faults`: `compute.prepare`, `.start`, `.limit`, `.observe`, `.signal`, `.info`,
    /// `.open`, `.processes`, `.cleanup`, `.running`, `.disk_usage`, `.grow_disk`,
    /// `.set_memory`, `.disks`, `.plug_disk`, `.unplug_disk`, `.nics`, `.plug_nic`, `.unplug_nic`, `.set_link`, `.set_password`.
    #[must_use]
    pub fn new(guests: SimGuests, clock: SharedClock, faults: Faults) -> Self {
        Self { guests, clock, faults, brands: &["bhyve", "kvm"] }
    }

    /// Of other brands than hardware VMs have.
    #[must_use]
    pub fn for_brands(self, brands: &'static [&'static str]) -> Self {
        Self { brands, ..self }
    }

    fn runs_containers(&self) -> bool {
        self.brands.iter().any(|brand| CONTAINER_BRANDS.contains(brand))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0)
    }
}

#[async_trait]
impl Compute for SimCompute {
    fn brands(&self) -> &[&'static str] {
        self.brands
    }

    fn holds(&self, vm: VmUuid) -> bool {
        let content = self.guests.content.lock();
        content.running.contains_key(&vm) || content.prepared.contains_key(&vm)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            hvm: true,
            accel: Some("sim".to_owned()),
            max_vcpus: 64,
            memory_mib: Some(SIM_MEMORY_MIB),
            version: Some("sim".to_owned()),
            uefi: true,
            containers: self.runs_containers().then(|| "sim".to_owned()),
            no_containers: None,
            user_ids: None,
            degraded: Vec::new(),
        }
    }

    fn machine_type(&self, vm: &VmRecord) -> Option<String> {
        let newest = format!("sim-{}", self.guests.content.lock().upgrades + 1);
        vm.machine_type.clone().or(Some(newest))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.guests.changes.subscribe()
    }

    async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let prepare = || {
            self.guests.content.lock().prepared.insert(vm.uuid, vm.clone());
            Ok(())
        };
        self.faults.call("compute.prepare", prepare).await
    }

    fn firmware_template(&self, vm: &VmRecord) -> Result<Option<PathBuf>, DriverError> {
        let is_uefi = vm.text("bootrom") == Some("uefi");
        Ok(is_uefi.then(|| PathBuf::from("/sim/firmware.fd")))
    }

    async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError> {
        let start = || {
            self.launch(vm, with);
            Ok(())
        };
        self.faults.call("compute.start", start).await
    }

    async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let limit = || {
            if let Some(guest) = self.guests.content.lock().running.get_mut(&vm.uuid) {
                guest.cpu_cap = vm.number("cpu_cap");
            }
            Ok(())
        };
        self.faults.call("compute.limit", limit).await
    }

    async fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        self.faults.call("compute.observe", || Ok(self.look(vm))).await
    }

    async fn signal(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError> {
        self.faults.call("compute.signal", || self.deliver(vm, signal)).await
    }

    async fn wait_stopped(&self, vm: VmUuid, timeout: Duration) -> Result<bool, DriverError> {
        let deadline = self.clock.monotonic().saturating_add(timeout);
        while self.look(vm).is_running() {
            if self.clock.monotonic() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        let cleanup = || {
            let mut content = self.guests.content.lock();
            if purge {
                content.prepared.remove(&vm);
                content.exits.remove(&vm);
            }
            Ok(())
        };
        self.faults.call("compute.cleanup", cleanup).await
    }

    async fn running(&self) -> Result<Vec<RunningGuest>, DriverError> {
        let running = || {
            self.guests.settle(self.clock.wall());
            let content = self.guests.content.lock();
            let guest = |(vm, guest): (&VmUuid, &Guest)| RunningGuest {
                vm: *vm,
                pid: guest.pid,
                ram_mib: Some(guest.ram_mib),
                started_by: None,
            };
            Ok(content.running.iter().map(guest).collect())
        };
        self.faults.call("compute.running", running).await
    }
}
