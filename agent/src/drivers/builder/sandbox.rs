//! Where the programs of a build run: in namespaces without a network, in which there is of the host only
//! `/usr`, read-only, and the folder of the build as `/build`.
//!
//! The kernel ends what runs in it as soon as `bwrap` or the agent ends. A program begins to work only once
//! it is under its limits and its process is noted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;

use super::{BWRAP, BuilderConfig};
use crate::drivers::DriverError;
use crate::drivers::compute::qemu::{Limiter, Limits};
use crate::host::{
    Exit, Piped, ProcessId, RunningChild, Scope, SharedExec, UnitProperty, UnitValue,
};

/// The folder of the build as its programs see it.
pub(super) const HOME: &str = "/build";
/// Files of `/etc`, in the folder of the build.
pub(super) const ETC: &str = "etc";
/// Waits until it is told to go on, and then becomes the program.
const GATE: &str = "read -r go && exec \"$@\" </dev/null";
/// Longest wait for what was killed.
const END: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// What there is in it besides the build.
const ALWAYS: [&str; 29] = [
    BWRAP,
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--die-with-parent",
    "--new-session",
    // Layers belong to many users.
    "--cap-add",
    "ALL",
    "--clearenv",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/sbin",
    "/sbin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
];

/// A command in a sandbox that has no build.
pub(super) fn bare(words: &[&str]) -> Vec<String> {
    ALWAYS.iter().chain(words).map(|&word| word.to_owned()).collect()
}

/// The control groups of one build.
#[derive(Debug)]
pub(super) struct Groups {
    exec: SharedExec,
    name: String,
    prefix: String,
    cgroup_parent: String,
    /// Held while control groups are made or removed, by all builds.
    turn: Arc<Mutex<()>>,
}

impl Groups {
    pub(super) fn new(
        config: &BuilderConfig,
        exec: &SharedExec,
        turn: &Arc<Mutex<()>>,
        name: &str,
    ) -> Self {
        Self {
            exec: exec.clone(),
            name: format!("build-{name}"),
            prefix: config.prefix.clone(),
            cgroup_parent: config.cgroup_parent.clone(),
            turn: turn.clone(),
        }
    }

    /// Guests have the parent that is configured; a build has one of its own without.
    fn limiter(&self) -> Limiter {
        let parent = match self.cgroup_parent.as_str() {
            "" => format!("/{}-builds", self.prefix),
            parent => parent.to_owned(),
        };
        Limiter::open(self.exec.supervisor(), &parent, Path::new("/"))
    }

    fn limit(&self, process: ProcessId, limits: &Limits) -> io::Result<()> {
        let _turn = self.turn.lock();
        let limiter = self.limiter();
        if let Some(why) = limiter.degraded.first() {
            tracing::debug!(why, "a build has not all of its limits");
        }
        limiter.enter(&self.name, process, limits)
    }

    /// Returns once nothing of it runs, and they are gone.
    pub(super) async fn end(&self) -> Result<(), DriverError> {
        let gone = async {
            while let Err(error) = self.remove() {
                tracing::debug!(name = self.name, %error, "a build has not ended yet");
                tokio::time::sleep(LOOK).await;
            }
        };
        let gone = tokio::time::timeout(END, gone).await;
        gone.map_err(|late| DriverError::failed("end the programs of a build", late))
    }

    fn remove(&self) -> io::Result<()> {
        let _turn = self.turn.lock();
        let limiter = self.limiter();
        limiter.remove(&self.name)?;
        if self.cgroup_parent.is_empty() {
            limiter.remove_parent();
        }
        Ok(())
    }
}

/// The sandbox of one build.
#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) groups: Groups,
    folder: PathBuf,
    limits: Limits,
    /// Numbers the scopes.
    count: AtomicU64,
}

impl Sandbox {
    pub(super) fn new(groups: Groups, folder: &Path, limits: Limits) -> Self {
        Self { groups, folder: folder.to_owned(), limits, count: AtomicU64::new(0) }
    }

    fn argv(&self, words: &[String]) -> Vec<String> {
        let mut argv: Vec<String> = ["sh", "-c", GATE, "sh"].map(str::to_owned).to_vec();
        argv.extend(bare(&[]));
        let etc = self.folder.join(ETC);
        let pairs = [
            ("--tmpfs", "/tmp", None),
            ("--tmpfs", "/run", None),
            ("--dir", "/var", None),
            ("--dir", "/root", None),
            ("--dir", "/sys", None),
            ("--ro-bind", "/etc", Some(etc)),
            ("--bind", HOME, Some(self.folder.clone())),
        ];
        for (option, inside, outside) in pairs {
            argv.push(option.to_owned());
            argv.extend(outside.map(|path| path.display().to_string()));
            argv.push(inside.to_owned());
        }
        for (name, value) in [
            ("PATH", "/usr/sbin:/usr/bin"),
            ("HOME", "/root"),
            ("LC_ALL", "C"),
            ("TMPDIR", "/build/tmp"),
            ("CONTAINERS_CONF", "/etc/containers.conf"),
            ("CONTAINERS_STORAGE_CONF", "/etc/storage.conf"),
        ] {
            argv.extend(["--setenv", name, value].map(str::to_owned));
        }
        argv.extend(["--chdir", "/"].map(str::to_owned));
        argv.extend(words.iter().cloned());
        argv
    }

    fn scope(&self, limiter: &Limiter) -> Scope {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let unit = format!("{}-{}-{number}.scope", self.groups.prefix, self.groups.name);
        let mut properties = limiter.properties(&self.limits);
        // Else it would be the command, with all that a client wants built.
        let description = UnitValue::Text("build of an image of containers".to_owned());
        properties.push(UnitProperty { name: "Description", value: description });
        Scope { unit, slice: format!("{}-vms.slice", self.groups.prefix), properties }
    }

    /// Starts a program; `note` has to keep its process before it does anything.
    pub(super) async fn start(
        &self,
        words: &[String],
        note: impl AsyncFnOnce(ProcessId) -> Result<(), DriverError>,
    ) -> Result<Running<'_>, DriverError> {
        let failed = |error: io::Error| DriverError::failed("start a program of a build", error);
        let scope = Some(self.scope(&self.groups.limiter()));
        let piped = Piped { argv: self.argv(words), stdin: true, scope };
        let started = self.groups.exec.spawn_piped(&piped).await;
        let child =
            started.map_err(|error| DriverError::failed("start a program of a build", error))?;
        let mut running = Running { sandbox: self, child };
        let ended = || failed(io::Error::other("it ended at once"));
        let process = running.child.process().map_err(failed)?.ok_or_else(ended)?;
        self.groups.limit(process, &self.limits).map_err(failed)?;
        note(process).await?;
        let mut gate = running.child.take_stdin().ok_or_else(ended)?;
        gate.write_all(b"go\n").await.map_err(failed)?;
        Ok(running)
    }
}

/// A program that runs. Dropped, it is killed with all that it has started.
#[derive(Debug)]
pub(super) struct Running<'a> {
    sandbox: &'a Sandbox,
    pub(super) child: RunningChild,
}

impl Running<'_> {
    pub(super) async fn wait(mut self) -> Result<Exit, DriverError> {
        let failed = |error| {
            DriverError::failed(
                format!("wait for a program of {}", self.sandbox.groups.name),
                error,
            )
        };
        self.child.wait().await.map_err(failed)
    }
}
