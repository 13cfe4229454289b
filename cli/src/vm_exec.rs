//! `muster vm exec`: a command in a machine's guest.

use std::io::Read as _;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::api::vm::GuestExecuted;
use serde_json::json;

use crate::CliError;
use crate::answer::Answer;
use crate::cell::safe_lines;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::vm::{MACHINE, Target};

/// What coordinator and agents may take beside the command.
const OVERHEAD: Duration = Duration::from_secs(150);
/// Most that is read for the command, bytes.
const MAX_STDIN_BYTES: u64 = 48 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs the guest agent in the guest (package qemu-guest-agent); the command runs as its user, usually
root, without a shell and without a terminal. Prints what it prints, at most 256 KiB of each output, once
it has ended, and exits with its exit status. Examples:
  muster vm exec web1 uptime
  muster vm exec web1 -- sh -c 'ls /tmp | wc -l'
  muster vm exec web1 --stdin -- tee /etc/motd < motd")]
pub(crate) struct Args {
    #[arg(help = MACHINE)]
    vm: String,

    /// Program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,

    /// Gives the command what comes on stdin, at most 48 KiB.
    #[arg(long)]
    stdin: bool,

    /// Time limit in seconds; a command that does not end in time goes on in the guest.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let mut body = json!({ "argv": args.command, "timeout": args.timeout });
    if args.stdin {
        body["stdin"] = json!(BASE64_STANDARD.encode(stdin()?));
    }
    let target = Target::find(client, &args.vm).await?;
    let limit = Duration::from_secs(args.timeout) + OVERHEAD;
    let done: Answer<GuestExecuted> =
        client.post_within(limit, &target.path("/exec"), &body).await?;
    if output.is_json() {
        output.object(done.json())?;
    } else {
        print(std::io::stdout(), &done.stdout, done.stdout_truncated)?;
        print(std::io::stderr(), &done.stderr, done.stderr_truncated)?;
    }
    ended(&done, args.timeout)
}

fn stdin() -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| CliError::Terminal { action: "read stdin", source })?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_STDIN_BYTES) {
        return Ok(bytes);
    }
    let text =
        format!("stdin has more than {MAX_STDIN_BYTES} bytes; copy a file with `muster vm cp`");
    Err(CliError::Usage(text))
}

/// As it is, unless a terminal would obey what a guest sends.
fn print(
    mut to: impl std::io::Write + std::io::IsTerminal,
    base64: &str,
    truncated: bool,
) -> Result<(), CliError> {
    let bytes = BASE64_STANDARD.decode(base64).unwrap_or_default();
    let written = if to.is_terminal() {
        to.write_all(safe_lines(&String::from_utf8_lossy(&bytes)).as_bytes())
    } else {
        to.write_all(&bytes)
    };
    let written = written.and_then(|()| to.flush());
    written.map_err(|source| CliError::Terminal { action: "print the output", source })?;
    if truncated {
        warn("the output is longer; this is its beginning");
    }
    Ok(())
}

fn ended(done: &GuestExecuted, limit: u64) -> Result<(), CliError> {
    match (done.timed_out, done.exit_status, done.signal) {
        (true, ..) => Err(CliError::Timeout(format!(
            "the command did not end within {limit} s and goes on in the guest"
        ))),
        (false, Some(0), _) => Ok(()),
        (false, Some(status), _) => Err(CliError::Exited(status)),
        (false, None, Some(signal)) => {
            Err(CliError::Ended(format!("signal {signal} ended the command")))
        }
        (false, None, None) => Err(CliError::Ended("the command's end is not known".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_the_command() {
        let with = |exit_status| GuestExecuted { exit_status, ..GuestExecuted::default() };
        ended(&with(Some(0)), 60).unwrap();
        assert_eq!(ended(&with(Some(3)), 60).unwrap_err().exit_code(), 3);
        assert_eq!(ended(&with(Some(300)), 60).unwrap_err().exit_code(), 1);
        let signal = GuestExecuted { signal: Some(9), ..with(None) };
        assert_eq!(ended(&signal, 60).unwrap_err().exit_code(), 1);
        let late = GuestExecuted { timed_out: true, ..with(None) };
        let late = ended(&late, 60).unwrap_err();
        assert_eq!(late.exit_code(), 7);
        assert!(late.to_string().contains("goes on in the guest"), "{late}");
    }
}
