//! Builds images of containers with `buildah`, each build in a folder and a sandbox of its own.
//!
//! Nobody trusts what is built: `buildah` itself runs under `bwrap`, in namespaces in which there is of the
//! host only `/usr`, read-only, and the folder of the build, and no network. All that it starts is under
//! the limits of the VM for which it builds, and ends with the agent. What an agent leaves behind that is
//! killed, the next one takes away, see [`Builder::left`].

mod base;
mod build;
mod context;
pub mod dockerfile;
mod note;
mod sandbox;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::TaskId;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub use self::build::{Build, Recipe, Told};
pub use self::note::{Note, Published};
use self::sandbox::{Groups, Sandbox};
use super::DriverError;
use super::compute::qemu::Limits;
use super::files;
use super::untar::Fault;
use crate::host::{Command, SharedExec, SystemExec};
use crate::vm_record::VmRecord;

/// The folder of all builds, in that of the storage.
pub const BUILDS: &str = "builds";
/// Longest look at the programs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const BUILDAH: &str = "buildah";
const BWRAP: &str = "bwrap";
/// Where programs are looked for.
const PLACES: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin"];

/// How the driver is set up.
#[derive(Clone, Debug)]
pub struct BuilderConfig {
    /// The folder of all builds.
    pub folder: PathBuf,
    /// Prefix of everything host-wide, e.g. `muster`.
    pub prefix: String,
    /// `compute.cgroup_parent`.
    pub cgroup_parent: String,
}

/// The driver.
#[derive(Debug)]
pub struct Builder {
    config: BuilderConfig,
    exec: SharedExec,
    /// What `buildah` says of its version, or why nothing can be built.
    found: Result<String, String>,
    left: Mutex<Vec<PathBuf>>,
    turn: Arc<Mutex<()>>,
}

impl Builder {
    /// Looks for the programs, and for what earlier agents left behind.
    ///
    /// # Errors
    /// The folder of builds can't be read.
    pub async fn open(config: BuilderConfig, exec: SharedExec) -> Result<Self, DriverError> {
        files::make_folder(&config.folder).await?;
        let left = files::list(&config.folder).await?;
        let found = probe(&exec).await;
        match &found {
            Ok(version) => tracing::info!(version, "images of containers can be built"),
            Err(why) => tracing::info!(why, "images of containers can't be built"),
        }
        Ok(Self { config, exec, found, left: Mutex::new(left), turn: Arc::default() })
    }

    /// One that builds nothing, for this reason.
    #[must_use]
    pub fn none(why: &str) -> Self {
        let exec: SharedExec = Arc::new(SystemExec::new());
        let nowhere = BuilderConfig {
            folder: PathBuf::new(),
            prefix: String::new(),
            cgroup_parent: String::new(),
        };
        Self {
            config: nowhere,
            exec,
            found: Err(why.to_owned()),
            left: Mutex::default(),
            turn: Arc::default(),
        }
    }

    /// What builds here, e.g. `buildah 1.28.2`.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.found.as_deref().ok()
    }

    /// Why nothing can be built; `None` when it can.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        self.found.as_ref().err().cloned()
    }

    /// Begins a build for a task, under the limits of a VM.
    ///
    /// # Errors
    /// `NotSupported`; `DatasetExists`: the task has begun one already.
    pub async fn begin(&self, task: &TaskId, vm: &VmRecord) -> Result<Build, DriverError> {
        if let Err(why) = &self.found {
            let text = format!("images of containers can't be built here: {why}");
            return Err(DriverError::refused(Code::NotSupported, text));
        }
        let name = name_of(task);
        let folder = self.config.folder.join(&name);
        let sandbox = Sandbox::new(self.groups(&name), &folder, Limits::of(vm, 0));
        Build::begin(task, &folder, sandbox).await
    }

    fn groups(&self, name: &str) -> Groups {
        Groups::new(&self.config, &self.exec, &self.turn, name)
    }

    /// Ends what an earlier agent's build may still run, and removes its folder.
    ///
    /// # Errors
    /// It does not end; the host failed.
    pub async fn clear(&self, folder: &Path, note: Option<&Note>) -> Result<(), DriverError> {
        let failed = |error| DriverError::failed("end a program of a build", error);
        if let Some(process) = note.and_then(|note| note.process) {
            process.kill().map_err(failed)?;
            process.gone().await.map_err(failed)?;
        }
        let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        self.groups(&name).end().await?;
        files::remove_folder(folder).await
    }

    /// What builds of earlier agents left behind, once.
    #[must_use]
    pub fn left(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.left.lock())
    }
}

/// Unpacks files to build from as a build does, with a bound of its own, into an empty folder: for whoever
/// wants to see what comes out.
///
/// # Errors
/// As in a build.
pub fn try_unpack(from: &[u8], folder: &Path, most_bytes: u64) -> Result<(), Fault> {
    context::unpack_within(from, folder, most_bytes)
}

/// Whatever characters an id has.
fn name_of(task: &TaskId) -> String {
    hex::encode(&Sha256::digest(task.as_str())[..16])
}

/// What `buildah` says of its version within the sandbox, or what is missing.
async fn probe(exec: &SharedExec) -> Result<String, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("only root builds images".to_owned());
    }
    for (program, package) in [(BUILDAH, "buildah"), (BWRAP, "bubblewrap")] {
        if !PLACES.iter().any(|place| Path::new(place).join(program).exists()) {
            return Err(format!("{program} is not installed (Debian's package {package})"));
        }
    }
    let argv = sandbox::bare(&[BUILDAH, "--version"]);
    let ran = exec.run(&Command::new(argv, PROBE_TIMEOUT), &CancellationToken::new()).await;
    let output = ran.and_then(|output| output.checked(BWRAP));
    let output = output.map_err(|error| Chain(&error).to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().nth(2).ok_or("buildah does not tell its version")?;
    Ok(format!("{BUILDAH} {version}"))
}
