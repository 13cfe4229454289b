//! The guests' processes: starting, finding, watching and ending them.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::folder::{Exited, GuestFolder, Started};
use super::probe::Accelerator;
use super::qmp::{self, Qmp, QmpError};
use super::{QemuConfig, argv};
use crate::drivers::DriverError;
use crate::drivers::compute::{Activity, Ended, Live, Observed, nocloud, not_running};
use crate::drivers::storage::Disk;
use crate::host::{Detached, Exit, ProcessId, Scope, SharedExec};
use crate::vms::VmRecord;

/// Longest wait for the control socket of a new process.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
/// Between looks for it.
const SOCKET_POLL: Duration = Duration::from_millis(10);
/// Longest wait for a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the exit status once a process is gone.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How often logs are looked at.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// A log over this is emptied, bytes.
const LOG_LIMIT_BYTES: u64 = 32 * 1024 * 1024;
/// What of the hypervisor's output is told when it fails, bytes.
const TAIL_BYTES: u64 = 2048;

type Changes = watch::Sender<u64>;

/// All guests of this agent.
#[derive(Debug)]
pub(super) struct Guests {
    config: QemuConfig,
    exec: SharedExec,
    clock: SharedClock,
    boot_id: String,
    changes: Changes,
    watched: Arc<Mutex<BTreeMap<VmUuid, Watched>>>,
    // One start at a time for each VM.
    starting: Mutex<BTreeMap<VmUuid, Arc<tokio::sync::Mutex<()>>>>,
}

/// A process whose end is waited for.
#[derive(Clone, Copy, Debug)]
struct Watched {
    process: ProcessId,
    killed: bool,
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
    #[error("its control socket did not open in {} s", SOCKET_TIMEOUT.as_secs())]
    NoSocket,
    #[error("it could not be controlled")]
    Control(#[from] QmpError),
    #[error("its CPUs do not run: {0}")]
    NotRunning(String),
}

impl Guests {
    pub(super) fn new(
        config: QemuConfig,
        exec: SharedExec,
        clock: SharedClock,
        boot_id: String,
    ) -> Self {
        Self {
            config,
            exec,
            clock,
            boot_id,
            changes: watch::channel(0).0,
            watched: Arc::default(),
            starting: Mutex::default(),
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn folder(&self, vm: VmUuid) -> GuestFolder {
        GuestFolder::new(&self.config.run_dir, &self.config.data_dir, vm)
    }

    /// Follows every guest that an earlier agent started.
    pub(super) fn adopt_all(&self) {
        match self.running() {
            Ok(vms) => tracing::info!(guests = vms.len(), "guests that run were adopted"),
            Err(error) => {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::warn!(error, "cannot look for guests that run");
            }
        }
    }

    pub(super) fn live(&self, vm: VmUuid) -> Result<Option<(ProcessId, u64)>, DriverError> {
        self.folder(vm).live(&self.boot_id).map_err(|error| read_failed(vm, error))
    }

    pub(super) fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        if let Some((process, started_at_ms)) = self.live(vm)? {
            self.watch(vm, process, None);
            return Ok(Observed::Running(Live {
                pid: process.pid,
                started_at_ms,
                booted_at_ms: started_at_ms,
                reboots: 0,
                activity: Activity::Running,
                reason: None,
            }));
        }
        let exited = self.folder(vm).exited().map_err(|error| read_failed(vm, error))?;
        let exited = exited.filter(|exited| exited.boot_id == self.boot_id);
        let ended = exited.map(|exited| Ended {
            exit_status: exited.exit_status,
            exited_at_ms: exited.exited_at_ms,
            reason: None,
        });
        Ok(Observed::Stopped(ended.unwrap_or_default()))
    }

    pub(super) fn running(&self) -> Result<Vec<VmUuid>, DriverError> {
        let folder = self.config.run_dir.join("vm");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(DriverError::failed("list the guests", error)),
        };
        let mut running = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| DriverError::failed("list the guests", error))?;
            let name = entry.file_name();
            let Some(vm) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if self.observe(vm)?.is_running() {
                running.push(vm);
            }
        }
        running.sort_unstable();
        Ok(running)
    }

    pub(super) fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let folder = self.folder(vm.uuid);
        let failed =
            |error| DriverError::failed(format!("write the metadata of VM {}", vm.uuid), error);
        folder.make().map_err(failed)?;
        let volume = nocloud::volume(vm).map_err(failed)?;
        folder.set_metadata(&volume).map_err(failed)
    }

    pub(super) async fn start(
        &self,
        accelerator: Result<Accelerator, DriverError>,
        vm: &VmRecord,
        disks: &[Disk],
    ) -> Result<(), DriverError> {
        let one = Arc::clone(self.starting.lock().entry(vm.uuid).or_default());
        let _one = one.lock().await;
        let folder = self.folder(vm.uuid);
        if let Some(process) = self.find(vm.uuid, &folder)? {
            return self.adopt(vm.uuid, &folder, process).await;
        }
        let accelerator = accelerator?;
        self.prepare(vm)?;
        let failed = |error| DriverError::failed(format!("start VM {}", vm.uuid), error);
        folder.clear_run().and_then(|()| folder.forget_exit()).map_err(failed)?;
        bound_logs(&folder);
        let input = argv::Input {
            binary: &self.config.binary,
            accelerator,
            version: &self.config.version,
            vm,
            disks,
            folder: &folder,
        };
        self.launch(vm.uuid, &folder, argv::build(&input)?).await
    }

    /// The live process, also one whose start an agent did not live to note.
    fn find(&self, vm: VmUuid, folder: &GuestFolder) -> Result<Option<ProcessId>, DriverError> {
        if let Some((process, _)) = self.live(vm)? {
            return Ok(Some(process));
        }
        folder.search().map_err(|error| read_failed(vm, error))
    }

    async fn adopt(
        &self,
        vm: VmUuid,
        folder: &GuestFolder,
        process: ProcessId,
    ) -> Result<(), DriverError> {
        let known = folder.started().map_err(|error| read_failed(vm, error))?;
        let started = Started {
            boot_id: self.boot_id.clone(),
            argv_hash: known.as_ref().map(|known| known.argv_hash.clone()).unwrap_or_default(),
            console_from: known.as_ref().map_or(0, |known| known.console_from),
            started_at_ms: known.map_or_else(|| self.now_ms(), |known| known.started_at_ms),
            process: Some(process),
        };
        folder.set_started(&started).map_err(|error| read_failed(vm, error))?;
        self.watch(vm, process, None);
        let resumed = async {
            let mut control = connect(folder, &mut None).await?;
            let status = control.execute::<qmp::QueryStatus>().await?;
            // Started, and then its agent died. Paused by a client is left as it is.
            if status["status"] == "prelaunch" {
                control.execute::<qmp::Cont>().await?;
            }
            Ok::<_, StartError>(())
        };
        resumed.await.map_err(|error| DriverError::failed(format!("adopt VM {vm}"), error))?;
        self.changed();
        Ok(())
    }

    async fn launch(
        &self,
        vm: VmUuid,
        folder: &GuestFolder,
        argv: Vec<String>,
    ) -> Result<(), DriverError> {
        let failed = |error| DriverError::failed(format!("start VM {vm}"), error);
        let mut started = Started {
            boot_id: self.boot_id.clone(),
            argv_hash: hex::encode(Sha256::digest(argv.join("\0"))),
            started_at_ms: self.now_ms(),
            process: None,
            console_from: std::fs::metadata(folder.console_log()).map_or(0, |log| log.len()),
        };
        folder.set_started(&started).map_err(failed)?;
        let log_start = std::fs::metadata(folder.log()).map_or(0, |log| log.len());
        let detached = Detached { argv, log: folder.log(), scope: Some(self.scope(vm)) };
        let spawned = self.exec.spawn_detached(&detached).await;
        let spawned =
            spawned.map_err(|error| DriverError::failed(format!("start VM {vm}"), error))?;
        started.process = Some(spawned.process);
        let noted = folder.set_started(&started).map_err(failed);
        self.watch(vm, spawned.process, Some(spawned.exit.clone()));
        let up = match noted {
            Ok(()) => bring_up(folder, spawned.exit).await.map_err(|error| {
                let printed = tail(&folder.log(), log_start);
                not_started(vm, error, printed.trim())
            }),
            Err(error) => Err(error),
        };
        if up.is_err() {
            self.discard(vm, folder, spawned.process).await;
        }
        self.changed();
        up
    }

    /// Nothing of a start that failed stays.
    async fn discard(&self, vm: VmUuid, folder: &GuestFolder, process: ProcessId) {
        let gone = async {
            let failed = |error| DriverError::failed(format!("end VM {vm}"), error);
            process.kill().map_err(failed)?;
            match tokio::time::timeout(KILL_TIMEOUT, self.gone(vm)).await {
                Ok(gone) => gone?,
                Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
            }
            folder.clear_run().map_err(failed)
        };
        if let Err(error) = gone.await {
            let error = muster_shared::error_chain::Chain(&error).to_string();
            tracing::error!(vm_uuid = %vm, pid = process.pid, error, "cannot end a process");
        }
    }

    fn scope(&self, vm: VmUuid) -> Scope {
        let prefix = &self.config.prefix;
        Scope {
            unit: format!("{prefix}-vm-{vm}.scope"),
            slice: format!("{prefix}-vms.slice"),
            properties: vec![
                // Else systemd would end guests before they were asked to shut down.
                "DefaultDependencies=no".to_owned(),
                format!("Before={prefix}-guests-shutdown.service"),
            ],
        }
    }

    pub(super) fn kill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let Some((process, _)) = self.live(vm)? else { return Err(not_running(vm)) };
        self.watch(vm, process, None);
        if let Some(watched) = self.watched.lock().get_mut(&vm) {
            watched.killed = true;
        }
        process.kill().map_err(|error| DriverError::failed(format!("kill VM {vm}"), error))
    }

    /// Returns when the process is gone and its exit status noted.
    pub(super) async fn gone(&self, vm: VmUuid) -> Result<(), DriverError> {
        let mut changes = self.changes.subscribe();
        loop {
            let live = self.live(vm)?;
            if let Some((process, _)) = live {
                self.watch(vm, process, None);
            } else if !self.watched.lock().contains_key(&vm) {
                return Ok(());
            }
            if changes.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    pub(super) fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        if self.live(vm)?.is_some() {
            return Err(DriverError::refused(Code::VmRunning, format!("VM {vm} is running")));
        }
        let folder = self.folder(vm);
        let cleaned = if purge { folder.purge() } else { folder.clear_run() };
        if purge {
            self.starting.lock().remove(&vm);
        }
        cleaned.map_err(|error| DriverError::failed(format!("clean up after VM {vm}"), error))
    }

    /// Waits for the process's end apart; the exit status is known only to who started it.
    fn watch(&self, vm: VmUuid, process: ProcessId, exit: Option<watch::Receiver<Option<Exit>>>) {
        {
            let mut watched = self.watched.lock();
            if watched.get(&vm).is_some_and(|watched| watched.process == process) {
                return;
            }
            watched.insert(vm, Watched { process, killed: false });
        }
        let (folder, boot_id) = (self.folder(vm), self.boot_id.clone());
        let (watched, changes) = (Arc::clone(&self.watched), self.changes.clone());
        let clock = Arc::clone(&self.clock);
        // Ends with the guest, or with the agent's runtime.
        drop(tokio::spawn(async move {
            until_gone(&folder, process).await;
            let exit_status = status_of(exit).await;
            let killed = {
                let watched = watched.lock();
                watched.get(&vm).is_some_and(|w| w.process == process && w.killed)
            };
            let exit_status = exit_status.or(killed.then_some(137));
            tracing::info!(vm_uuid = %vm, pid = process.pid, exit_status, "a guest has ended");
            let exited_at_ms = u64::try_from(clock.wall().as_millisecond()).ok();
            if let Err(error) = folder.set_exited(&Exited { boot_id, exit_status, exited_at_ms }) {
                tracing::debug!(vm_uuid = %vm, %error, "cannot note how a guest ended");
            }
            {
                let mut watched = watched.lock();
                if watched.get(&vm).is_some_and(|watched| watched.process == process) {
                    watched.remove(&vm);
                }
            }
            changes.send_modify(|version| *version += 1);
        }));
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0)
    }
}

fn read_failed(vm: VmUuid, error: std::io::Error) -> DriverError {
    DriverError::failed(format!("look for the process of VM {vm}"), error)
}

/// Waits for the end, and keeps the logs within their limit meanwhile.
async fn until_gone(folder: &GuestFolder, process: ProcessId) {
    loop {
        match tokio::time::timeout(LOG_PERIOD, process.gone()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::warn!(pid = process.pid, %error, "cannot wait for a process");
                tokio::time::sleep(SOCKET_POLL).await;
                if !process.is_alive().unwrap_or(true) {
                    return;
                }
            }
            Err(_) => bound_logs(folder),
        }
    }
}

async fn status_of(exit: Option<watch::Receiver<Option<Exit>>>) -> Option<i32> {
    let mut exit = exit?;
    let known = exit.wait_for(Option::is_some);
    let exit = tokio::time::timeout(STATUS_TIMEOUT, known).await.ok()?.ok()?;
    exit.map(Exit::number)
}

/// The hypervisor appends, so an emptied log goes on from its begin.
fn bound_logs(folder: &GuestFolder) {
    for log in [folder.log(), folder.console_log()] {
        if std::fs::metadata(&log).is_ok_and(|log| log.len() > LOG_LIMIT_BYTES) {
            let emptied = std::fs::OpenOptions::new().write(true).open(&log);
            if let Err(error) = emptied.and_then(|log| log.set_len(0)) {
                tracing::warn!(%error, log = %log.display(), "cannot empty a log");
            }
        }
    }
}

/// Waits for the control socket, or for the end of the process that should open it.
async fn connect(
    folder: &GuestFolder,
    exit: &mut Option<watch::Receiver<Option<Exit>>>,
) -> Result<Qmp, StartError> {
    let connect = async {
        loop {
            if let Some(exit) = exit.as_ref().and_then(|exit| *exit.borrow()) {
                return Err(StartError::Ended(exit));
            }
            match super::qmp(folder).await {
                Ok(control) => return Ok(control),
                Err(QmpError::Io(_)) => tokio::time::sleep(SOCKET_POLL).await,
                Err(error) => return Err(error.into()),
            }
        }
    };
    tokio::time::timeout(SOCKET_TIMEOUT, connect).await.unwrap_or(Err(StartError::NoSocket))
}

/// Lets the CPUs of a fresh process run.
async fn bring_up(
    folder: &GuestFolder,
    exit: watch::Receiver<Option<Exit>>,
) -> Result<(), StartError> {
    let mut control = connect(folder, &mut Some(exit)).await?;
    control.execute::<qmp::Cont>().await?;
    let status = control.execute::<qmp::QueryStatus>().await?;
    if status["running"] == true { Ok(()) } else { Err(StartError::NotRunning(status.to_string())) }
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
