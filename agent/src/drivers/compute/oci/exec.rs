//! Programs that run in a container beside its own.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use oci_spec::OciSpecError;
use oci_spec::runtime::{BoxBuilder, Process, ProcessBuilder, Spec};
use tokio::net::unix::pipe;

use super::{Oci, bundle, users};
use crate::drivers::DriverError;
use crate::drivers::compute::{
    GuestCommand, GuestProcess, GuestProcesses, ProcessInput, ProcessOutput, TerminalSize,
    not_running,
};
use crate::host::idmap::IdRange;
use crate::host::{
    Exit, ProcessId, RunningChild, Terminal, TerminalEnd, Wired, input_pipe, output_pipe,
};

/// Names the files of one program after the other.
static COUNT: AtomicU64 = AtomicU64::new(0);

#[async_trait]
impl GuestProcesses for Oci {
    async fn exec(
        &self,
        vm: VmUuid,
        command: &GuestCommand,
    ) -> Result<Box<dyn GuestProcess>, DriverError> {
        let ready = self.containers.ready(vm)?;
        if ready.cgroups.is_frozen() {
            let text = format!("VM {vm} is paused");
            return Err(DriverError::refused(Code::VmNotRunning, text));
        }
        let failed =
            |error: io::Error| DriverError::failed(format!("run a program in VM {vm}"), error);
        let folder = self.containers.folder(vm);
        let config = std::fs::read(folder.config()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => not_running(vm),
            _ => failed(error),
        })?;
        let spec: Spec = serde_json::from_slice(&config).map_err(|error| failed(error.into()))?;
        let root = PathBuf::from(format!("/proc/{}/root", ready.init.pid));
        let ids = match &command.user {
            Some(user) => Some(users::find(&root, Some(user))?),
            None => None,
        };
        let process = process(&spec, command, ids.as_ref());
        let process = process.map_err(|error| failed(io::Error::other(error)))?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let files = Files {
            process: folder.run().join(format!("exec-{}-{number}.json", std::process::id())),
            pid: folder.run().join(format!("exec-{}-{number}.pid", std::process::id())),
        };
        let json = serde_json::to_vec(&process).map_err(|error| failed(error.into()))?;
        std::fs::write(&files.process, json).map_err(failed)?;
        let runtime = self.containers.runtime().await?;
        let (path, pid) = (files.process.display().to_string(), files.pid.display().to_string());
        let words = ["exec", "--process", &path, "--pid-file", &pid, &vm.to_string()];
        let ids = folder.started().map_err(failed)?.and_then(|started| started.ids);
        let started = Program::start(runtime.argv(&words), files, command.terminal, ids);
        Ok(Box::new(started.map_err(failed)?))
    }
}

/// What runs beside the container's own program, with that one's rights and environment.
fn process(
    spec: &Spec,
    command: &GuestCommand,
    ids: Option<&users::Ids>,
) -> Result<Process, OciSpecError> {
    let own = spec.process().clone().unwrap_or_default();
    let own_env = own.env().clone().unwrap_or_default();
    let mut env = bundle::environment([own_env, command.env.clone()].concat());
    if command.terminal.is_some() && !env.iter().any(|setting| setting.starts_with("TERM=")) {
        env.push("TERM=xterm".to_owned());
    }
    let user = match ids {
        Some(ids) => bundle::user(ids)?,
        None => own.user().clone(),
    };
    let dir = command.dir.as_ref().map_or_else(|| own.cwd().clone(), PathBuf::from);
    let mut builder = ProcessBuilder::default();
    if let Some(size) = &command.terminal {
        // Else it has none until the runtime hears of the size of its own terminal.
        let size = BoxBuilder::default()
            .height(u64::from(size.rows))
            .width(u64::from(size.columns))
            .build()?;
        builder = builder.console_size(size);
    }
    builder
        .terminal(command.terminal.is_some())
        .user(user)
        .args(command.argv.clone())
        .env(env)
        .cwd(dir)
        .capabilities(bundle::capabilities()?)
        .rlimits(Vec::new())
        .no_new_privileges(true)
        .build()
}

/// Removed with the program.
#[derive(Debug)]
struct Files {
    process: PathBuf,
    pid: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in [&self.process, &self.pid] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a file stays");
                }
                _ => {}
            }
        }
    }
}

/// A program, behind the runtime that started it.
#[derive(Debug)]
struct Program {
    child: RunningChild,
    files: Files,
    stdin: Option<Stream<pipe::Sender>>,
    stdout: Option<Stream<pipe::Receiver>>,
    stderr: Option<Stream<pipe::Receiver>>,
    terminal: Option<Arc<Terminal>>,
    has_ended: bool,
}

#[derive(Debug)]
enum Stream<P> {
    Pipe(P),
    Terminal(Arc<Terminal>),
}

impl Program {
    fn start(
        argv: Vec<String>,
        files: Files,
        terminal: Option<TerminalSize>,
        own_ids: Option<IdRange>,
    ) -> io::Result<Self> {
        let started = |wired: Wired| wired.start().map_err(io::Error::other);
        if let Some(size) = terminal {
            let (near, far) = Terminal::make(size.columns, size.rows)?;
            let (stdin, stdout) = (far.try_clone()?, far.try_clone()?);
            let child = started(Wired { argv, stdin, stdout, stderr: far, terminal: true })?;
            let near = Arc::new(near);
            return Ok(Self {
                child,
                files,
                stdin: Some(Stream::Terminal(Arc::clone(&near))),
                stdout: Some(Stream::Terminal(Arc::clone(&near))),
                stderr: None,
                terminal: Some(near),
                has_ended: false,
            });
        }
        let ((input, stdin), (output, stdout)) = (input_pipe()?, output_pipe()?);
        let (errors, stderr) = output_pipe()?;
        let ends = [stdin, stdout, stderr];
        users::give(&ends, own_ids)?;
        let [stdin, stdout, stderr] = ends;
        let child = started(Wired { argv, stdin, stdout, stderr, terminal: false })?;
        Ok(Self {
            child,
            files,
            stdin: Some(Stream::Pipe(input)),
            stdout: Some(Stream::Pipe(output)),
            stderr: Some(Stream::Pipe(errors)),
            terminal: None,
            has_ended: false,
        })
    }

    /// The program itself, which outlives the runtime that is killed.
    fn process(&self) -> Option<ProcessId> {
        let pid = std::fs::read_to_string(&self.files.pid).ok()?;
        ProcessId::of(pid.trim().parse().ok()?).ok()?
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Some(process) = self.process()
            && let Err(error) = process.kill()
        {
            tracing::warn!(pid = process.pid, %error, "a program in a container goes on");
        }
    }
}

#[async_trait]
impl GuestProcess for Program {
    fn take_stdin(&mut self) -> Option<ProcessInput> {
        Some(match self.stdin.take()? {
            Stream::Pipe(pipe) => Box::new(pipe),
            Stream::Terminal(terminal) => Box::new(TerminalEnd(terminal)),
        })
    }

    fn take_stdout(&mut self) -> Option<ProcessOutput> {
        Some(match self.stdout.take()? {
            Stream::Pipe(pipe) => Box::new(pipe),
            Stream::Terminal(terminal) => Box::new(TerminalEnd(terminal)),
        })
    }

    fn take_stderr(&mut self) -> Option<ProcessOutput> {
        match self.stderr.take()? {
            Stream::Pipe(pipe) => Some(Box::new(pipe)),
            Stream::Terminal(_) => None,
        }
    }

    fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => terminal.resize(size.columns, size.rows),
            None => Ok(()),
        }
    }

    async fn wait(&mut self) -> io::Result<Exit> {
        let exit = self.child.wait().await?;
        self.has_ended = true;
        Ok(exit)
    }
}
