//! Processes that are talked to while they run, and that end with whoever talks to them.

use std::io;
use std::process::Stdio;

use tokio::process::{ChildStderr, ChildStdin, ChildStdout};

use super::exec::{PATH, process};
use super::units::Systemd;
use super::{ExecError, Exit, ProcessId, Scope, gate};

/// A process with pipes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piped {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// It can be written to; else it reads nothing.
    pub stdin: bool,
    /// Its place under systemd.
    pub scope: Option<Scope>,
}

/// A process with pipes that was started. Dropped, it is killed.
#[derive(Debug)]
pub struct RunningChild(tokio::process::Child);

impl From<tokio::process::Child> for RunningChild {
    fn from(child: tokio::process::Child) -> Self {
        Self(child)
    }
}

impl RunningChild {
    pub(super) async fn start(piped: &Piped, systemd: Option<&Systemd>) -> Result<Self, ExecError> {
        let place = systemd.zip(piped.scope.as_ref());
        let mut command = match place {
            Some(_) => process(&gate::closed(&piped.argv, piped.stdin)),
            None => process(&piped.argv),
        };
        command.env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        let writes = piped.stdin || place.is_some();
        command.stdin(if writes { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let program = piped.argv.first().cloned().unwrap_or_default();
        let failed = |source| ExecError::Start { program: program.clone(), source };
        let mut child = command.spawn().map_err(failed)?;
        if let Some((systemd, scope)) = place {
            gate::open(systemd, &mut child, scope, &program).await?;
        }
        if !piped.stdin {
            child.stdin = None;
        }
        Ok(Self(child))
    }

    /// The process itself; `None`: it has ended.
    ///
    /// # Errors
    /// `/proc` could not be read.
    pub fn process(&self) -> io::Result<Option<ProcessId>> {
        // As long as nobody has waited for it, the pid is its own.
        self.0.id().map_or(Ok(None), ProcessId::of)
    }

    /// What it reads, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// What it prints, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// What it complains of, once.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Waits until it has ended; may be given up and called again, also after the end.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub async fn wait(&mut self) -> io::Result<Exit> {
        self.0.wait().await.map(Exit::from)
    }
}
