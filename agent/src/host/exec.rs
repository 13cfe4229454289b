//! Starting processes: short commands that are waited for, and detached ones that outlive the
//! agent.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::libc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::units::{Scope, Systemd, UnitError, UnitProperty};
use super::{Piped, ProcessId, RunningChild, gate, syscalls};

/// Output kept of each stream unless a command says otherwise.
const OUTPUT_CAP_BYTES: usize = 5 * 1024 * 1024;
/// Where programs are looked for.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment; `None`: a plain `PATH` and `LC_ALL=C`.
    pub env: Option<Vec<(String, String)>>,
    /// What it reads.
    pub stdin: Bytes,
    /// After this it is killed, with its process group.
    pub timeout: Duration,
    /// Bytes kept of each of its output streams; the rest is read and dropped.
    pub output_cap_bytes: usize,
}

impl Command {
    /// A command without input and with the usual limit of output.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>, timeout: Duration) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: None,
            stdin: Bytes::new(),
            timeout,
            output_cap_bytes: OUTPUT_CAP_BYTES,
        }
    }

    fn program(&self) -> &str {
        self.argv.first().map_or("", String::as_str)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, when it exited by itself.
    pub code: Option<i32>,
    /// Signal, when one killed it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Exit code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == Some(0)
    }

    /// The shell's number for it: the code, or 128 + signal.
    #[must_use]
    pub fn number(self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(-1)
    }
}

impl From<std::process::ExitStatus> for Exit {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        Self { code: status.code(), signal: status.signal() }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("unknown end"),
        }
    }
}

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// The start of its standard output.
    pub stdout: Vec<u8>,
    /// The start of its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// The output of a command that had to succeed.
    ///
    /// # Errors
    /// [`ExecError::Failed`] with what it printed to standard error.
    pub fn checked(self, program: &str) -> Result<Self, ExecError> {
        if self.exit.success() {
            return Ok(self);
        }
        let stderr = String::from_utf8_lossy(&self.stderr).trim().to_owned();
        Err(ExecError::Failed { program: program.to_owned(), exit: self.exit, stderr })
    }
}

/// A process that goes on when the agent ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its environment, beside a path and a language.
    pub env: Vec<(&'static str, String)>,
    /// Its standard output and error are appended here.
    pub log: PathBuf,
    /// Its place under systemd; without systemd it is only a session of its own.
    pub scope: Option<Scope>,
}

/// A detached process that was just started.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub process: ProcessId,
    /// Becomes `Some` when it ends, as long as this agent lives.
    pub exit: watch::Receiver<Option<Exit>>,
}

/// A command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// It could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It was started and could not be talked to.
    #[error("run {program}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended badly.
    #[error("{program}: {exit}: {stderr}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        exit: Exit,
        /// What it printed.
        stderr: String,
    },
    /// It took too long and was killed.
    #[error("{program} was killed after {ms} ms")]
    Timeout {
        /// The program.
        program: String,
        /// The deadline, ms.
        ms: u128,
    },
    /// The task was cancelled; it was killed.
    #[error("{program} was cancelled")]
    Cancelled {
        /// The program.
        program: String,
    },
    /// Its unit could not be made, or changed.
    #[error("{unit}")]
    Unit {
        /// Name of the unit.
        unit: String,
        /// Why.
        #[source]
        source: Box<UnitError>,
    },
}

/// Runs processes.
#[async_trait]
pub trait Exec: fmt::Debug + Send + Sync + 'static {
    /// Runs a command to its end. Any exit is a success here, see [`Output::checked`].
    ///
    /// # Errors
    /// It could not be started, took too long or was cancelled; nothing of it runs then.
    async fn run(
        &self,
        command: &Command,
        cancelled: &CancellationToken,
    ) -> Result<Output, ExecError>;

    /// Starts a process that outlives the agent.
    ///
    /// # Errors
    /// It could not be started.
    async fn spawn_detached(&self, detached: &Detached) -> Result<Spawned, ExecError>;

    /// Starts a process that is talked to, and killed when it is dropped.
    ///
    /// # Errors
    /// It could not be started.
    async fn spawn_piped(&self, piped: &Piped) -> Result<RunningChild, ExecError>;

    /// Changes properties of a unit of systemd for as long as it is there.
    ///
    /// # Errors
    /// systemd has refused, or can't be talked to.
    async fn change_unit(&self, unit: &str, properties: &[UnitProperty]) -> Result<(), ExecError>;

    /// `systemd` when detached processes get scopes of their own, else `direct`.
    fn supervisor(&self) -> &'static str;
}

/// A shared door.
pub type SharedExec = Arc<dyn Exec>;

/// The machine's processes.
#[derive(Debug)]
pub struct SystemExec {
    /// `None`: it is not PID 1 here.
    systemd: Option<Systemd>,
}

impl SystemExec {
    /// Looks whether systemd is PID 1.
    #[must_use]
    pub fn new() -> Self {
        Self { systemd: Path::new("/run/systemd/system").is_dir().then(Systemd::default) }
    }
}

impl Default for SystemExec {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the door to processes")]
pub(super) fn process(argv: &[String]) -> tokio::process::Command {
    let program = argv.first().map_or("", String::as_str);
    let mut process = tokio::process::Command::new(program);
    process.args(argv.get(1..).unwrap_or_default()).env_clear();
    process
}

#[async_trait]
impl Exec for SystemExec {
    async fn run(
        &self,
        command: &Command,
        cancelled: &CancellationToken,
    ) -> Result<Output, ExecError> {
        let program = command.program().to_owned();
        let mut process = process(&command.argv);
        match &command.env {
            Some(env) => process.envs(env.iter().map(|(key, value)| (key, value))),
            None => process.env("PATH", PATH).env("LC_ALL", "C"),
        };
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that a timeout reaches its children as well.
        process.process_group(0).kill_on_drop(true);
        let mut child = process
            .spawn()
            .map_err(|source| ExecError::Start { program: program.clone(), source })?;
        let group = child.id();
        let end = tokio::select! {
            biased;
            output = talk(&mut child, command) => {
                return output.map_err(|source| ExecError::Run { program, source });
            }
            () = cancelled.cancelled() => ExecError::Cancelled { program },
            () = tokio::time::sleep(command.timeout) => {
                ExecError::Timeout { program, ms: command.timeout.as_millis() }
            }
        };
        kill_group(group);
        if let Err(error) = child.wait().await {
            tracing::warn!(%error, "cannot wait for a killed process");
        }
        Err(end)
    }

    async fn spawn_detached(&self, detached: &Detached) -> Result<Spawned, ExecError> {
        let place = self.systemd.as_ref().zip(detached.scope.as_ref());
        let argv = match place {
            Some(_) => gate::closed(&detached.argv, false),
            None => detached.argv.clone(),
        };
        let program = detached.argv.first().cloned().unwrap_or_default();
        let failed = |source| ExecError::Start { program: program.clone(), source };
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&detached.log)
            .map_err(failed)?;
        let mut process = process(&argv);
        process.env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        process.envs(detached.env.iter().map(|(name, value)| (name, value)));
        process.stdin(if place.is_some() { Stdio::piped() } else { Stdio::null() });
        process.stdout(log.try_clone().map_err(failed)?).stderr(log);
        syscalls::detach(&mut process);
        let mut child = process.spawn().map_err(failed)?;
        let gone = || std::io::Error::new(std::io::ErrorKind::NotFound, "it ended at once");
        let pid = child.id().ok_or_else(|| failed(gone()))?;
        // Not yet waited for, so the pid can't be anybody else's.
        let stat = super::procfs::stat(pid).map_err(failed)?.ok_or_else(|| failed(gone()))?;
        if let Some((systemd, scope)) = place {
            gate::open(systemd, &mut child, scope, &program).await?;
            child.stdin = None;
        }
        let (ended, exit) = watch::channel(None);
        // Ends with the process; when the agent ends first, init reaps.
        drop(tokio::spawn(async move {
            let exit = child.wait().await.map(Exit::from).unwrap_or_default();
            ended.send_replace(Some(exit));
        }));
        Ok(Spawned { process: ProcessId { pid, start_ticks: stat.start_ticks }, exit })
    }

    async fn spawn_piped(&self, piped: &Piped) -> Result<RunningChild, ExecError> {
        RunningChild::start(piped, self.systemd.as_ref()).await
    }

    async fn change_unit(&self, unit: &str, properties: &[UnitProperty]) -> Result<(), ExecError> {
        let changed = match &self.systemd {
            Some(systemd) => systemd.change(unit, properties).await,
            None => Err(UnitError::Absent),
        };
        changed
            .map_err(|source| ExecError::Unit { unit: unit.to_owned(), source: Box::new(source) })
    }

    fn supervisor(&self) -> &'static str {
        if self.systemd.is_some() { "systemd" } else { "direct" }
    }
}

async fn talk(child: &mut tokio::process::Child, command: &Command) -> std::io::Result<Output> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let input = async {
        if let Some(mut stdin) = stdin {
            // A command may end without reading its input.
            match stdin.write_all(&command.stdin).await {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    let cap = command.output_cap_bytes;
    let (exit, (), stdout, stderr) =
        tokio::try_join!(child.wait(), input, capped(stdout, cap), capped(stderr, cap))?;
    Ok(Output { exit: exit.into(), stdout, stderr })
}

/// Reads to the end and keeps the first `cap` bytes.
async fn capped(stream: Option<impl AsyncRead + Unpin>, cap: usize) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else { return Ok(kept) };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(kept);
        }
        let room = cap.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&buffer[..room]);
    }
}

fn kill_group(leader: Option<u32>) {
    let Some(pid) = leader.and_then(|pid| i32::try_from(pid).ok()) else { return };
    // The leader has not been waited for, so the number is still its group's.
    let killed = nix::sys::signal::killpg(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    );
    if let Err(error) = killed
        && error != nix::errno::Errno::from_raw(libc::ESRCH)
    {
        tracing::warn!(%error, "cannot kill a process group");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn run(command: &Command) -> Result<Output, ExecError> {
        SystemExec::new().run(command, &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn input_output_and_exit_come_through() {
        let mut command = Command::new(["sh", "-c", "cat; echo oops >&2; exit 3"], SOON);
        command.stdin = Bytes::from_static(b"hello");
        let output = run(&command).await.unwrap();
        assert_eq!(output.stdout, b"hello");
        assert_eq!(output.exit, Exit { code: Some(3), signal: None });
        let error = output.checked("sh").unwrap_err().to_string();
        assert_eq!(error, "sh: exit code 3: oops");
    }

    #[tokio::test]
    async fn output_is_capped_and_does_not_block_the_command() {
        let mut command = Command::new(["head", "-c", "1000000", "/dev/zero"], SOON);
        command.output_cap_bytes = 10;
        let output = run(&command).await.unwrap();
        assert!(output.exit.success());
        assert_eq!(output.stdout.len(), 10);
    }

    #[tokio::test]
    async fn a_timeout_reaches_grandchildren_too() {
        let script = "sleep 1000 & echo $!; wait";
        let mut command = Command::new(["sh", "-c", script], Duration::from_millis(300));
        assert!(matches!(run(&command).await, Err(ExecError::Timeout { .. })));
        command.argv = vec!["/nonexistent/program".to_owned()];
        assert!(matches!(run(&command).await, Err(ExecError::Start { .. })));
    }

    #[tokio::test]
    async fn cancelling_kills() {
        let cancelled = CancellationToken::new();
        cancelled.cancel();
        let command = Command::new(["sleep", "1000"], SOON);
        let ended = SystemExec::new().run(&command, &cancelled).await;
        assert!(matches!(ended, Err(ExecError::Cancelled { .. })));
    }

    #[tokio::test]
    async fn a_detached_process_is_named_and_its_exit_seen() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let script = "echo started; read nothing; sleep 1000";
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        let env = vec![("MUSTER_TEST", "told".to_owned())];
        let detached = Detached { argv, env, log: log.clone(), scope: None };
        let mut spawned = SystemExec::new().spawn_detached(&detached).await.unwrap();
        assert!(spawned.process.is_alive().unwrap());
        let marked = |name| super::super::procfs::started_with(spawned.process.pid, name).unwrap();
        assert_eq!((marked("MUSTER_TEST").as_deref(), marked("MUSTER")), (Some("told"), None));
        spawned.process.kill().unwrap();
        tokio::time::timeout(SOON, spawned.process.gone()).await.unwrap().unwrap();
        let exit = spawned.exit.wait_for(Option::is_some).await.unwrap().unwrap();
        assert_eq!(exit.number(), 137);
        assert!(!spawned.process.is_alive().unwrap());
    }
}
