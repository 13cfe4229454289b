//! The containers that run, in memory. What runs is read from the process table: monitors name their
//! container among their arguments, and a container whose monitor was killed is named by what that
//! noted of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{TaskId, VmUuid};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::folder::{self, ContainerFolder, Exited, Ready};
use crate::drivers::DriverError;
use crate::drivers::compute::{Activity, Ended, Live, Observed, RunningGuest};
use crate::host::{ProcessId, procfs};

/// The command of a monitor.
pub const COMMAND: &str = "container-monitor";
/// In the environment of a monitor: the task that started it.
pub(super) const START_TASK: &str = "MUSTER_TASK_ID";
/// How often the process table is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Between attempts to wait for a process after one failed.
const RETRY: Duration = Duration::from_millis(100);
const LOOK: &str = "look for containers in the process table";

/// A container that runs.
#[derive(Clone, Debug)]
pub(super) struct Container {
    /// `None`: it was killed, and its container goes on.
    pub(super) monitor: Option<ProcessId>,
    /// `None`: it is being made.
    pub(super) ready: Option<Ready>,
    pub(super) started_at_ms: u64,
    ram_mib: Option<u64>,
    started_by: Option<TaskId>,
    /// By this agent.
    killed: bool,
    paused: bool,
}

impl Container {
    pub(super) fn pid(&self) -> u32 {
        let init = self.ready.as_ref().map(|ready| ready.init);
        init.or(self.monitor).map_or(0, |process| process.pid)
    }

    fn observed(&self) -> Live {
        let activity = match (&self.ready, self.paused) {
            (None, _) => Activity::Prelaunch,
            (Some(_), true) => Activity::Paused,
            (Some(_), false) => Activity::Running,
        };
        Live {
            pid: self.pid(),
            started_at_ms: self.started_at_ms,
            booted_at_ms: self.started_at_ms,
            reboots: 0,
            activity,
            reason: None,
            nics_unsettled: false,
            disks_unsettled: false,
            memory_mib: None,
        }
    }
}

/// All containers of one agent.
#[derive(Debug)]
pub(super) struct Table {
    data_dir: PathBuf,
    run_dir: PathBuf,
    clock: SharedClock,
    boot_id: String,
    changes: watch::Sender<u64>,
    content: Mutex<Content>,
    closing: CancellationToken,
    /// Two looks at once would both find, and follow, the same container.
    looking: Mutex<()>,
}

#[derive(Debug, Default)]
struct Content {
    live: BTreeMap<VmUuid, Container>,
    ended: BTreeMap<VmUuid, Ended>,
    launching: BTreeSet<VmUuid>,
}

impl Table {
    pub(super) fn new(
        data_dir: PathBuf,
        run_dir: PathBuf,
        clock: SharedClock,
        boot_id: String,
        closing: CancellationToken,
    ) -> Arc<Self> {
        let (changes, content, looking) = (watch::channel(0).0, Mutex::default(), Mutex::default());
        Arc::new(Self { data_dir, run_dir, clock, boot_id, changes, content, closing, looking })
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub(super) fn folder(&self, vm: VmUuid) -> ContainerFolder {
        ContainerFolder::new(&self.run_dir, &self.data_dir, vm)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    pub(super) fn get(&self, vm: VmUuid) -> Option<Container> {
        self.content.lock().live.get(&vm).cloned()
    }

    /// Whether none runs, nor is about to.
    pub(super) fn is_empty(&self) -> bool {
        let content = self.content.lock();
        content.live.is_empty() && content.launching.is_empty()
    }

    pub(super) fn running(&self) -> Vec<RunningGuest> {
        let running = |(vm, container): (&VmUuid, &Container)| RunningGuest {
            vm: *vm,
            pid: container.pid(),
            ram_mib: container.ram_mib,
            started_by: container.started_by.clone(),
        };
        self.content.lock().live.iter().map(running).collect()
    }

    pub(super) fn observe(&self, vm: VmUuid) -> io::Result<Observed> {
        {
            let content = self.content.lock();
            if let Some(container) = content.live.get(&vm) {
                return Ok(Observed::Running(container.observed()));
            }
            if let Some(ended) = content.ended.get(&vm) {
                return Ok(Observed::Stopped(ended.clone()));
            }
        }
        let exited = self.folder(vm).exited()?;
        let exited = exited.filter(|exited| exited.boot_id == self.boot_id);
        let ended = exited.map(|exited| exited.ended()).unwrap_or_default();
        self.content.lock().ended.entry(vm).or_insert_with(|| ended.clone());
        Ok(Observed::Stopped(ended))
    }

    pub(super) fn launching(&self, vm: VmUuid) {
        let mut content = self.content.lock();
        content.launching.insert(vm);
        content.ended.remove(&vm);
    }

    pub(super) fn launched(&self, vm: VmUuid) {
        self.content.lock().launching.remove(&vm);
    }

    pub(super) fn forget(&self, vm: VmUuid) {
        self.content.lock().ended.remove(&vm);
    }

    /// Notes that the agent kills it.
    pub(super) fn to_kill(&self, vm: VmUuid) -> Option<Container> {
        let mut content = self.content.lock();
        let container = content.live.get_mut(&vm)?;
        container.killed = true;
        Some(container.clone())
    }

    pub(super) fn set_paused(&self, vm: VmUuid, paused: bool) {
        if let Some(container) = self.content.lock().live.get_mut(&vm) {
            container.paused = paused;
        }
        self.changed();
    }

    /// The monitor says that the container's own process runs.
    pub(super) fn set_ready(&self, vm: VmUuid, ready: Ready) {
        if let Some(container) = self.content.lock().live.get_mut(&vm) {
            container.ready = Some(ready);
        }
        self.changed();
    }

    pub(super) async fn gone(&self, vm: VmUuid) {
        let mut changes = self.changes();
        while self.get(vm).is_some() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Follows the containers that run and are not followed yet; says how many run.
    ///
    /// # Errors
    /// The process table can't be read. Then nothing is known, and "stopped" would be a lie.
    pub(super) fn look(self: &Arc<Self>) -> Result<usize, DriverError> {
        let failed = |error| DriverError::failed(LOOK, error);
        let _looking = self.looking.lock();
        let mut found: BTreeMap<VmUuid, Option<ProcessId>> =
            self.monitors().map_err(failed)?.into_iter().map(|(vm, it)| (vm, Some(it))).collect();
        for vm in self.noted().map_err(failed)? {
            if self.ready(vm).map_err(failed)?.is_some() {
                found.entry(vm).or_insert(None);
            }
        }
        for (&vm, &monitor) in &found {
            let known = {
                let content = self.content.lock();
                content.launching.contains(&vm) || content.live.contains_key(&vm)
            };
            let is_alive = monitor.is_none_or(|monitor| monitor.is_alive().unwrap_or(true));
            if !known && is_alive {
                self.follow(vm, monitor).map_err(failed)?;
            }
        }
        Ok(found.len())
    }

    /// As [`look`](Self::look), beside the async threads: a host may have many processes.
    #[expect(clippy::disallowed_methods, reason = "this is a driver")]
    pub(super) async fn look_aside(self: &Arc<Self>) -> Result<usize, DriverError> {
        let table = Arc::clone(self);
        let looked = tokio::task::spawn_blocking(move || table.look()).await;
        looked.unwrap_or_else(|error| Err(DriverError::failed(LOOK, io::Error::other(error))))
    }

    /// Every monitor that runs.
    fn monitors(&self) -> io::Result<BTreeMap<VmUuid, ProcessId>> {
        let mut found = BTreeMap::new();
        let own = u64::from(nix::unistd::geteuid().as_raw());
        for pid in procfs::pids()? {
            let Some(vm) = procfs::cmdline(pid)?.and_then(|argv| self.monitored(&argv)) else {
                continue;
            };
            // Anybody may name our folder: only the owner makes it ours.
            if procfs::status(pid)?.is_none_or(|status| status.uid != own) {
                continue;
            }
            if let Some(process) = ProcessId::of(pid)? {
                found.entry(vm).or_insert(process);
            }
        }
        Ok(found)
    }

    /// The container whose folder follows the command among these arguments.
    fn monitored(&self, argv: &[String]) -> Option<VmUuid> {
        let pair = argv.windows(2).find(|pair| pair[0] == COMMAND)?;
        let containers = self.run_dir.join(folder::RUN);
        let name = std::path::Path::new(&pair[1]).strip_prefix(&containers).ok()?;
        name.to_str()?.parse().ok()
    }

    /// Containers that have a folder.
    fn noted(&self) -> io::Result<Vec<VmUuid>> {
        let entries = match std::fs::read_dir(self.run_dir.join(folder::RUN)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in entries {
            all.extend(entry?.file_name().to_str().and_then(|name| name.parse::<VmUuid>().ok()));
        }
        Ok(all)
    }

    /// What a monitor noted of a process that still runs.
    fn ready(&self, vm: VmUuid) -> io::Result<Option<Ready>> {
        let ready = self.folder(vm).ready()?.filter(|ready| ready.boot_id == self.boot_id);
        match ready {
            Some(ready) if ready.init.is_alive()? => Ok(Some(ready)),
            _ => Ok(None),
        }
    }

    /// Follows a container to its end.
    pub(super) fn follow(
        self: &Arc<Self>,
        vm: VmUuid,
        monitor: Option<ProcessId>,
    ) -> io::Result<()> {
        let folder = self.folder(vm);
        let started = folder.started()?.filter(|started| started.boot_id == self.boot_id);
        let ready = self.ready(vm)?;
        let process = monitor.or(ready.as_ref().map(|ready| ready.init));
        let Some(process) = process else { return Ok(()) };
        let started_at_ms = match &started {
            Some(started) => started.started_at_ms,
            None => procfs::wall_ms(process.start_ticks)?,
        };
        let task = procfs::started_with(process.pid, START_TASK)?;
        let paused = ready.as_ref().is_some_and(|ready| ready.cgroups.is_frozen());
        let container = Container {
            monitor,
            ready,
            started_at_ms,
            ram_mib: started.and_then(|started| started.ram_mib),
            started_by: task.and_then(|task| task.parse().ok()),
            killed: false,
            paused,
        };
        self.content.lock().live.insert(vm, container);
        self.changed();
        // Ends with the container, with the driver, or with the agent's runtime.
        drop(tokio::spawn(Arc::clone(self).until_end(vm, monitor)));
        Ok(())
    }

    async fn until_end(self: Arc<Self>, vm: VmUuid, monitor: Option<ProcessId>) {
        let ended = async {
            if let Some(monitor) = monitor {
                until_gone(monitor).await;
            }
            // One that was killed leaves its container running.
            if let Ok(Some(ready)) = self.ready(vm) {
                if let Some(container) = self.content.lock().live.get_mut(&vm) {
                    (container.monitor, container.ready) = (None, Some(ready.clone()));
                }
                tracing::warn!(vm_uuid = %vm, "the monitor of a container was killed");
                until_gone(ready.init).await;
            }
        };
        if self.closing.run_until_cancelled(ended).await.is_none() {
            return;
        }
        let ended = self.note_end(vm);
        let (exit_status, reason) = (ended.exit_status, ended.reason.as_deref());
        tracing::info!(vm_uuid = %vm, exit_status, reason, "a container has ended");
        {
            let mut content = self.content.lock();
            content.live.remove(&vm);
            content.ended.insert(vm, ended);
        }
        self.changed();
    }

    /// How it ended, as its monitor noted it, or as far as it is known without.
    fn note_end(&self, vm: VmUuid) -> Ended {
        let folder = self.folder(vm);
        let noted = folder.exited().ok().flatten();
        if let Some(exited) = noted.filter(|exited| exited.boot_id == self.boot_id) {
            return exited.ended();
        }
        let killed = self.get(vm).is_some_and(|container| container.killed);
        let exited = Exited {
            boot_id: self.boot_id.clone(),
            exit_status: killed.then_some(137),
            exited_at_ms: self.now_ms(),
            reason: killed.then(|| "killed".to_owned()),
        };
        if let Err(error) = folder.set_exited(&exited) {
            // Known until this agent ends.
            tracing::warn!(vm_uuid = %vm, %error, "cannot note how a container ended");
        }
        exited.ended()
    }

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
                    tracing::warn!(error = %Chain(&error), "containers may be missing");
                }
            }
        }));
    }
}

async fn until_gone(process: ProcessId) {
    while let Err(error) = process.gone().await {
        tracing::warn!(pid = process.pid, %error, "cannot wait for a process");
        tokio::time::sleep(RETRY).await;
        if !process.is_alive().unwrap_or(true) {
            return;
        }
    }
}
