//! A program that waits until it has its place under systemd, before it does anything: what it uses
//! before would count for the agent, and could be more than it may have.

use std::io;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

use super::ExecError;
use super::units::{Scope, Systemd};

/// Becomes the program once it has read a line. When the agent ends before, so does it.
const SHELL: &str = "read -r open && exec \"$@\"";
/// The same for a program that reads nothing.
const SHELL_WITHOUT_INPUT: &str = "read -r open && exec \"$@\" </dev/null";
/// How the shell calls itself in what it complains of.
const NAME: &str = "muster";

/// What to run in place of a program, with a pipe to its standard input. The process is the same when
/// it has become the program.
pub(super) fn closed(argv: &[String], reads: bool) -> Vec<String> {
    let shell = if reads { SHELL } else { SHELL_WITHOUT_INPUT };
    ["sh", "-c", shell, NAME].into_iter().map(str::to_owned).chain(argv.iter().cloned()).collect()
}

/// Makes a process's scope and has it become its program. After an error it is gone.
pub(super) async fn open(
    systemd: &Systemd,
    child: &mut Child,
    scope: &Scope,
    program: &str,
) -> Result<(), ExecError> {
    let opened = try_open(systemd, child, scope, program).await;
    if opened.is_err()
        && let Err(error) = child.kill().await
    {
        tracing::warn!(%error, program, "cannot end a process");
    }
    opened
}

async fn try_open(
    systemd: &Systemd,
    child: &mut Child,
    scope: &Scope,
    program: &str,
) -> Result<(), ExecError> {
    let failed = |source| ExecError::Start { program: program.to_owned(), source };
    let ended = || failed(io::Error::new(io::ErrorKind::NotFound, "it ended at once"));
    let pid = child.id().ok_or_else(ended)?;
    let made = systemd.make_scope(scope, pid).await;
    made.map_err(|source| ExecError::Unit { unit: scope.unit.clone(), source: Box::new(source) })?;
    let gate = child.stdin.as_mut().ok_or_else(ended)?;
    gate.write_all(b"\n").await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn printed(reads: bool, input: &str) -> (String, bool) {
        let argv = ["sh", "-c", "echo $$; cat"].map(str::to_owned);
        let mut command = super::super::exec::process(&closed(&argv, reads));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let mut printed = String::new();
        child.stdout.take().unwrap().read_to_string(&mut printed).await.unwrap();
        (printed.replace(&pid.to_string(), "PID"), child.wait().await.unwrap().success())
    }

    #[tokio::test]
    async fn the_program_is_the_same_process_and_reads_what_comes_after_the_gate() {
        assert_eq!(printed(true, "\nhello").await, ("PID\nhello".to_owned(), true));
        assert_eq!(printed(false, "\nhello").await, ("PID\n".to_owned(), true));
    }

    #[tokio::test]
    async fn a_gate_that_is_never_opened_leaves_nothing() {
        assert_eq!(printed(true, "").await, (String::new(), false));
    }
}
