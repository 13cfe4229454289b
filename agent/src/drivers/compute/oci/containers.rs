//! Starting, controlling and ending containers.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::bundle::{self, Input, Program};
use super::folder::{ContainerFolder, Orders, Ready, Started};
use super::root_access::{self, RootAccess};
use super::runtime::{self, Prober, Runtime, Verdict};
use super::table::{COMMAND, Container, START_TASK, Table};
use super::{OciConfig, users};
use crate::drivers::DriverError;
use crate::drivers::compute::{
    ContainerRoot, Observed, Resources, RunningGuest, leaves_before_shutdown, not_running,
};
use crate::drivers::images::RuntimeConfig;
use crate::drivers::network::Backend;
use crate::host::idmap::IdRange;
use crate::host::{Detached, Exit, Hierarchy, Scope, SharedExec};
use crate::vm_record::VmRecord;

/// Longest wait for a container to run: a busy host starts many at once.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Between looks whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for the monitor of a killed container.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Asks a container to stop whose image names no other signal.
const SIGTERM: i32 = 15;

/// All containers of this agent.
#[derive(Debug)]
pub(super) struct Containers {
    config: OciConfig,
    table: Arc<Table>,
    exec: SharedExec,
    prober: Prober,
    // One start at a time for each VM.
    starting: Mutex<BTreeMap<VmUuid, Arc<tokio::sync::Mutex<()>>>>,
    /// Read by who makes a container, written by who removes what all of them share.
    shared: tokio::sync::RwLock<()>,
    // Ends the tasks that follow containers; the containers go on.
    _closing: DropGuard,
}

impl Containers {
    pub(super) fn open(
        config: OciConfig,
        exec: SharedExec,
        clock: SharedClock,
        boot_id: String,
        prober: Prober,
    ) -> Result<Self, DriverError> {
        let closing = CancellationToken::new();
        let (data_dir, run_dir) = (config.data_dir.clone(), config.run_dir.clone());
        let table = Table::new(data_dir, run_dir, clock, boot_id, closing.clone());
        let found = table.look()?;
        tracing::info!(containers = found, "containers that run were adopted");
        table.look_each_minute();
        let (starting, shared) = (Mutex::default(), tokio::sync::RwLock::default());
        let _closing = closing.drop_guard();
        Ok(Self { config, table, exec, prober, starting, shared, _closing })
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.prober.verdict()
    }

    /// The ids of the host that containers may have for their own.
    pub(super) fn user_ids(&self) -> Option<IdRange> {
        self.prober.user_ids
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.table.changes()
    }

    pub(super) fn folder(&self, vm: VmUuid) -> ContainerFolder {
        self.table.folder(vm)
    }

    pub(super) fn get(&self, vm: VmUuid) -> Option<Container> {
        self.table.get(vm)
    }

    pub(super) fn running(&self) -> Vec<RunningGuest> {
        self.table.running()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.table.now_ms()
    }

    pub(super) async fn gone(&self, vm: VmUuid) {
        self.table.gone(vm).await;
    }

    pub(super) fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        let failed = |error| DriverError::failed(format!("read how VM {vm} ended"), error);
        self.table.observe(vm).map_err(failed)
    }

    /// A runtime that works.
    pub(super) async fn runtime(&self) -> Result<Runtime, DriverError> {
        self.prober.runtime().await
    }

    /// What a running container's monitor noted of it.
    pub(super) fn ready(&self, vm: VmUuid) -> Result<Ready, DriverError> {
        self.get(vm).and_then(|container| container.ready).ok_or_else(|| not_running(vm))
    }

    /// Refuses what is known to be of no use before there is an image.
    pub(super) fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        Program::of(vm, &RuntimeConfig::default())?;
        let folder = self.folder(vm.uuid);
        let failed = |error| DriverError::failed(format!("prepare VM {}", vm.uuid), error);
        folder.make().map_err(failed)?;
        for name in bundle::ETC {
            folder.set_etc(name, &bundle::etc(vm, name)).map_err(failed)?;
        }
        Ok(())
    }

    pub(super) async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError> {
        let one = Arc::clone(self.starting.lock().entry(vm.uuid).or_default());
        let _one = one.lock().await;
        // An agent that died while it started this container may have left it on the way.
        self.table.look_aside().await?;
        if self.get(vm.uuid).is_some() {
            self.until_ready(vm.uuid, None).await?;
            return self.close_access(vm.uuid);
        }
        let runtime = self.runtime().await?;
        let root = with.root.as_ref().ok_or_else(|| {
            let text = format!("VM {} is a container and has no root folder", vm.uuid);
            DriverError::refused(Code::DatasetNotFound, text)
        })?;
        self.prepare(vm)?;
        let _shared = self.shared.read().await;
        self.table.launching(vm.uuid);
        let started = self.launch(vm, with, root, &runtime).await;
        self.table.launched(vm.uuid);
        let started = started.and(self.close_access(vm.uuid));
        if started.is_err() {
            self.discard(vm.uuid, &runtime).await;
        }
        started
    }

    async fn launch(
        &self,
        vm: &VmRecord,
        with: &Resources,
        root: &ContainerRoot,
        runtime: &Runtime,
    ) -> Result<(), DriverError> {
        let (folder, id) = (self.folder(vm.uuid), vm.uuid.to_string());
        let failed = |error: io::Error| DriverError::failed(format!("start VM {id}"), error);
        let forgotten = runtime.delete(self.exec.as_ref(), &id).await;
        forgotten.map_err(|error| DriverError::failed(format!("start VM {id}"), error))?;
        folder.clear_run().map_err(failed)?;
        let program = Program::of(vm, &root.runtime)?;
        let namespace = with.nics.iter().find_map(|nic| match &nic.backend {
            Backend::Pair { namespace, .. } => Some(namespace.as_path()),
            Backend::User { .. } | Backend::Tap { .. } => None,
        });
        self.write_bundle(vm, root, &program, namespace)?;
        let boot_id = self.table.boot_id().to_owned();
        let orders = Orders {
            runtime: runtime.arguments(),
            id: id.clone(),
            terminal: program.terminal,
            console_log: folder.console_log(),
            boot_id: boot_id.clone(),
            ids: root.ids,
        };
        folder.set_orders(&orders).map_err(failed)?;
        let started = Started {
            boot_id,
            started_at_ms: self.now_ms(),
            console_from: std::fs::metadata(folder.console_log()).map_or(0, |log| log.len()),
            namespace: namespace.map(Path::to_owned),
            ram_mib: vm.number("max_physical_memory"),
            nics: with.nics.iter().map(|it| (it.nic.number, it.nic.mac.clone())).collect(),
            stop_signal: stop_signal(&root.runtime),
            ids: root.ids,
        };
        folder.set_started(&started).map_err(failed)?;
        let detached = Detached {
            argv: vec![
                self.config.monitor.display().to_string(),
                COMMAND.to_owned(),
                folder.run().display().to_string(),
            ],
            env: self.stamp(vm),
            log: folder.log(),
            scope: Some(self.scope(vm.uuid)),
        };
        let spawned = self.exec.spawn_detached(&detached).await;
        let spawned =
            spawned.map_err(|error| DriverError::failed(format!("start VM {id}"), error))?;
        self.table.follow(vm.uuid, Some(spawned.process)).map_err(failed)?;
        self.until_ready(vm.uuid, Some(spawned.exit)).await
    }

    fn access(&self, vm: VmUuid) -> RootAccess {
        RootAccess::of(&self.config.run_dir, &vm.to_string())
    }

    /// Whoever runs has passed it.
    fn close_access(&self, vm: VmUuid) -> Result<(), DriverError> {
        let closed = self.access(vm).close();
        closed.map_err(|error| DriverError::failed(format!("close the access of VM {vm}"), error))
    }

    fn write_bundle(
        &self,
        vm: &VmRecord,
        root: &ContainerRoot,
        program: &Program,
        namespace: Option<&Path>,
    ) -> Result<(), DriverError> {
        let folder = self.folder(vm.uuid);
        let ids = users::find(&root.path, program.user.as_deref())?;
        let id = vm.uuid.to_string();
        let OciConfig { cgroup_parent, prefix, .. } = &self.config;
        let systemd = self.exec.supervisor() == "systemd";
        let access = self.access(vm.uuid);
        if let Some(ids) = root.ids {
            // Also where new containers get none any more.
            let opened = root_access::let_pass(&self.config.run_dir)
                .and_then(|()| access.open(&root.path, ids, namespace));
            opened.map_err(|error| {
                DriverError::failed(format!("open the access of VM {id}"), error)
            })?;
        }
        let (passed, devices) = (access.root(), access.devices());
        let input = Input {
            vm,
            program,
            ids: &ids,
            root: if root.ids.is_some() { &passed } else { &root.path },
            etc: bundle::ETC.map(|name| (name, folder.etc(name))).into(),
            namespace,
            own_ids: root.ids,
            devices: namespace.and(root.ids).map(|_| devices.as_path()),
            cgroup: &runtime::cgroup_path(systemd, cgroup_parent, prefix, &id),
            offered: self.prober.offered,
        };
        let failed = |error| DriverError::failed(format!("describe VM {id}"), error);
        let spec = bundle::build(&input).map_err(|error| failed(io::Error::other(error)))?;
        let json = serde_json::to_vec(&spec).map_err(|error| failed(error.into()))?;
        folder.set_config(&json).map_err(failed)
    }

    /// Returns once the container's own process runs.
    async fn until_ready(
        &self,
        vm: VmUuid,
        exit: Option<watch::Receiver<Option<Exit>>>,
    ) -> Result<(), DriverError> {
        let folder = self.folder(vm);
        let failed = |error| DriverError::failed(format!("start VM {vm}"), error);
        let ready = async {
            loop {
                // Asked before: one that ended at once ran all the same.
                let runs = self.get(vm).is_some();
                if let Some(ready) = folder.ready().map_err(failed)?
                    && ready.boot_id == self.table.boot_id()
                {
                    self.table.set_ready(vm, ready);
                    return Ok(());
                }
                if !runs || exit.as_ref().is_some_and(|exit| exit.borrow().is_some()) {
                    return Err(not_started(vm, &folder));
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(START_TIMEOUT, ready).await {
            Ok(ready) => ready,
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Nothing of a start that failed stays.
    async fn discard(&self, vm: VmUuid, runtime: &Runtime) {
        let gone = async {
            if self.get(vm).is_some() {
                self.kill(vm).await?;
                if tokio::time::timeout(KILL_TIMEOUT, self.gone(vm)).await.is_err() {
                    let late = io::Error::from(io::ErrorKind::TimedOut);
                    return Err(DriverError::failed(format!("end VM {vm}"), late));
                }
            }
            let failed = |error| DriverError::failed(format!("end VM {vm}"), error);
            runtime.delete(self.exec.as_ref(), &vm.to_string()).await.map_err(failed)
        };
        if let Err(error) = gone.await {
            tracing::error!(vm_uuid = %vm, error = %Chain(&error), "cannot end a container");
        }
    }

    /// Whose a monitor is: it tells that also when all files about it are lost.
    fn stamp(&self, vm: &VmRecord) -> Vec<(&'static str, String)> {
        let OciConfig { server_uuid, cluster, .. } = &self.config;
        let mut stamp = vec![
            ("MUSTER_SERVER_UUID", server_uuid.to_string()),
            ("MUSTER_VM_UUID", vm.uuid.to_string()),
        ];
        stamp.extend(cluster.id().map(|id| ("MUSTER_CLUSTER_ID", id.to_string())));
        stamp.extend(vm.start_task.as_ref().map(|task| (START_TASK, task.to_string())));
        stamp
    }

    /// The monitor's own; the container has another one beside it, with its limits.
    fn scope(&self, vm: VmUuid) -> Scope {
        let prefix = &self.config.prefix;
        let properties = leaves_before_shutdown(prefix);
        let unit = format!("{prefix}-monitor-{vm}.scope");
        Scope { unit, slice: format!("{prefix}-vms.slice"), properties }
    }

    /// Puts a container that runs under the limits of its record.
    pub(super) async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        if self.get(vm.uuid).is_none() {
            return Ok(());
        }
        let runtime = self.runtime().await?;
        let failed = |error| DriverError::failed(format!("limit VM {}", vm.uuid), error);
        let limits = bundle::limits(vm, self.prober.offered);
        let limits = limits.map_err(|error| failed(io::Error::other(error)))?;
        let path = self.folder(vm.uuid).run().join("limits.json");
        let json = serde_json::to_vec(&limits).map_err(|error| failed(error.into()))?;
        std::fs::write(&path, json).map_err(failed)?;
        let (file, id) = (path.display().to_string(), vm.uuid.to_string());
        let words = ["update", "--resources", &file, &id];
        match runtime.run(self.exec.as_ref(), &words, runtime::TIMEOUT).await {
            Err(error) if self.get(vm.uuid).is_some() => Err(failed(io::Error::other(error))),
            // It ended meanwhile.
            _ => Ok(()),
        }
    }

    /// Sends its first process the signal that its image wants for that.
    pub(super) fn ask_to_stop(&self, vm: VmUuid) -> Result<(), DriverError> {
        let started = self.folder(vm).started().ok().flatten();
        self.send(vm, started.map_or(SIGTERM, |started| started.stop_signal))
    }

    pub(super) fn send(&self, vm: VmUuid, signal: i32) -> Result<(), DriverError> {
        let failed = |error| DriverError::failed(format!("send VM {vm} signal {signal}"), error);
        self.ready(vm)?.init.signal(signal).map_err(failed)
    }

    /// All of its processes end with the first one.
    pub(super) async fn kill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let container = self.table.to_kill(vm).ok_or_else(|| not_running(vm))?;
        let failed = |error| DriverError::failed(format!("kill VM {vm}"), error);
        let Some(ready) = container.ready else {
            let monitor = container.monitor.map_or(Ok(()), |monitor| monitor.kill());
            return monitor.map_err(failed);
        };
        ready.init.kill().map_err(failed)?;
        if ready.cgroups.is_frozen() {
            // What stands still can't even end.
            self.pause(vm, false).await?;
        }
        Ok(())
    }

    pub(super) async fn pause(&self, vm: VmUuid, pause: bool) -> Result<(), DriverError> {
        let ready = self.ready(vm)?;
        if ready.cgroups.is_frozen() != pause {
            let runtime = self.runtime().await?;
            let words = [if pause { "pause" } else { "resume" }, &vm.to_string()];
            let done = runtime.run(self.exec.as_ref(), &words, runtime::TIMEOUT).await;
            if let Err(error) = done
                && self.get(vm).is_some()
                && ready.init.is_alive().unwrap_or(true)
            {
                return Err(DriverError::failed(format!("{} VM {vm}", words[0]), error));
            }
        }
        self.table.set_paused(vm, pause);
        Ok(())
    }

    pub(super) async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        if self.get(vm).is_some() {
            return Err(DriverError::refused(Code::VmRunning, format!("VM {vm} is running")));
        }
        let removed = self.access(vm).remove();
        removed
            .map_err(|error| DriverError::failed(format!("remove the access of VM {vm}"), error))?;
        let folder = self.folder(vm);
        if !folder.exists() {
            return Ok(());
        }
        let failed = |error| DriverError::failed(format!("clean up after VM {vm}"), error);
        // Of one whose monitor was killed the runtime still knows.
        if let Some(runtime) = self.verdict().runtime {
            let forgotten = runtime.delete(self.exec.as_ref(), &vm.to_string()).await;
            forgotten.map_err(|error| failed(io::Error::other(error)))?;
        }
        if purge {
            folder.purge().await?;
            self.starting.lock().remove(&vm);
            self.table.forget(vm);
        } else {
            folder.clear_process().map_err(failed)?;
        }
        self.remove_shared();
        Ok(())
    }

    /// The last container takes the control group with it that held all of them, unless it is the
    /// operator's.
    fn remove_shared(&self) {
        let Ok(_alone) = self.shared.try_write() else { return };
        let is_own = self.exec.supervisor() != "systemd" && self.config.cgroup_parent.is_empty();
        if !is_own || !self.table.is_empty() {
            return;
        }
        let parent = format!("{}-vms", self.config.prefix);
        for hierarchy in Hierarchy::all(Path::new("/")).unwrap_or_default() {
            match std::fs::remove_dir(hierarchy.path.join(&parent)) {
                Ok(()) => {}
                // Not there, or another agent's containers are in it.
                Err(error) => tracing::debug!(parent, %error, "a control group stays"),
            }
        }
    }
}

/// The number of the signal that an image wants.
fn stop_signal(image: &RuntimeConfig) -> i32 {
    let named = |name: &str| crate::host::signal_number(name);
    image.stop_signal.as_deref().and_then(named).unwrap_or(SIGTERM)
}

/// What the runtime said names what the VM asks for and can't have, so it is told to whoever asked.
fn not_started(vm: VmUuid, folder: &ContainerFolder) -> DriverError {
    let said = std::fs::read_to_string(folder.log()).unwrap_or_default();
    let said = said.trim().lines().last().unwrap_or("its monitor ended and said nothing");
    DriverError::refused(Code::InternalError, format!("start VM {vm}: {said}"))
}
