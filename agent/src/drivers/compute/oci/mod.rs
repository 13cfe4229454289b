//! Containers, run by an OCI runtime under monitors that outlive the agent.
//!
//! The host's process table is the only truth about what runs. A container's network namespace and its
//! root folder are made by others and handed in; its control group is the runtime's.

mod bundle;
mod console_server;
mod containers;
mod devices;
mod exec;
mod facts;
mod folder;
mod inside;
mod leaving;
mod monitor;
mod ports;
mod root_access;
mod runtime;
mod table;
mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::bundle::Offered;
use self::containers::Containers;
pub use self::leaving::LeavingContainers;
pub use self::monitor::monitor;
use self::runtime::Prober;
pub use self::table::COMMAND as MONITOR_COMMAND;
use super::{Abilities, Compute, GuestSignal, Observed, Resources, RunningGuest, not_running};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::host::idmap::IdRange;
use crate::host::{SharedExec, procfs};
use crate::vm_record::VmRecord;

/// The brands that run as containers.
const BRANDS: [&str; 4] = ["docker", "joyent", "joyent-minimal", "lx"];

/// How the driver is set up.
#[derive(Clone, Debug)]
pub struct OciConfig {
    /// `compute.oci_runtime`; empty: the first of those that are known.
    pub runtime: String,
    /// The program whose command [`MONITOR_COMMAND`] is the monitor of a container.
    pub monitor: PathBuf,
    /// Logs go to `containers/` in it.
    pub data_dir: PathBuf,
    /// Bundles and sockets go to `ct/` in it.
    pub run_dir: PathBuf,
    /// Prefix of everything host-wide, e.g. `muster`.
    pub prefix: String,
    /// Stamped on every monitor.
    pub server_uuid: ServerUuid,
    /// Stamped on every monitor, once it is known.
    pub cluster: Arc<Cluster>,
    /// `compute.cgroup_parent`.
    pub cgroup_parent: String,
    /// The ids of the host that containers get for their own, where that can be; none: those of the host
    /// are theirs.
    pub user_ids: Option<IdRange>,
}

/// `compute.user_namespaces`: whose ids those of new containers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserNamespaces {
    /// Their own, where the node can do that and the image needs nothing else.
    #[default]
    Auto,
    /// Those of the host.
    Never,
}

/// The driver.
#[derive(Debug)]
pub struct Oci {
    containers: Containers,
    /// What this host can't limit.
    degraded: Vec<String>,
}

impl Oci {
    /// Looks for a runtime and follows the containers that run.
    ///
    /// # Errors
    /// The process table can't be read.
    pub async fn open(
        config: OciConfig,
        exec: SharedExec,
        clock: SharedClock,
    ) -> Result<Self, DriverError> {
        let boot_id =
            procfs::boot_id().map_err(|error| DriverError::failed("read the boot id", error))?;
        let offered = Offered::find(Path::new("/"));
        let mut degraded = match &offered {
            Ok(offered) => offered.missing(),
            Err(error) => vec![format!("containers have no limits: {error}")],
        };
        let prober = Prober {
            exec: exec.clone(),
            configured: config.runtime.clone(),
            data_dir: config.data_dir.clone(),
            run_dir: config.run_dir.clone(),
            cgroup_parent: config.cgroup_parent.clone(),
            prefix: config.prefix.clone(),
            boot_id: boot_id.clone(),
            offered: offered.unwrap_or_default(),
            user_ids: config.user_ids.filter(|_| nix::unistd::geteuid().is_root()),
            found: parking_lot::Mutex::default(),
        };
        prober.open().await;
        if prober.verdict().runtime.is_none() && prober.verdict().problems.is_empty() {
            // Nobody is about to run containers here.
            degraded.clear();
        }
        let containers = Containers::open(config, exec, clock, boot_id, prober)?;
        Ok(Self { containers, degraded })
    }
}

#[async_trait]
impl Compute for Oci {
    fn brands(&self) -> &[&'static str] {
        &BRANDS
    }

    fn holds(&self, vm: VmUuid) -> bool {
        self.containers.get(vm).is_some() || self.containers.folder(vm).exists()
    }

    fn abilities(&self) -> Abilities {
        let verdict = self.containers.verdict();
        Abilities {
            no_containers: verdict.lacking(),
            user_ids: verdict.user_ids(self.containers.user_ids()),
            containers: verdict.runtime.map(|runtime| runtime.program),
            degraded: [verdict.problems, self.degraded.clone()].concat(),
            ..Abilities::default()
        }
    }

    fn machine_type(&self, _vm: &VmRecord) -> Option<String> {
        None
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.containers.changes()
    }

    async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.containers.prepare(vm)
    }

    async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError> {
        self.containers.start(vm, with).await
    }

    async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.containers.limit(vm).await
    }

    async fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        self.containers.observe(vm)
    }

    async fn signal(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError> {
        match signal {
            GuestSignal::PowerDown => self.containers.ask_to_stop(vm),
            GuestSignal::Kill | GuestSignal::Quit => self.containers.kill(vm).await,
            GuestSignal::Pause => self.containers.pause(vm, true).await,
            GuestSignal::Resume => self.containers.pause(vm, false).await,
            GuestSignal::Number(number) => self.containers.send(vm, number),
            GuestSignal::Reset | GuestSignal::Nmi => {
                if self.containers.get(vm).is_none() {
                    return Err(not_running(vm));
                }
                let text = format!("signal: {signal:?} means nothing to a container");
                Err(DriverError::refused(Code::InvalidSignal, text))
            }
        }
    }

    async fn wait_stopped(&self, vm: VmUuid, timeout: Duration) -> Result<bool, DriverError> {
        let gone = tokio::time::timeout(timeout, self.containers.gone(vm)).await;
        Ok(gone.is_ok() || self.containers.get(vm).is_none())
    }

    async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        self.containers.cleanup(vm, purge).await
    }

    async fn running(&self) -> Result<Vec<RunningGuest>, DriverError> {
        Ok(self.containers.running())
    }
}

#[cfg(test)]
mod tests;
