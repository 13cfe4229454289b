//! The guests that run, in memory. The process table of the host is the truth: it is read when the
//! agent starts, again each minute, and before each start in its first seconds. Between that nothing
//! is missed, because nobody else starts guests, and the end of each is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::argv;
use super::control::{self, Control};
use super::drives;
use super::folder::{Exited, GuestFolder};
use super::guest::Guest;
use super::logs;
use super::nics;
use super::processes::{START_TASK, Search};
use crate::drivers::DriverError;
use crate::drivers::compute::{Ended, Observed, RunningGuest};
use crate::host::{Exit, ProcessId, procfs};

/// Longest wait for the exit status and the last words once a process is gone.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// Between attempts to wait for a process after one failed.
const RETRY: Duration = Duration::from_millis(100);
/// How often the process table is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Longest time in which a process that an agent made before it died becomes the hypervisor, by which
/// it is found.
const SETTLE: Duration = Duration::from_secs(10);
/// How often the logs of a guest are looked at.
const LOG_PERIOD: Duration = Duration::from_secs(10);

const LOOK: &str = "look for guests in the process table";

type ExitReceiver = watch::Receiver<Option<Exit>>;

/// Who follows the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follower {
    /// Their agent.
    Agent,
    /// Somebody beside it: takes the second control socket first, and notes nothing.
    Helper,
}

/// Where guests are looked for.
#[derive(Clone, Debug)]
pub(super) struct TableConfig {
    pub(super) data_dir: PathBuf,
    pub(super) run_dir: PathBuf,
    pub(super) follower: Follower,
}

/// All guests of one agent.
#[derive(Debug)]
pub(super) struct GuestTable {
    config: TableConfig,
    clock: SharedClock,
    boot_id: String,
    search: Search,
    changes: watch::Sender<u64>,
    content: Mutex<Content>,
    closing: CancellationToken,
    /// Two looks at once would both find, and follow, the same guest.
    looking: Mutex<()>,
    opened_at: Duration,
    /// A look has found all that an earlier agent had begun to start.
    has_settled: AtomicBool,
}

#[derive(Debug, Default)]
struct Content {
    live: BTreeMap<VmUuid, Guest>,
    ended: BTreeMap<VmUuid, Ended>,
    /// Their processes are being made, and registered by who makes them.
    launching: BTreeSet<VmUuid>,
}

/// The right to make a VM's process. Dropped without one, the process table is looked at again.
#[derive(Debug)]
pub(super) struct Launch {
    table: Arc<GuestTable>,
    vm: VmUuid,
}

impl Launch {
    /// The process that was made.
    pub(super) fn made(&self, process: ProcessId, started_at_ms: u64, exit: ExitReceiver) -> Guest {
        self.table.register(self.vm, process, started_at_ms, Some(exit))
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        let mut content = self.table.content.lock();
        content.launching.remove(&self.vm);
        if !content.live.contains_key(&self.vm) {
            self.table.has_settled.store(false, Ordering::Relaxed);
        }
    }
}

impl GuestTable {
    /// An empty table; see [`Self::look`].
    pub(super) fn new(
        config: TableConfig,
        clock: SharedClock,
        boot_id: String,
        closing: CancellationToken,
    ) -> Arc<Self> {
        let search = Search::new(&config.run_dir);
        let changes = watch::channel(0).0;
        let (content, opened_at) = (Mutex::default(), clock.monotonic());
        let has_settled = AtomicBool::new(false);
        Arc::new(Self {
            config,
            clock,
            boot_id,
            search,
            changes,
            content,
            closing,
            looking: Mutex::default(),
            opened_at,
            has_settled,
        })
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub(super) fn folder(&self, vm: VmUuid) -> GuestFolder {
        GuestFolder::new(&self.config.run_dir, &self.config.data_dir, vm)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn get(&self, vm: VmUuid) -> Option<Guest> {
        self.content.lock().live.get(&vm).cloned()
    }

    pub(super) fn running(&self) -> Vec<RunningGuest> {
        let running = |(vm, guest): (&VmUuid, &Guest)| RunningGuest {
            vm: *vm,
            pid: guest.process.pid,
            ram_mib: guest.ram_mib,
            started_by: guest.started_by.clone(),
        };
        self.content.lock().live.iter().map(running).collect()
    }

    /// What runs, or how it ended.
    ///
    /// # Errors
    /// What an earlier agent noted can't be read.
    pub(super) fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        {
            let content = self.content.lock();
            if let Some(guest) = content.live.get(&vm) {
                return Ok(Observed::Running(guest.observed()));
            }
            if let Some(ended) = content.ended.get(&vm) {
                return Ok(Observed::Stopped(ended.clone()));
            }
        }
        let failed = |error| DriverError::failed(format!("read how VM {vm} ended"), error);
        let exited = self.folder(vm).exited().map_err(failed)?;
        let ended = match exited.filter(|exited| exited.boot_id == self.boot_id) {
            Some(exited) => exited.ended(),
            None => Ended::default(),
        };
        self.content.lock().ended.entry(vm).or_insert_with(|| ended.clone());
        Ok(Observed::Stopped(ended))
    }

    /// Notes that a VM's guest has the network interfaces that it is to have; or that it may not, any
    /// more.
    pub(super) fn settle_nics(&self, vm: VmUuid, settled: bool) {
        let Some(guest) = self.get(vm) else { return };
        guest.settle_nics(settled);
        self.changed();
    }

    /// The same of its disks.
    pub(super) fn settle_disks(&self, vm: VmUuid, settled: bool) {
        let Some(guest) = self.get(vm) else { return };
        guest.settle_disks(settled);
        self.changed();
    }

    /// Forgets how a VM ended.
    pub(super) fn forget(&self, vm: VmUuid) {
        self.content.lock().ended.remove(&vm);
    }

    /// The process of a VM, which is about to be killed.
    pub(super) fn to_kill(&self, vm: VmUuid) -> Option<ProcessId> {
        let mut content = self.content.lock();
        let guest = content.live.get_mut(&vm)?;
        guest.killed = true;
        Some(guest.process)
    }

    /// Says that this VM's process is about to be made.
    pub(super) fn launch(self: &Arc<Self>, vm: VmUuid) -> Launch {
        let mut content = self.content.lock();
        content.launching.insert(vm);
        content.ended.remove(&vm);
        Launch { table: Arc::clone(self), vm }
    }

    /// Returns when a VM's process is gone and its exit status noted.
    pub(super) async fn gone(&self, vm: VmUuid) {
        let mut changes = self.changes();
        while self.get(vm).is_some() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Follows the guests in the process table that are not followed yet; says how many there are.
    ///
    /// # Errors
    /// The process table can't be read. Then nothing is known, and "stopped" would be a lie.
    pub(super) fn look(self: &Arc<Self>) -> Result<usize, DriverError> {
        let failed = |error| DriverError::failed(LOOK, error);
        let _looking = self.looking.lock();
        let age = self.clock.monotonic().saturating_sub(self.opened_at);
        let found = self.search.all().map_err(failed)?;
        for (&vm, &process) in &found {
            let known = {
                let content = self.content.lock();
                content.launching.contains(&vm) || content.live.contains_key(&vm)
            };
            // One that has ended since it was found, and was taken off the table for that, would be
            // followed again, to an end without exit status. Asked after the table, so it is exact.
            if known || !process.is_alive().map_err(failed)? {
                continue;
            }
            let noted = self.folder(vm).started().unwrap_or_else(|error| {
                tracing::warn!(vm_uuid = %vm, %error, "cannot read how a guest was started");
                None
            });
            // Noted without its process when the agent died in between.
            let noted = noted.filter(|noted| noted.process.is_none_or(|noted| noted == process));
            let started_at_ms = match noted {
                Some(noted) => noted.started_at_ms,
                None => procfs::wall_ms(process.start_ticks).map_err(failed)?,
            };
            let guest = self.register(vm, process, started_at_ms, None);
            self.doubt(vm, &guest);
        }
        if age >= SETTLE {
            self.has_settled.store(true, Ordering::Relaxed);
        }
        Ok(found.len())
    }

    /// A guest that was asked for devices may have given them up while no agent ran.
    fn doubt(&self, vm: VmUuid, guest: &Guest) {
        let asked = self.folder(vm).asked().unwrap_or_else(|error| {
            tracing::warn!(vm_uuid = %vm, %error, "cannot read what a guest was asked for");
            Vec::new()
        });
        if asked.iter().any(|device| nics::number_of(device).is_some()) {
            guest.settle_nics(false);
        }
        if asked.iter().any(|device| drives::number_of(device).is_some()) {
            guest.settle_disks(false);
        }
        if !asked.is_empty() {
            self.changed();
        }
    }

    /// As [`look`](Self::look) before a start, until an earlier agent can have left nothing that was
    /// not found: whoever has the agent's folders is the only one to start guests in them.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub(super) async fn look_until_settled(self: &Arc<Self>) -> Result<(), DriverError> {
        match self.has_settled.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.look_aside().await.map(drop),
        }
    }

    /// As [`look`](Self::look), beside the async threads: a host may have many processes.
    #[expect(clippy::disallowed_methods, reason = "this is a driver")]
    async fn look_aside(self: &Arc<Self>) -> Result<usize, DriverError> {
        let table = Arc::clone(self);
        let looked = tokio::task::spawn_blocking(move || table.look()).await;
        looked.unwrap_or_else(|error| Err(DriverError::failed(LOOK, std::io::Error::other(error))))
    }

    /// Finds guests that an agent had just begun to start when it died.
    pub(super) fn look_each_minute(self: &Arc<Self>) {
        let table = Arc::clone(self);
        // Ends with the driver, or with the agent's runtime.
        drop(tokio::spawn(async move {
            loop {
                let pause = tokio::time::sleep(LOOK_PERIOD);
                if table.closing.run_until_cancelled(pause).await.is_none() {
                    return;
                }
                if let Err(error) = table.look_aside().await {
                    tracing::warn!(error = %Chain(&error), "guests may be missing");
                }
            }
        }));
    }

    /// Follows a process to its end. The exit status is known only to who started it.
    fn register(
        self: &Arc<Self>,
        vm: VmUuid,
        process: ProcessId,
        started_at_ms: u64,
        exit: Option<ExitReceiver>,
    ) -> Guest {
        let noted = self.folder(vm).started().ok().flatten();
        let noted = noted.filter(|noted| noted.process == Some(process));
        let (sender, control) = watch::channel(Control {
            rebooted_at_ms: noted.as_ref().and_then(|noted| noted.rebooted_at_ms),
            reboots: noted.as_ref().map_or(0, |noted| noted.reboots),
            ..Control::default()
        });
        let argv = procfs::cmdline(process.pid).ok().flatten().unwrap_or_default();
        let ram_mib = argv::ram_mib_of(&argv);
        let started_by = procfs::started_with(process.pid, START_TASK).ok().flatten();
        let started_by = started_by.and_then(|task| task.parse().ok());
        let guest = Guest {
            process,
            started_at_ms,
            ram_mib,
            started_by,
            killed: false,
            control,
            vcpus: Arc::default(),
            nics_settled: Arc::default(),
            disks_settled: Arc::default(),
        };
        self.content.lock().live.insert(vm, guest.clone());
        self.changed();
        // Ends with the guest, with the driver, or with the agent's runtime.
        drop(tokio::spawn(Arc::clone(self).follow(vm, process, sender, exit)));
        guest
    }

    async fn follow(
        self: Arc<Self>,
        vm: VmUuid,
        process: ProcessId,
        sender: watch::Sender<Control>,
        exit: Option<ExitReceiver>,
    ) {
        // Pinned here: handed over by value its state would be held twice, for every guest.
        let watching = std::pin::pin!(self.watch(vm, process, &sender));
        if self.closing.run_until_cancelled(watching).await.is_none() {
            return;
        }
        let exit_status = status_of(exit).await;
        let killed = {
            let content = self.content.lock();
            content.live.get(&vm).is_some_and(|guest| guest.process == process && guest.killed)
        };
        let shutdown = sender.borrow().shutdown.clone();
        let exited = Exited {
            boot_id: self.boot_id.clone(),
            exit_status: exit_status.or(killed.then_some(137)),
            exited_at_ms: Some(self.now_ms()),
            reason: shutdown.or_else(|| killed.then(|| "killed".to_owned())),
        };
        let Exited { exit_status, reason, .. } = &exited;
        tracing::info!(vm_uuid = %vm, pid = process.pid, exit_status, reason, "a guest has ended");
        if self.config.follower == Follower::Agent
            && let Err(error) = self.folder(vm).set_exited(&exited)
        {
            // Known until this agent ends.
            tracing::warn!(vm_uuid = %vm, %error, "cannot note how a guest ended");
        }
        {
            let mut content = self.content.lock();
            content.live.remove(&vm);
            content.ended.insert(vm, exited.ended());
        }
        self.changed();
    }

    /// Returns when the process is gone and all that its hypervisor said was read.
    async fn watch(&self, vm: VmUuid, process: ProcessId, sender: &watch::Sender<Control>) {
        let folder = self.folder(vm);
        let mut sockets = [folder.qmp(), folder.qmp_aux()];
        if self.config.follower == Follower::Helper {
            sockets.reverse();
        }
        let controlled = control::follow(&sockets, &self.clock, sender);
        tokio::pin!(controlled);
        tokio::select! {
            biased;
            never = &mut controlled => match never {},
            () = self.pass_on(&folder, process, sender.subscribe()) => {}
            () = until_gone(&folder, process) => {}
        }
        let mut silent = sender.subscribe();
        let last_words = async {
            tokio::select! {
                biased;
                never = &mut controlled => match never {},
                // The connection has ended; or there was none, or all of it is dropped.
                _ = silent.wait_for(|control| control.qmp.is_none()) => {}
            }
        };
        if tokio::time::timeout(STATUS_TIMEOUT, last_words).await.is_err() {
            tracing::debug!(vm_uuid = %vm, "the control socket outlives its process");
        }
    }

    /// Lets others know what changes in a guest, and keeps what a later agent can't ask for.
    async fn pass_on(
        &self,
        folder: &GuestFolder,
        process: ProcessId,
        mut sender: watch::Receiver<Control>,
    ) {
        let mut reboots = sender.borrow().reboots;
        while sender.changed().await.is_ok() {
            let control = sender.borrow_and_update().clone();
            if control.reboots != reboots && self.config.follower == Follower::Agent {
                reboots = control.reboots;
                if let Err(error) = folder.note_reboot(process, control.rebooted_at_ms, reboots) {
                    tracing::warn!(pid = process.pid, %error, "cannot note a guest's restart");
                }
            }
            self.changed();
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }
}

/// Waits for the end, and keeps the logs within their limit meanwhile.
async fn until_gone(folder: &GuestFolder, process: ProcessId) {
    loop {
        // One wait for as long as it lives: a node has many guests.
        let mut gone = std::pin::pin!(process.gone());
        let ended = loop {
            match tokio::time::timeout(LOG_PERIOD, gone.as_mut()).await {
                Ok(ended) => break ended,
                Err(_) => logs::bound(folder),
            }
        };
        let Err(error) = ended else { return };
        tracing::warn!(pid = process.pid, %error, "cannot wait for a process");
        tokio::time::sleep(RETRY).await;
        if !process.is_alive().unwrap_or(true) {
            return;
        }
    }
}

async fn status_of(exit: Option<ExitReceiver>) -> Option<i32> {
    let mut exit = exit?;
    let known = exit.wait_for(Option::is_some);
    let exit = tokio::time::timeout(STATUS_TIMEOUT, known).await.ok()?.ok()?;
    exit.map(Exit::number)
}
