//! Hardware VMs as QEMU processes that outlive the agent.
//!
//! The host's process table is the only truth about what runs; what a guest's CPUs do, its
//! hypervisor tells on a connection that is kept.

mod argv;
mod balloon;
mod bays;
mod boot;
mod cgroup;
mod channels;
mod control;
mod devices;
mod drives;
mod facts;
mod firmware;
mod folder;
mod guest;
mod guests;
mod hotplug;
pub mod isolation;
mod leaving;
mod limits;
mod link;
mod live;
mod logs;
mod nics;
mod ports;
pub mod probe;
mod processes;
mod qmp;
mod screenshot;
mod table;
mod throttle;
mod unplug;
mod vnc;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use muster_shared::config::MAX_SOCKET_PATH_BYTES;
use muster_shared::folders::make_private;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::Code;
use tokio::sync::watch;

use self::guests::{Guests, Rules};
use self::isolation::Isolation;
pub use self::leaving::{Leaving, Left};
pub(in crate::drivers) use self::limits::{Limiter, Limits};
pub use self::logs::trim as trim_logs;
pub use self::probe::Choice;
use self::probe::{Accelerator, Probe, Prober};
use self::qmp::{Plain, QmpError};
use self::vnc::Displays;
use super::{
    Abilities, Activity, Compute, GuestInside, GuestProcesses, GuestSignal, Observed, Resources,
    RunningGuest, not_running,
};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::host::{SharedExec, procfs};
use crate::vm_record::VmRecord;

/// Virtual CPUs of one VM, as many as bhyve allows.
const MAX_VCPUS: u32 = 64;
/// Longest path of the run folder, bytes: room for `/vm/UUID/qmp-aux.sock` must be left.
pub const MAX_RUN_DIR_BYTES: usize = MAX_SOCKET_PATH_BYTES - "/vm//qmp-aux.sock".len() - 36;

/// How the driver is set up.
#[derive(Clone, Debug)]
pub struct QemuConfig {
    /// The program, e.g. `qemu-system-x86_64`.
    pub binary: String,
    /// Metadata disks and logs go to `guests/` in it.
    pub data_dir: PathBuf,
    /// Sockets go to `vm/` in it; short, because a socket's path has at most 107 bytes.
    pub run_dir: PathBuf,
    /// `compute.accel`.
    pub accel: Choice,
    /// Prefix of everything host-wide, e.g. `muster`.
    pub prefix: String,
    /// Stamped on every process.
    pub server_uuid: ServerUuid,
    /// Stamped on every process, once it is known.
    pub cluster: Arc<Cluster>,
    /// `compute.cgroup_parent`.
    pub cgroup_parent: String,
    /// The agent's release, for SMBIOS.
    pub version: String,
}

/// The driver.
#[derive(Debug)]
pub struct Qemu {
    run_dir: PathBuf,
    prober: Prober,
    /// What this host lacks beside an accelerator.
    degraded: Vec<String>,
    guests: Guests,
    displays: Displays,
}

impl Qemu {
    /// Probes the accelerators and follows the guests that run.
    ///
    /// # Errors
    /// The run folder could not be made, or its path is too long for sockets.
    pub async fn open(
        config: QemuConfig,
        exec: SharedExec,
        clock: SharedClock,
    ) -> Result<Self, DriverError> {
        let failed = |error| DriverError::failed("prepare the run folder", error);
        check_socket_paths(&config)?;
        make_private(&config.run_dir).map_err(failed)?;
        let boot_id =
            procfs::boot_id().map_err(|error| DriverError::failed("read the boot id", error))?;
        let probe = Probe {
            exec: exec.clone(),
            clock: clock.clone(),
            binary: config.binary.clone(),
            run_dir: config.run_dir.clone(),
            boot_id: boot_id.clone(),
            kvm_node: PathBuf::from(probe::KVM_NODE),
        };
        let prober = Prober::new(probe, config.accel).await;
        let mut degraded = Vec::new();
        if exec.supervisor() == "direct" {
            degraded.push("systemd".to_owned());
        }
        let isolation = Isolation::new(&config.data_dir);
        degraded.extend(isolation.degraded());
        let limiter = Limiter::open(exec.supervisor(), &config.cgroup_parent, Path::new("/"));
        degraded.extend(limiter.degraded.iter().cloned());
        let run_dir = config.run_dir.clone();
        let guests = Guests::open(config, exec, clock, boot_id, Rules { isolation, limiter })?;
        // Without a password of its own a display is for this machine only.
        let displays = Displays::new(std::net::Ipv4Addr::LOCALHOST.into());
        Ok(Self { run_dir, prober, degraded, guests, displays })
    }

    async fn accelerator(&self) -> Result<Accelerator, DriverError> {
        let verdict = self.prober.verdict_for_start().await;
        verdict.accelerator.ok_or_else(|| {
            let why = verdict.degraded.join("; ");
            DriverError::refused(
                Code::HvmNotSupported,
                format!("hardware VMs can't run here: {why}"),
            )
        })
    }

    async fn tell<C: Plain + Send + 'static>(&self, vm: VmUuid) -> Result<(), DriverError> {
        let qmp = self.guests.qmp(vm).await?;
        qmp.execute::<C>().await.map_err(|error| talk_failed(vm, error))?;
        Ok(())
    }

    /// A guest that has panicked does not run after its reset until it is told to.
    async fn reset(&self, vm: VmUuid) -> Result<(), DriverError> {
        let live = self.guests.live_now(vm);
        let had_panicked = live.is_some_and(|live| live.activity == Activity::Panicked);
        self.tell::<qmp::Reset>(vm).await?;
        if had_panicked {
            self.guests.recovered(vm).await;
            self.tell::<qmp::Cont>(vm).await?;
            self.guests.settled(vm, true).await;
        }
        Ok(())
    }
}

fn talk_failed(vm: VmUuid, error: QmpError) -> DriverError {
    DriverError::failed(format!("control VM {vm}"), error)
}

fn check_socket_paths(config: &QemuConfig) -> Result<(), DriverError> {
    if config.run_dir.as_os_str().len() <= MAX_RUN_DIR_BYTES {
        return Ok(());
    }
    let text = format!(
        "the path of run folder {} has more than {MAX_RUN_DIR_BYTES} bytes",
        config.run_dir.display()
    );
    Err(DriverError::refused(Code::InvalidParameters, text))
}

#[async_trait]
impl Compute for Qemu {
    fn brands(&self) -> &[&'static str] {
        &["bhyve", "kvm"]
    }

    fn holds(&self, vm: VmUuid) -> bool {
        self.guests.live(vm).is_some() || self.guests.folder(vm).exists()
    }

    fn abilities(&self) -> Abilities {
        let verdict = self.prober.verdict();
        let accelerator = verdict.accelerator;
        Abilities {
            hvm: accelerator.is_some(),
            accel: accelerator.map(|accelerator| accelerator.name().to_owned()),
            max_vcpus: if accelerator.is_some() { MAX_VCPUS } else { 0 },
            memory_mib: procfs::memory_mib(),
            version: verdict.version,
            uefi: firmware::Firmware::find(Path::new(firmware::FOLDER)).is_some(),
            containers: None,
            no_containers: None,
            user_ids: None,
            degraded: [verdict.degraded, self.degraded.clone()].concat(),
        }
    }

    fn machine_type(&self, vm: &VmRecord) -> Option<String> {
        let machines = self.prober.verdict().machines;
        let newest = if argv::old_machine(vm) { machines.pc } else { machines.q35 };
        argv::pinned_machine(vm).map(str::to_owned).or(newest)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.guests.changes()
    }

    async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.guests.prepare(vm).await
    }

    fn firmware_template(&self, vm: &VmRecord) -> Result<Option<PathBuf>, DriverError> {
        firmware::template(vm, &self.guests.folder(vm.uuid))
    }

    async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError> {
        self.guests.start(self.accelerator().await, vm, with).await
    }

    async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.guests.limit(vm).await
    }

    async fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        self.guests.observe(vm)
    }

    async fn signal(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError> {
        match signal {
            GuestSignal::PowerDown => self.tell::<qmp::PowerDown>(vm).await,
            GuestSignal::Quit => self.tell::<qmp::Quit>(vm).await,
            GuestSignal::Reset => self.reset(vm).await,
            GuestSignal::Pause => {
                self.tell::<qmp::Stop>(vm).await?;
                self.guests.settled(vm, false).await;
                Ok(())
            }
            GuestSignal::Resume => {
                self.tell::<qmp::Cont>(vm).await?;
                self.guests.settled(vm, true).await;
                Ok(())
            }
            GuestSignal::Nmi => self.tell::<qmp::InjectNmi>(vm).await,
            GuestSignal::Kill => self.guests.kill(vm),
            GuestSignal::Number(number) => {
                let text = format!("signal: {number} means nothing to a hardware VM");
                Err(DriverError::refused(Code::InvalidSignal, text))
            }
        }
    }

    async fn wait_stopped(&self, vm: VmUuid, timeout: Duration) -> Result<bool, DriverError> {
        let gone = tokio::time::timeout(timeout, self.guests.gone(vm)).await;
        Ok(gone.is_ok() || self.guests.live(vm).is_none())
    }

    async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        self.guests.cleanup(vm, purge).await
    }

    fn guests_leave(&self) -> bool {
        leaving::is_under_way(&self.run_dir)
    }

    async fn running(&self) -> Result<Vec<RunningGuest>, DriverError> {
        Ok(self.guests.running())
    }
}

impl GuestProcesses for Qemu {}

#[async_trait]
impl GuestInside for Qemu {}

#[cfg(test)]
mod tests;
