//! The program that runs containers, by the commands that all of its kind have.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::bundle::{self, Input, Offered, Program};
use super::folder;
use super::root_access::{self, RootAccess};
use super::users::Ids;
use crate::drivers::DriverError;
use crate::host::idmap::IdRange;
use crate::host::{Command, Exec, ExecError, Output, SharedExec};
use crate::vm_record::{VmRecord, user_ids};

/// Those that are tried, in this order.
const KNOWN: [&str; 2] = ["runc", "crun"];
/// Longest run of the smallest container.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest run of any other command.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// A runtime that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runtime {
    pub(super) program: String,
    /// Its own folder.
    root: PathBuf,
    /// systemd makes its control groups.
    systemd: bool,
}

impl Runtime {
    /// The arguments that all its commands have.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut argv = vec![self.program.clone(), "--root".to_owned()];
        argv.push(self.root.display().to_string());
        if self.systemd {
            argv.push("--systemd-cgroup".to_owned());
        }
        argv
    }

    pub(super) fn argv(&self, words: &[&str]) -> Vec<String> {
        let words = words.iter().map(|&word| word.to_owned());
        self.arguments().into_iter().chain(words).collect()
    }

    pub(super) async fn run(
        &self,
        exec: &dyn Exec,
        words: &[&str],
        timeout: Duration,
    ) -> Result<Output, ExecError> {
        let command = Command::new(self.argv(words), timeout);
        let output = exec.run(&command, &CancellationToken::new()).await?;
        output.checked(&self.program)
    }

    /// Whether it knows a container of this name, whatever state that is in.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.root.join(id).exists()
    }

    /// Ends and forgets a container; none is no error.
    pub(super) async fn delete(&self, exec: &dyn Exec, id: &str) -> Result<(), ExecError> {
        if !self.knows(id) {
            return Ok(());
        }
        self.run(exec, &["delete", "--force", id], TIMEOUT).await.map(drop)
    }
}

/// Finds a runtime that works.
#[derive(Debug)]
pub(super) struct Prober {
    pub(super) exec: SharedExec,
    /// `compute.oci_runtime`; empty: those that are known.
    pub(super) configured: String,
    pub(super) data_dir: PathBuf,
    pub(super) run_dir: PathBuf,
    /// Below it is the control group of a container that is only tried.
    pub(super) cgroup_parent: String,
    pub(super) prefix: String,
    pub(super) boot_id: String,
    pub(super) offered: Offered,
    /// What containers get ids of; none: nobody wants that.
    pub(super) user_ids: Option<IdRange>,
    pub(super) found: Mutex<Verdict>,
}

/// What passed in a boot of the host.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    boot_id: String,
    configured: String,
    program: String,
    /// Whether a container ran with ids of its own, or why not; none: it was not tried.
    #[serde(default)]
    own_ids: Option<Result<(), String>>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) runtime: Option<Runtime>,
    /// Why those that are there do not work, or not with all.
    pub(super) problems: Vec<String>,
    /// A container ran with ids of its own.
    has_own_ids: bool,
}

impl Verdict {
    /// Those of these that containers get.
    pub(super) fn user_ids(&self, wanted: Option<IdRange>) -> Option<IdRange> {
        wanted.filter(|_| self.has_own_ids)
    }

    fn tried(&mut self, own_ids: Option<&Result<(), String>>) {
        self.has_own_ids = own_ids.is_some_and(|tried| tried.is_ok());
        if let Some(Err(why)) = own_ids {
            self.problems.push(format!("containers have no user namespaces: {why}"));
        }
    }

    /// Why no container can run.
    pub(super) fn lacking(&self) -> Option<String> {
        if self.runtime.is_some() {
            return None;
        }
        match self.problems.is_empty() {
            true => Some(format!("neither {} is installed", KNOWN.join(" nor "))),
            false => Some(self.problems.join("; ")),
        }
    }
}

impl Prober {
    pub(super) fn verdict(&self) -> Verdict {
        self.found.lock().clone()
    }

    /// The runtime; looks again for one if there was none.
    ///
    /// # Errors
    /// `ContainerNotSupported` with what is wrong with each.
    pub(super) async fn runtime(&self) -> Result<Runtime, DriverError> {
        if let Some(runtime) = self.verdict().runtime {
            return Ok(runtime);
        }
        self.probe().await;
        let verdict = self.verdict();
        let why = verdict.lacking().unwrap_or_default();
        verdict.runtime.ok_or_else(|| {
            let text = format!("containers can't run here: {why}");
            DriverError::refused(Code::ContainerNotSupported, text)
        })
    }

    /// What an earlier agent found in this boot of the host, or what is found now.
    pub(super) async fn open(&self) {
        let noted = std::fs::read(self.noted()).ok();
        let noted = noted.and_then(|json| serde_json::from_slice::<Noted>(&json).ok());
        match noted {
            Some(noted) if noted.boot_id == self.boot_id && noted.configured == self.configured => {
                let runtime = self.named(&noted.program);
                let own_ids = match (noted.own_ids, self.user_ids) {
                    (None, Some(ids)) => {
                        let tried = self.attempt_with_ids(&runtime, ids).await;
                        self.note(&noted.program, Some(&tried));
                        Some(tried)
                    }
                    // Whoever starts agents may have closed it again.
                    (Some(Ok(())), Some(_)) => Some(self.let_pass()),
                    (tried, wanted) => tried.filter(|_| wanted.is_some()),
                };
                let mut found = self.found.lock();
                found.runtime = Some(runtime);
                found.tried(own_ids.as_ref());
            }
            _ => self.probe().await,
        }
    }

    fn noted(&self) -> PathBuf {
        self.run_dir.join("oci-runtime.json")
    }

    fn named(&self, program: &str) -> Runtime {
        Runtime {
            program: program.to_owned(),
            root: self.run_dir.join("oci"),
            systemd: self.exec.supervisor() == "systemd",
        }
    }

    pub(super) async fn probe(&self) {
        let configured = [self.configured.as_str()];
        let tried = if self.configured.is_empty() { &KNOWN[..] } else { &configured[..] };
        let mut verdict = Verdict::default();
        for program in tried {
            let runtime = self.named(program);
            match self.attempt(&runtime).await {
                Ok(()) => {
                    let own_ids = match self.user_ids {
                        Some(ids) => Some(self.attempt_with_ids(&runtime, ids).await),
                        None => None,
                    };
                    self.note(program, own_ids.as_ref());
                    verdict.runtime = Some(runtime);
                    verdict.tried(own_ids.as_ref());
                    break;
                }
                // One that nobody asked for need not be there.
                Err(ExecError::Start { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && self.configured.is_empty() => {}
                Err(error) => verdict.problems.push(Chain(&error).to_string()),
            }
        }
        tracing::info!(
            runtime = verdict.runtime.as_ref().map(|it| it.program.as_str()),
            problems = verdict.problems.join("; "),
            "looked for a runtime of containers"
        );
        *self.found.lock() = verdict;
    }

    /// Probes take time that restarts of the agent do not have.
    fn note(&self, program: &str, own_ids: Option<&Result<(), String>>) {
        let noted = Noted {
            boot_id: self.boot_id.clone(),
            configured: self.configured.clone(),
            program: program.to_owned(),
            own_ids: own_ids.cloned(),
        };
        let json = serde_json::to_vec(&noted).unwrap_or_default();
        if let Err(error) = std::fs::write(self.noted(), json) {
            tracing::warn!(%error, "the next agent looks for a runtime again");
        }
    }

    fn let_pass(&self) -> Result<(), String> {
        root_access::let_pass(&self.run_dir).map_err(|error| error.to_string())
    }

    /// As [`Self::attempt`], with a user namespace.
    async fn attempt_with_ids(&self, runtime: &Runtime, range: IdRange) -> Result<(), String> {
        self.let_pass()?;
        let ran = self.attempt_as(runtime, Some(user_ids::one_of(range))).await;
        ran.map_err(|error| Chain(&error).to_string())
    }

    /// Runs the smallest container that there can be.
    async fn attempt(&self, runtime: &Runtime) -> Result<(), ExecError> {
        self.attempt_as(runtime, None).await
    }

    async fn attempt_as(&self, runtime: &Runtime, ids: Option<IdRange>) -> Result<(), ExecError> {
        let failed = |source| ExecError::Run { program: runtime.program.clone(), source };
        let bundle = self.data_dir.join(folder::DATA).join(".probe");
        let id = format!("probe-{}", std::process::id());
        let cgroup = match (runtime.systemd, self.cgroup_parent.as_str()) {
            // No parent is left behind then.
            (false, "") => format!("/{}-{id}", self.prefix),
            (systemd, parent) => cgroup_path(systemd, parent, &self.prefix, &id),
        };
        write_probe(&bundle).map_err(failed)?;
        let (access, root) = (RootAccess::of(&self.run_dir, &id), bundle.join("root"));
        if let Some(ids) = ids {
            // Nobody owns what is in it.
            access.open(&root, ids, None).map_err(failed)?;
        }
        let root = if ids.is_some() { access.root() } else { root };
        configure_probe(&bundle, &root, ids, &cgroup, self.offered).map_err(failed)?;
        let path = bundle.display().to_string();
        let words = ["run", "--bundle", &path, &id];
        let ran = runtime.run(self.exec.as_ref(), &words, PROBE_TIMEOUT).await.map(drop);
        let forgotten = runtime.delete(self.exec.as_ref(), &id).await;
        access.remove().map_err(failed)?;
        let removed = std::fs::remove_dir_all(&bundle).map_err(failed);
        ran.and(forgotten).and(removed)
    }
}

/// Where a container's control group is to be, in the runtime's words.
pub(super) fn cgroup_path(systemd: bool, parent: &str, prefix: &str, id: &str) -> String {
    match (systemd, parent) {
        (true, _) => format!("{prefix}-vms.slice:{prefix}-vm:{id}"),
        (false, "") => format!("/{prefix}-vms/{id}"),
        (false, parent) => format!("/{}/{id}", parent.trim_matches('/')),
    }
}

/// The files of the smallest container: all that a runtime would make in it, which it may have no right to.
fn write_probe(bundle: &Path) -> io::Result<()> {
    let root = bundle.join("root");
    for folder in ["", "proc", "dev", "sys"].map(|name| root.join(name)) {
        std::fs::create_dir_all(&folder)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
    }
    let program = root.join("probe");
    std::fs::write(&program, elf())?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
}

fn configure_probe(
    bundle: &Path,
    root: &Path,
    own_ids: Option<IdRange>,
    cgroup: &str,
    offered: Offered,
) -> io::Result<()> {
    let properties = json!({ "max_physical_memory": 64, "hostname": "probe" });
    let serde_json::Value::Object(properties) = properties else { return Ok(()) };
    let task = "00000000-0000-0000-0000-000000000000".parse().map_err(io::Error::other)?;
    let vm = VmRecord::new(VmUuid(uuid::Uuid::nil()), task, properties);
    let program =
        Program { argv: vec!["/probe".to_owned()], dir: "/".to_owned(), ..Program::default() };
    let input = Input {
        vm: &vm,
        program: &program,
        ids: &Ids::default(),
        root,
        etc: Vec::new(),
        namespace: None,
        own_ids,
        devices: None,
        cgroup,
        offered,
    };
    let config = bundle::build(&input).map_err(io::Error::other)?;
    std::fs::write(bundle.join("config.json"), serde_json::to_vec(&config)?)
}

/// A program that needs nothing and ends well: one segment, which is the whole file.
fn elf() -> Vec<u8> {
    const LOADED_AT: u64 = 0x40_0000;
    const HEADERS_BYTES: u16 = 64 + 56;
    // exit(0)
    let (machine, code): (u16, &[u8]) = if cfg!(target_arch = "aarch64") {
        (183, &[0x00, 0x00, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4])
    } else {
        (62, &[0x31, 0xff, 0xb8, 0x3c, 0x00, 0x00, 0x00, 0x0f, 0x05])
    };
    let entry = LOADED_AT + u64::from(HEADERS_BYTES);
    let size = u64::from(HEADERS_BYTES) + u64::try_from(code.len()).unwrap_or(0);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |words: &[u16], file: &mut Vec<u8>| {
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    };
    half(&[2, machine, 1, 0], &mut file);
    for word in [entry, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    half(&[0, 0, 64, 56, 1, 64, 0, 0], &mut file);
    // To be loaded, read and executed.
    half(&[1, 0, 5, 0], &mut file);
    for word in [0, LOADED_AT, LOADED_AT, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::FakeExec;

    fn prober(exec: Arc<FakeExec>, configured: &str, data_dir: &Path) -> Prober {
        Prober {
            exec,
            configured: configured.to_owned(),
            data_dir: data_dir.to_owned(),
            run_dir: data_dir.join("run"),
            cgroup_parent: String::new(),
            prefix: "muster".to_owned(),
            boot_id: "boot".to_owned(),
            offered: Offered::default(),
            user_ids: None,
            found: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn the_first_runtime_that_passes_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        let exec = Arc::new(FakeExec::default());
        exec.fails(&["runc"], 1, "cgroups are gone");
        exec.prints(&["crun"], "");
        let prober = prober(exec.clone(), "", folder.path());
        assert_eq!(prober.runtime().await.unwrap().program, "crun");
        assert!(prober.verdict().problems[0].contains("cgroups are gone"));
        assert!(!folder.path().join("containers/.probe").exists());
        // It is not tried again.
        let calls = exec.calls().len();
        prober.runtime().await.unwrap();
        assert_eq!(exec.calls().len(), calls);
        // Nor by the next agent, until the host boots.
        let next = self::prober(exec.clone(), "", folder.path());
        next.open().await;
        assert_eq!(
            (next.runtime().await.unwrap().program.as_str(), exec.calls().len()),
            ("crun", calls)
        );
        let booted = Prober { boot_id: "other".to_owned(), ..next };
        booted.open().await;
        assert!(exec.calls().len() > calls);
    }

    #[tokio::test]
    async fn without_a_runtime_the_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let exec = Arc::new(FakeExec::default());
        exec.fails(&["runc"], 1, "no");
        exec.fails(&["crun"], 1, "neither");
        let error = prober(exec.clone(), "", folder.path()).runtime().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("runc: exit code 1: no") && text.contains("neither"), "{text}");
        exec.fails(&["youki"], 1, "not it");
        let error = prober(exec, "youki", folder.path()).runtime().await.unwrap_err().to_string();
        assert!(error.contains("not it") && !error.contains("runc"), "{error}");
    }

    #[test]
    fn control_groups_are_where_the_runtime_looks_for_them() {
        let path = |systemd, parent| cgroup_path(systemd, parent, "muster", "x");
        assert_eq!(path(true, "/a"), "muster-vms.slice:muster-vm:x");
        assert_eq!(path(false, ""), "/muster-vms/x");
        assert_eq!(path(false, "/a/b/"), "/a/b/x");
    }

    #[test]
    fn the_probe_is_a_program() {
        use crate::host::SystemExec;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe");
        std::fs::write(&path, elf()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let command = Command::new([path.display().to_string()], PROBE_TIMEOUT);
        let cancelled = CancellationToken::new();
        let ran = runtime.block_on(SystemExec::new().run(&command, &cancelled)).unwrap();
        assert!(ran.exit.success(), "{ran:?}");
    }
}
