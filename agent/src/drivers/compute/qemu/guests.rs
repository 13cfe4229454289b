//! Starting, controlling and ending guests.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::boot::BootOrder;
use super::firmware::VmFirmware;
use super::folder::{GuestFolder, Started};
use super::guest::Guest;
use super::isolation::Isolation;
use super::limits::{Limiter, Limits};
use super::probe::Accelerator;
use super::processes::START_TASK;
use super::qmp::{self, Qmp, QmpError};
use super::table::{Follower, GuestTable, TableConfig};
use super::{QemuConfig, argv, link, logs, talk_failed, throttle, vnc};
use crate::drivers::DriverError;
use crate::drivers::compute::{
    Activity, Live, Observed, Resources, RunningGuest, leaves_before_shutdown, nocloud, not_running,
};
use crate::host::{Detached, Exit, ProcessId, Scope, SharedExec, procfs};
use crate::vm_record::VmRecord;

/// Longest wait for the control socket of a new process: a busy host starts many at once.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the control socket of one that runs, and for its CPUs to do as told.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// What of the hypervisor's output is told when it fails, bytes.
const TAIL_BYTES: u64 = 2048;

/// What is done to each guest's process.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) isolation: Isolation,
    pub(super) limiter: Limiter,
}

/// All guests of this agent.
#[derive(Debug)]
pub(super) struct Guests {
    config: QemuConfig,
    table: Arc<GuestTable>,
    exec: SharedExec,
    rules: Rules,
    // One start at a time for each VM.
    starting: Mutex<BTreeMap<VmUuid, Arc<tokio::sync::Mutex<()>>>>,
    // Ends the tasks that follow guests; the guests go on.
    _closing: DropGuard,
}

/// A start that failed. What the hypervisor printed meanwhile names what the VM asks for and can't
/// have, so it is told to whoever asked for the VM.
fn not_started(vm: VmUuid, error: StartError, printed: &str) -> DriverError {
    let message = match printed {
        "" => format!("start VM {vm}: {error}"),
        printed => format!("start VM {vm}: {error}: {printed}"),
    };
    DriverError::refused_because(Code::InternalError, message, error)
}

/// Why a process that was started is of no use.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("it ended at once with {0}")]
    Ended(Exit),
    #[error("{0}")]
    NoControl(String),
    #[error("it could not be controlled")]
    Control(#[from] QmpError),
    #[error("its CPUs do not run: {0}")]
    NotRunning(String),
}

impl Guests {
    /// Finds the guests that run and follows them.
    ///
    /// # Errors
    /// The process table can't be read.
    pub(super) fn open(
        config: QemuConfig,
        exec: SharedExec,
        clock: SharedClock,
        boot_id: String,
        rules: Rules,
    ) -> Result<Self, DriverError> {
        let closing = CancellationToken::new();
        let following = TableConfig {
            data_dir: config.data_dir.clone(),
            run_dir: config.run_dir.clone(),
            follower: Follower::Agent,
        };
        let table = GuestTable::new(following, clock, boot_id, closing.clone());
        let found = table.look()?;
        tracing::info!(guests = found, "guests that run were adopted");
        table.look_each_minute();
        let starting = Mutex::default();
        Ok(Self { config, table, exec, rules, starting, _closing: closing.drop_guard() })
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.table.changes()
    }

    pub(super) fn folder(&self, vm: VmUuid) -> GuestFolder {
        self.table.folder(vm)
    }

    pub(super) fn live(&self, vm: VmUuid) -> Option<ProcessId> {
        self.table.get(vm).map(|guest| guest.process)
    }

    pub(super) fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        self.table.observe(vm)
    }

    /// A VM that has a process.
    pub(super) fn get(&self, vm: VmUuid) -> Option<Guest> {
        self.table.get(vm)
    }

    /// What is known of a VM's process, if it has one.
    pub(super) fn live_now(&self, vm: VmUuid) -> Option<Live> {
        self.table.get(vm).map(|guest| guest.observed())
    }

    /// See [`GuestTable::settle_nics`].
    pub(super) fn settle_nics(&self, vm: VmUuid, settled: bool) {
        self.table.settle_nics(vm, settled);
    }

    /// See [`GuestTable::settle_disks`].
    pub(super) fn settle_disks(&self, vm: VmUuid, settled: bool) {
        self.table.settle_disks(vm, settled);
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.table.now_ms()
    }

    pub(super) fn running(&self) -> Vec<RunningGuest> {
        self.table.running()
    }

    /// A connection to the hypervisor of a running VM.
    pub(super) async fn qmp(&self, vm: VmUuid) -> Result<Arc<Qmp>, DriverError> {
        let guest = self.table.get(vm).ok_or_else(|| not_running(vm))?;
        let qmp = guest.qmp(CONTROL_TIMEOUT).await;
        qmp.map_err(|why| DriverError::failed(format!("control VM {vm}"), why))
    }

    /// Returns when a VM that had panicked was reset.
    pub(super) async fn recovered(&self, vm: VmUuid) {
        if let Some(guest) = self.table.get(vm) {
            guest.wait(CONTROL_TIMEOUT, |control| control.activity != Activity::Panicked).await;
        }
    }

    /// Returns when a running VM's CPUs do what they were told to. Whoever reads its state
    /// afterwards is to see that.
    pub(super) async fn settled(&self, vm: VmUuid, running: bool) {
        if let Some(guest) = self.table.get(vm) {
            let done = |activity| (activity == Activity::Running) == running;
            guest.wait(CONTROL_TIMEOUT, |control| done(control.activity)).await;
        }
    }

    /// Writes the metadata disk beside the async threads: the data folder may be slow.
    #[expect(clippy::disallowed_methods, reason = "this is a driver")]
    pub(super) async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let folder = self.folder(vm.uuid);
        let failed =
            |error| DriverError::failed(format!("write the metadata of VM {}", vm.uuid), error);
        let volume = nocloud::volume(vm).map_err(failed)?;
        let write = move || folder.make().and_then(|()| folder.set_metadata(&volume));
        let written = tokio::task::spawn_blocking(write).await;
        written.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(failed)
    }

    pub(super) async fn start(
        &self,
        accelerator: Result<Accelerator, DriverError>,
        vm: &VmRecord,
        with: &Resources,
    ) -> Result<(), DriverError> {
        let one = Arc::clone(self.starting.lock().entry(vm.uuid).or_default());
        let _one = one.lock().await;
        // An agent that died while it started this VM may have left its process on the way.
        self.table.look_until_settled().await?;
        if let Some(guest) = self.table.get(vm.uuid) {
            return adopt(vm.uuid, &guest).await;
        }
        let accelerator = accelerator?;
        self.prepare(vm).await?;
        let folder = self.folder(vm.uuid);
        let failed = |error| DriverError::failed(format!("start VM {}", vm.uuid), error);
        folder.clear_run().and_then(|()| folder.forget_exit()).map_err(failed)?;
        logs::bound(&folder);
        let config = &self.config;
        let input = argv::Input {
            binary: &config.binary,
            accelerator,
            version: &config.version,
            vm,
            disks: &with.disks,
            folder: &folder,
            firmware: VmFirmware::of(vm, &folder, with.variables.as_ref()).await?,
            nics: &with.nics,
            uid: self.rules.isolation.uid_of(&folder).map_err(failed)?,
        };
        let limits = Limits::of(vm, argv::ram_mib(vm));
        self.launch(vm, with, &folder, argv::build(&input)?, &limits).await
    }

    async fn launch(
        &self,
        record: &VmRecord,
        with: &Resources,
        folder: &GuestFolder,
        argv: Vec<String>,
        limits: &Limits,
    ) -> Result<(), DriverError> {
        let vm = record.uuid;
        let failed = |error| DriverError::failed(format!("start VM {vm}"), error);
        let mut started = Started {
            boot_id: self.table.boot_id().to_owned(),
            argv_hash: hex::encode(Sha256::digest(argv.join("\0"))),
            started_at_ms: self.table.now_ms(),
            process: None,
            console_from: std::fs::metadata(folder.console_log()).map_or(0, |log| log.len()),
            rebooted_at_ms: None,
            reboots: 0,
        };
        folder.set_started(&started).map_err(failed)?;
        let log_start = std::fs::metadata(folder.log()).map_or(0, |log| log.len());
        let (env, scope) = (self.stamp(record), Some(self.scope(vm, limits)));
        let detached = Detached { argv, env, log: folder.log(), scope };
        let launch = self.table.launch(vm);
        let spawned = self.exec.spawn_detached(&detached).await;
        let spawned =
            spawned.map_err(|error| DriverError::failed(format!("start VM {vm}"), error))?;
        let process = spawned.process;
        started.process = Some(process);
        let noted = folder.set_started(&started).map_err(failed);
        // Its CPUs have not started, so it has used next to nothing yet.
        let limited =
            self.rules.limiter.enter(&vm.to_string(), process, limits).map_err(|error| {
                DriverError::failed(format!("put VM {vm} under its limits"), error)
            });
        let guest = launch.made(process, started.started_at_ms, spawned.exit.clone());
        drop(launch);
        let up = match noted.and(limited) {
            Ok(()) => bring_up(&guest, record, with, spawned.exit).await.map_err(|error| {
                let printed = tail(&folder.log(), log_start);
                not_started(vm, error, printed.trim())
            }),
            Err(error) => Err(error),
        };
        if up.is_err() {
            self.discard(vm, folder, process).await;
        }
        up
    }

    /// Nothing of a start that failed stays.
    async fn discard(&self, vm: VmUuid, folder: &GuestFolder, process: ProcessId) {
        let gone = async {
            let failed = |error| DriverError::failed(format!("end VM {vm}"), error);
            process.kill().map_err(failed)?;
            if tokio::time::timeout(KILL_TIMEOUT, self.gone(vm)).await.is_err() {
                return Err(failed(std::io::ErrorKind::TimedOut.into()));
            }
            self.rules.limiter.remove(&vm.to_string()).map_err(failed)?;
            folder.clear_run().map_err(failed)
        };
        if let Err(error) = gone.await {
            let error = Chain(&error).to_string();
            tracing::error!(vm_uuid = %vm, pid = process.pid, error, "cannot end a process");
        }
    }

    /// Puts a VM that runs under the limits of its record.
    pub(super) async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.limit_process(vm).await?;
        // A guest that nobody limits need not be controlled for it.
        if !throttle::is_wanted(vm) {
            return Ok(());
        }
        match self.throttle(vm).await {
            Err(error) if self.live(vm.uuid).is_some() => Err(error),
            // It does not run, or not any more.
            _ => Ok(()),
        }
    }

    async fn throttle(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let qmp = self.qmp(vm.uuid).await?;
        throttle::set(&qmp, vm).await.map_err(|error| talk_failed(vm.uuid, error))
    }

    async fn limit_process(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let Some(process) = self.live(vm.uuid) else { return Ok(()) };
        let failed = |error| DriverError::failed(format!("limit VM {}", vm.uuid), error);
        // Its process knows better than its record how much memory the guest has today.
        let argv = procfs::cmdline(process.pid).map_err(failed)?.unwrap_or_default();
        let ram_mib = argv::ram_mib_of(&argv).unwrap_or(0).max(argv::ram_mib(vm));
        let limits = Limits::of(vm, ram_mib);
        let (unit, limiter) = (self.unit(vm.uuid), &self.rules.limiter);
        match limiter.change(vm.uuid, &unit, &limits, self.exec.as_ref()).await {
            Err(error) if self.live(vm.uuid).is_some() => Err(error),
            // It ended meanwhile, and its scope with it.
            _ => Ok(()),
        }
    }

    /// Whose a process is: it tells that also when all files about it are lost.
    fn stamp(&self, vm: &VmRecord) -> Vec<(&'static str, String)> {
        let QemuConfig { server_uuid, cluster, .. } = &self.config;
        let mut stamp = vec![
            ("MUSTER_SERVER_UUID", server_uuid.to_string()),
            ("MUSTER_VM_UUID", vm.uuid.to_string()),
        ];
        stamp.extend(cluster.id().map(|id| ("MUSTER_CLUSTER_ID", id.to_string())));
        stamp.extend(vm.start_task.as_ref().map(|task| (START_TASK, task.to_string())));
        stamp
    }

    fn unit(&self, vm: VmUuid) -> String {
        format!("{}-vm-{vm}.scope", self.config.prefix)
    }

    fn scope(&self, vm: VmUuid, limits: &Limits) -> Scope {
        let prefix = &self.config.prefix;
        let mut properties = leaves_before_shutdown(prefix);
        properties.extend(self.rules.limiter.properties(limits));
        Scope { unit: self.unit(vm), slice: format!("{prefix}-vms.slice"), properties }
    }

    pub(super) fn kill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let process = self.table.to_kill(vm).ok_or_else(|| not_running(vm))?;
        process.kill().map_err(|error| DriverError::failed(format!("kill VM {vm}"), error))
    }

    /// Returns when the process is gone and its exit status noted.
    pub(super) async fn gone(&self, vm: VmUuid) {
        self.table.gone(vm).await;
    }

    pub(super) async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        if self.live(vm).is_some() {
            return Err(DriverError::refused(Code::VmRunning, format!("VM {vm} is running")));
        }
        let folder = self.folder(vm);
        let unlimited = self.rules.limiter.remove(&vm.to_string());
        if purge {
            folder.purge().await?;
            self.starting.lock().remove(&vm);
            self.table.forget(vm);
        }
        let cleared = if purge { Ok(()) } else { folder.clear_run() };
        let cleaned = unlimited.and(cleared);
        cleaned.map_err(|error| DriverError::failed(format!("clean up after VM {vm}"), error))
    }
}

/// A guest that runs already; its CPUs may not, if its agent died in between.
async fn adopt(vm: VmUuid, guest: &Guest) -> Result<(), DriverError> {
    let resumed = async {
        let qmp = guest.qmp(SOCKET_TIMEOUT).await.map_err(StartError::NoControl)?;
        let prelaunch = |activity| activity == Activity::Prelaunch;
        // Paused by a client is left as it is.
        if prelaunch(guest.activity()) {
            qmp.execute::<qmp::Cont>().await?;
            guest.wait(CONTROL_TIMEOUT, |control| !prelaunch(control.activity)).await;
        }
        Ok::<_, StartError>(())
    };
    resumed.await.map_err(|error| DriverError::failed(format!("adopt VM {vm}"), error))
}

/// Lets the CPUs of a fresh process run.
async fn bring_up(
    guest: &Guest,
    record: &VmRecord,
    with: &Resources,
    mut exit: watch::Receiver<Option<Exit>>,
) -> Result<(), StartError> {
    let qmp = tokio::select! {
        biased;
        ended = exit.wait_for(Option::is_some) => {
            return Err(StartError::Ended(ended.ok().and_then(|exit| *exit).unwrap_or_default()));
        }
        qmp = guest.qmp(SOCKET_TIMEOUT) => qmp.map_err(StartError::NoControl)?,
    };
    vnc::set_password(&qmp, record).await?;
    throttle::set(&qmp, record).await?;
    link::pull(&qmp, &with.nics).await?;
    BootOrder::of(record).set_second_boot(&qmp, record).await?;
    qmp.execute::<qmp::Cont>().await?;
    let control =
        guest.wait(CONTROL_TIMEOUT, |control| control.activity != Activity::Prelaunch).await;
    match control.activity {
        Activity::Running => Ok(()),
        other => Err(StartError::NotRunning(
            control.reason.as_deref().unwrap_or(other.word()).to_owned(),
        )),
    }
}

/// The end of what was printed since `from`.
fn tail(log: &Path, from: u64) -> String {
    let read = || {
        let mut log = std::fs::File::open(log)?;
        let end = log.metadata()?.len();
        log.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut text = Vec::new();
        log.take(TAIL_BYTES).read_to_end(&mut text)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&text).trim().to_owned())
    };
    match read() {
        Ok(text) if text.is_empty() => "it printed nothing".to_owned(),
        Ok(text) => text,
        Err(error) => format!("its output can't be read: {error}"),
    }
}
