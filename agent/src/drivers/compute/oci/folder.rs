//! Where a container keeps its files, and what its agent and its monitor tell each other there.

use std::io;
use std::path::{Path, PathBuf};

use muster_shared::folders::make_private;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};

use crate::drivers::compute::notes::{absent_is_fine, read, write};
use crate::drivers::compute::{Ended, Logged, logged};
use crate::drivers::{DriverError, files};
use crate::host::idmap::IdRange;
use crate::host::{Cgroups, ProcessId};

/// The folder of all containers in the run folder.
pub(super) const RUN: &str = "ct";
/// The folder of all containers in the data folder.
pub(super) const DATA: &str = "containers";

/// The paths of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerFolder {
    /// The bundle, sockets and what is known of its processes; gone after a boot of the host.
    run: PathBuf,
    /// Logs, and the files that it sees in its `/etc`.
    data: PathBuf,
}

/// `monitor.json`: what the monitor of a container is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The runtime with the arguments that all its commands have.
    pub(super) runtime: Vec<String>,
    /// The container's name there.
    pub(super) id: String,
    /// It has a terminal.
    pub(super) terminal: bool,
    /// Where what it prints is kept.
    pub(super) console_log: PathBuf,
    /// Boot of the host.
    pub(super) boot_id: String,
    /// See [`Started::ids`].
    #[serde(default)]
    pub(super) ids: Option<IdRange>,
}

/// `start.json`: what was started. Written before the monitor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Started {
    /// Boot of the host.
    pub(super) boot_id: String,
    /// Wall clock at the start, ms.
    pub(super) started_at_ms: u64,
    /// Length of the console's log at the start, bytes.
    pub(super) console_from: u64,
    /// Its network namespace, where it has one with NICs.
    pub(super) namespace: Option<PathBuf>,
    /// Memory that it may use, MiB.
    pub(super) ram_mib: Option<u64>,
    /// Numbers and addresses of its NICs.
    pub(super) nics: Vec<(usize, String)>,
    /// Asks it to stop.
    pub(super) stop_signal: i32,
    /// The host's ids that its own are, unless its own are the host's.
    #[serde(default)]
    pub(super) ids: Option<IdRange>,
}

/// `ready.json`: the container's own process runs. Written by the monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Boot of the host.
    pub(super) boot_id: String,
    /// The container's first process.
    pub(super) init: ProcessId,
    /// Where it is limited.
    pub(super) cgroups: Cgroups,
}

/// `exit.json`: how the container ended. Written by the monitor, or by the agent for one that was
/// killed before it could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exited {
    /// Boot of the host.
    pub(super) boot_id: String,
    /// Exit code, or 128 + signal; unknown when nobody saw it.
    pub(super) exit_status: Option<i32>,
    /// Wall clock, ms.
    pub(super) exited_at_ms: u64,
    /// Why, for people and programs, e.g. `out-of-memory`.
    pub(super) reason: Option<String>,
}

impl Exited {
    pub(super) fn ended(&self) -> Ended {
        Ended {
            exit_status: self.exit_status,
            exited_at_ms: Some(self.exited_at_ms),
            reason: self.reason.as_deref().map(Into::into),
        }
    }
}

impl ContainerFolder {
    pub(super) fn new(run_dir: &Path, data_dir: &Path, vm: VmUuid) -> Self {
        let vm = vm.to_string();
        Self { run: run_dir.join(RUN).join(&vm), data: data_dir.join(DATA).join(&vm) }
    }

    /// The one whose files are here, as its monitor knows it.
    pub(super) fn of_monitor(run: &Path) -> Self {
        Self { run: run.to_owned(), data: PathBuf::new() }
    }

    /// Whether there is anything of it.
    pub(super) fn exists(&self) -> bool {
        self.data.exists() || self.run.exists()
    }

    pub(super) fn make(&self) -> io::Result<()> {
        make_private(&self.run)?;
        make_private(&self.data)
    }

    /// The bundle; also what its monitor is named by.
    pub(super) fn run(&self) -> &Path {
        &self.run
    }

    pub(super) fn config(&self) -> PathBuf {
        self.run.join("config.json")
    }

    pub(super) fn console(&self) -> PathBuf {
        self.run.join("console.sock")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.run.join("pid")
    }

    /// What the runtime complains of.
    pub(super) fn runtime_log(&self) -> PathBuf {
        self.run.join("runtime.log")
    }

    /// What the monitor complains of.
    pub(super) fn log(&self) -> PathBuf {
        self.run.join("monitor.log")
    }

    pub(super) fn console_log(&self) -> PathBuf {
        self.data.join("console.log")
    }

    /// What it sees as `/etc/<name>`.
    pub(super) fn etc(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    pub(super) fn orders(&self) -> io::Result<Option<Orders>> {
        read(&self.run.join("monitor.json"))
    }

    pub(super) fn set_orders(&self, orders: &Orders) -> io::Result<()> {
        write(&self.run.join("monitor.json"), &serde_json::to_vec(orders)?)
    }

    pub(super) fn started(&self) -> io::Result<Option<Started>> {
        read(&self.run.join("start.json"))
    }

    pub(super) fn set_started(&self, started: &Started) -> io::Result<()> {
        write(&self.run.join("start.json"), &serde_json::to_vec(started)?)
    }

    pub(super) fn ready(&self) -> io::Result<Option<Ready>> {
        read(&self.run.join("ready.json"))
    }

    pub(super) fn set_ready(&self, ready: &Ready) -> io::Result<()> {
        write(&self.run.join("ready.json"), &serde_json::to_vec(ready)?)
    }

    pub(super) fn exited(&self) -> io::Result<Option<Exited>> {
        read(&self.run.join("exit.json"))
    }

    pub(super) fn set_exited(&self, exited: &Exited) -> io::Result<()> {
        make_private(&self.run)?;
        write(&self.run.join("exit.json"), &serde_json::to_vec(exited)?)
    }

    /// Writes one of the files that it sees in its `/etc`.
    pub(super) fn set_etc(&self, name: &str, content: &str) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.etc(name);
        write(&path, content.as_bytes())?;
        // Whoever runs in it reads it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))
    }

    pub(super) fn set_config(&self, config: &[u8]) -> io::Result<()> {
        write(&self.config(), config)
    }

    /// Removes what a process of the past left, before a new one.
    pub(super) fn clear_run(&self) -> io::Result<()> {
        for name in ["exit.json", "monitor.json", "monitor.log"] {
            absent_is_fine(std::fs::remove_file(self.run.join(name)))?;
        }
        self.clear_process()
    }

    /// Removes what names a process that has ended; how it ended stays known.
    pub(super) fn clear_process(&self) -> io::Result<()> {
        for name in ["ready.json", "pid", "console.sock", "runtime.log", "config.json"] {
            absent_is_fine(std::fs::remove_file(self.run.join(name)))?;
        }
        Ok(())
    }

    /// See [`GuestConsole::console_log`](crate::drivers::compute::GuestConsole::console_log).
    pub(super) fn printed(&self, from: Option<u64>) -> io::Result<Logged> {
        let from = match from {
            Some(from) => from,
            None => self.started()?.map_or(0, |started| started.console_from),
        };
        logged(&self.console_log(), from)
    }

    /// Removes everything, durably: the task that wants it gone does not look again after a power cut.
    pub(super) async fn purge(&self) -> Result<(), DriverError> {
        files::remove_folder(&self.run).await?;
        files::remove_folder_durably(&self.data).await
    }
}
