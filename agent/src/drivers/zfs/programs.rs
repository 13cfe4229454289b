//! Running `zfs` and `zpool`: found once, by absolute paths, with arguments only and in the C locale.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_shared::wire::Code;
use tokio_util::sync::CancellationToken;

use super::error;
use crate::drivers::DriverError;
use crate::host::{Command, ExecError, Piped, RunningChild, SharedExec};

/// Where the programs are, in this order.
pub(super) const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// Longest output of a question, bytes. An answer that is longer is refused, never cut.
const OUTPUT_CAP_BYTES: usize = 32 * 1024 * 1024;
/// For a process that was killed to be gone. One that the kernel does not let go, because its pool is
/// suspended, is left behind.
const GRACE: Duration = Duration::from_secs(5);
/// Longest run of a question.
pub(super) const LOOK: Duration = Duration::from_secs(120);
/// Longest run of a change.
pub(super) const CHANGE: Duration = Duration::from_secs(600);

/// The two programs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    exec: SharedExec,
    zfs: String,
    zpool: String,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Zfs,
    Zpool,
}

impl Programs {
    /// Looks for them.
    ///
    /// # Errors
    /// The name of the one that is not there.
    pub(super) fn find(exec: SharedExec, folders: &[PathBuf]) -> Result<Self, &'static str> {
        let find = |name: &'static str| {
            let path = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
            path.as_deref().and_then(Path::to_str).map(str::to_owned).ok_or(name)
        };
        Ok(Self { zfs: find("zfs")?, zpool: find("zpool")?, exec })
    }

    fn argv(&self, program: Program, arguments: &[&str]) -> Vec<String> {
        let path = match program {
            Program::Zfs => &self.zfs,
            Program::Zpool => &self.zpool,
        };
        std::iter::once(path.as_str()).chain(arguments.iter().copied()).map(str::to_owned).collect()
    }

    /// Runs one to its end; what it printed.
    ///
    /// # Errors
    /// It refused, in its words and with their code; or it took too long.
    pub(super) async fn run(
        &self,
        program: Program,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<String, DriverError> {
        let argv = self.argv(program, arguments);
        let shown = argv.join(" ");
        let mut command = Command::new(argv, limit);
        command.output_cap_bytes = OUTPUT_CAP_BYTES;
        // Times that `zpool status` prints have no zone.
        let env = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C"), ("TZ", "UTC0")];
        command.env = Some(env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec());
        let never = CancellationToken::new();
        let ran = tokio::time::timeout(limit + GRACE, self.exec.run(&command, &never)).await;
        let output = match ran {
            Ok(Ok(output)) => output,
            Ok(Err(ExecError::Timeout { .. })) | Err(_) => return Err(late(&shown)),
            Ok(Err(error @ ExecError::Start { .. })) => {
                let text = format!("{} can't be started", command.argv.join(" "));
                return Err(DriverError::refused_because(Code::ZfsUnavailable, text, error));
            }
            Ok(Err(error)) => return Err(DriverError::failed(shown, error)),
        };
        if !output.exit.success() {
            tracing::debug!(command = shown, exit = %output.exit, "a program of ZFS refused");
            return Err(error::refusal(&String::from_utf8_lossy(&output.stderr)));
        }
        if output.stdout.len() >= OUTPUT_CAP_BYTES {
            let text = format!("{shown}: the answer is over {OUTPUT_CAP_BYTES} bytes");
            return Err(DriverError::failed(text, "it was cut"));
        }
        String::from_utf8(output.stdout).map_err(|error| DriverError::failed(shown, error))
    }

    /// Starts `zfs` with pipes.
    ///
    /// # Errors
    /// It can't be started.
    pub(super) async fn pipe(
        &self,
        arguments: &[&str],
        stdin: bool,
    ) -> Result<RunningChild, DriverError> {
        let argv = self.argv(Program::Zfs, arguments);
        let shown = argv.join(" ");
        let started = self.exec.spawn_piped(&Piped { argv, stdin, scope: None }).await;
        started.map_err(|error| {
            let text = format!("{shown} can't be started");
            DriverError::refused_because(Code::ZfsUnavailable, text, error)
        })
    }
}

/// Nobody knows whether it was done.
pub(super) fn late(what: &str) -> DriverError {
    let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
    let text = "Process killed due to timeout.";
    tracing::warn!(what, "ZFS does not answer in time");
    DriverError::refused_because(Code::Timeout, text, source)
}
