//! Compute: the processes that are VMs. They outlive the agent; what runs is always observed.

mod console;
mod devices;
mod display;
mod facts;
mod inside;
pub mod nocloud;
mod notes;
pub mod oci;
mod process;
pub mod qemu;
mod router;
pub mod sim;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;
use tokio::sync::watch;

use console::logged;
pub use console::{AgentChannel, CONSOLE_PAST_BYTES, GuestConsole, GuestIo, GuestPort, Logged};
pub use devices::{
    GuestDevices, GuestDisk, GuestDisks, GuestNic, GuestNics, INFO_TYPES, SnapshotChange,
    check_info_types,
};
pub use display::{GuestDisplay, MAX_PICTURE_BYTES, Picture};
pub use facts::GuestFacts;
pub use inside::{
    BlockCounter, CpuCounters, GuestCounters, GuestInside, InsideRoot, LinkCounters,
    NetworkCounters,
};
pub use process::{
    GuestCommand, GuestProcess, GuestProcesses, ProcessInput, ProcessOutput, TerminalSize,
};
pub use router::Router;

use super::DriverError;
use crate::drivers::images::RuntimeConfig;
use crate::drivers::network::Attached;
use crate::drivers::storage::{Disk, Variables};
use crate::host::idmap::IdRange;
use crate::host::{UnitProperty, UnitValue};
use crate::vm_record::VmRecord;

/// What a VM's process is started with, beside its record.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What its firmware keeps, if that keeps anything.
    pub variables: Option<Variables>,
    /// Its network interfaces.
    pub nics: Vec<Attached>,
    /// What a container is started from; no hardware VM has it.
    pub root: Option<ContainerRoot>,
}

/// What a container is started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRoot {
    /// The folder that it sees as `/`.
    pub path: PathBuf,
    /// How its image wants it to be run.
    pub runtime: RuntimeConfig,
    /// The host's ids under which its files are shown there, and that its own are; without, its own are
    /// the host's.
    pub ids: Option<IdRange>,
}

/// What the host shows of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// No process.
    Stopped(Ended),
    /// A live process.
    Running(Live),
}

/// How the last process of this boot of the host ended, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status (128 + signal when killed).
    pub exit_status: Option<i32>,
    /// When it was found to have ended, ms since the epoch.
    pub exited_at_ms: Option<u64>,
    /// Why, for people, e.g. `guest-shutdown`.
    pub reason: Option<Arc<str>>,
}

/// A live process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its process id.
    pub pid: u32,
    /// When it started, ms since the epoch; with the pid it names the process for ever.
    pub started_at_ms: u64,
    /// When the guest booted last, ms since the epoch: the start, or a later restart by the guest.
    pub booted_at_ms: u64,
    /// How often the guest restarted within this process.
    pub reboots: u32,
    /// What its virtual CPUs do.
    pub activity: Activity,
    /// Why they do not run, for people.
    pub reason: Option<Arc<str>>,
    /// Its network interfaces were changed, by itself or by a task that failed, since they were last
    /// known to be what they are to be, see [`GuestDevices::settle_nics`].
    pub nics_unsettled: bool,
    /// The same of its disks, see [`GuestDevices::settle_disks`].
    pub disks_unsettled: bool,
    /// Memory that the guest has of what it was started with, MiB; `None`: it gives none back.
    pub memory_mib: Option<u64>,
}

/// What the virtual CPUs of a live process do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// They run; or the hypervisor does not tell, and then there is a reason.
    #[default]
    Running,
    /// They have not started yet.
    Prelaunch,
    /// They were stopped by a client or by the hypervisor.
    Paused,
    /// They wait since a disk failed, e.g. because there is no room.
    IoError,
    /// The guest's system gave up.
    Panicked,
    /// The hypervisor gave up.
    Broken,
}

impl Activity {
    /// The word in a VM's `state`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Prelaunch => "prelaunch",
            Self::Paused => "paused",
            Self::IoError => "io-error",
            Self::Panicked => "panicked",
            Self::Broken => "internal-error",
        }
    }
}

impl Observed {
    /// No process, and nothing is known of an earlier one.
    #[must_use]
    pub fn stopped() -> Self {
        Self::Stopped(Ended::default())
    }

    /// Whether there is a live process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.live().is_some()
    }

    /// The live process.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        match self {
            Self::Running(live) => Some(live),
            Self::Stopped(_) => None,
        }
    }
}

/// A signal as `machine_kill` maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestSignal {
    /// ACPI power button (`SIGTERM`).
    PowerDown,
    /// The process is killed (`SIGKILL`).
    Kill,
    /// The hypervisor quits (`SIGINT`).
    Quit,
    /// Hard reset (`SIGHUP`).
    Reset,
    /// Stops the virtual CPUs, or all processes of a container (`SIGSTOP`).
    Pause,
    /// Lets them go on (`SIGCONT`).
    Resume,
    /// Non-maskable interrupt (`SIGUSR1`).
    Nmi,
    /// This signal to the first process of a container; it means nothing to a hardware VM.
    Number(i32),
}

/// Runs VMs of some brands: starts, watches and ends their processes. What else can be done with one
/// that runs is in traits of their own.
#[async_trait]
pub trait Compute:
    GuestConsole + GuestDevices + GuestDisplay + GuestFacts + GuestInside + GuestProcesses
{
    /// The brands whose VMs it runs, e.g. `kvm`.
    fn brands(&self) -> &[&'static str];

    /// Whether something of a VM is here: its process, or files that it left.
    fn holds(&self, vm: VmUuid) -> bool;

    /// What this driver offers, for sysinfo.
    fn abilities(&self) -> Abilities;

    /// The virtual hardware that a VM is to have, with its version: what its record says, or the
    /// newest there is. `None`: this driver knows no versions.
    fn machine_type(&self, vm: &VmRecord) -> Option<String>;

    /// Changes whenever a guest's process started or ended or its CPUs stopped or went on, whoever
    /// caused it. Never reports late by more than 250 ms.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Makes what the guest will read when it starts (its metadata disk); also done by `start`.
    ///
    /// # Errors
    /// It could not be written.
    async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError>;

    /// A raw file with what a VM's firmware keeps at first; `None`: it keeps nothing.
    ///
    /// # Errors
    /// `NotSupported`: the host does not have the firmware.
    fn firmware_template(&self, _vm: &VmRecord) -> Result<Option<PathBuf>, DriverError> {
        Ok(None)
    }

    /// Starts the VM's process, or adopts one that already runs. Returns once the guest's CPUs
    /// run.
    ///
    /// # Errors
    /// `HvmNotSupported` when no accelerator passed its probe; a failure carries what the
    /// hypervisor printed. Nothing is left running then.
    async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError>;

    /// Puts a running VM under the limits of its record, as far as this host can enforce any; `start`
    /// does so as well. Nothing is done about a VM that does not run.
    ///
    /// # Errors
    /// They could not be changed.
    async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError>;

    /// What runs now.
    ///
    /// # Errors
    /// The host could not be read.
    async fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError>;

    /// Sends a signal.
    ///
    /// # Errors
    /// `VmNotRunning`.
    async fn signal(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError>;

    /// Waits until the process is gone; false when `timeout` passed first.
    ///
    /// # Errors
    /// The host could not be read.
    async fn wait_stopped(&self, vm: VmUuid, timeout: Duration) -> Result<bool, DriverError>;

    /// Removes what a stopped VM left outside storage: sockets, metadata disk, logs when `purge`.
    ///
    /// # Errors
    /// Something could not be removed.
    async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError>;

    /// Whether the guests are leaving, because their host goes down: none is to be started then
    /// that nobody asks for.
    fn guests_leave(&self) -> bool {
        false
    }

    /// VMs of this agent that have a live process, whether or not a record exists.
    ///
    /// # Errors
    /// The host could not be read.
    async fn running(&self) -> Result<Vec<RunningGuest>, DriverError>;
}

/// The live process of a VM, whether or not the VM has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningGuest {
    /// The VM.
    pub vm: VmUuid,
    /// The process.
    pub pid: u32,
    /// Memory that the guest was given, MiB, where its process tells.
    pub ram_mib: Option<u64>,
    /// The task that started it, where its process tells.
    pub started_by: Option<TaskId>,
}

/// What a compute driver offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Hardware VMs can run.
    pub hvm: bool,
    /// `kvm`, `tcg` or none.
    pub accel: Option<String>,
    /// Most virtual CPUs of one VM; 0 without `hvm`.
    pub max_vcpus: u32,
    /// Memory of the host, MiB, where it is known: no VM can have more.
    pub memory_mib: Option<u64>,
    /// Version of the hypervisor.
    pub version: Option<String>,
    /// VMs can have UEFI firmware.
    pub uefi: bool,
    /// The program that runs containers.
    pub containers: Option<String>,
    /// Why VMs can't run that are containers.
    pub no_containers: Option<String>,
    /// The ids of the host that containers get for their own; none: those of the host are theirs.
    pub user_ids: Option<IdRange>,
    /// Why something is missing, for `Muster.degraded`.
    pub degraded: Vec<String>,
}

/// Properties of a VM from which its limits are made, see [`Compute::limit`].
pub const LIMITED_BY: [&str; 8] = [
    "cpu_cap",
    "cpu_shares",
    "max_lwps",
    "max_physical_memory",
    "max_swap",
    "ram",
    "update_disks",
    "zfs_io_priority",
];

/// For the scope of a guest: else systemd would end it before it was asked to shut down.
fn leaves_before_shutdown(prefix: &str) -> Vec<UnitProperty> {
    let before = vec![format!("{prefix}-guests-shutdown.service")];
    vec![
        UnitProperty { name: "DefaultDependencies", value: UnitValue::Flag(false) },
        UnitProperty { name: "Before", value: UnitValue::Units(before) },
    ]
}

/// `VmNotRunning`.
#[must_use]
pub fn not_running(vm: VmUuid) -> DriverError {
    DriverError::refused(Code::VmNotRunning, format!("VM {vm} is not running"))
}
