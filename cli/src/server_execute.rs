//! `muster server execute`: a script on a node.

use std::path::PathBuf;
use std::time::Duration;

use muster_shared::api::task::Executed;
use serde_json::json;

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, print, warn};
use crate::server_change::NODE;
use crate::{CliError, pick, spec_file};

/// What the coordinator and its agent may take beside the script.
const OVERHEAD: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The script runs as root on the node. It is refused unless `security.allow_command_execute` is set both
for the coordinator and for the node's agent. Prints its output; if it fails, the exit code is 1.
Examples:
  muster server execute cn1 check.sh --fast
  echo uptime | muster server execute cn1 -")]
pub(crate) struct Execute {
    #[arg(help = NODE)]
    server: String,

    /// File with the script, `-` for stdin; without a `#!` line /bin/sh runs it.
    script: PathBuf,

    /// Arguments for the script.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,

    /// Time limit for the script in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Execute) -> Result<(), CliError> {
    let script = with_interpreter(spec_file::text(&args.script)?);
    let server = pick::server(client, &args.server).await?;
    let limit = Duration::from_secs(args.timeout);
    let body = json!({
        "script": script, "args": args.args, "json": true, "timeout": args.timeout * 1000,
    });
    let path = format!("/servers/{}/execute", server.record.uuid);
    let done: Answer<Executed> =
        client.post_within(limit.saturating_add(OVERHEAD), &path, &body).await?;
    if output.is_json() {
        output.object(done.json())?;
    } else {
        if !done.stdout.is_empty() {
            print(done.stdout.trim_end())?;
        }
        if !done.stderr.is_empty() {
            warn(done.stderr.trim_end());
        }
    }
    ended(done.exit_code)
}

fn ended(exit_code: Option<i64>) -> Result<(), CliError> {
    match exit_code {
        Some(0) => Ok(()),
        Some(code) => Err(CliError::Ended(format!("the script exited with {code}"))),
        None => Err(CliError::Ended("a signal ended the script".to_owned())),
    }
}

fn with_interpreter(script: String) -> String {
    if script.starts_with("#!") { script } else { format!("#!/bin/sh\n{script}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_an_interpreter() {
        assert_eq!(with_interpreter("uptime\n".to_owned()), "#!/bin/sh\nuptime\n");
        let python = "#!/usr/bin/env python3\n".to_owned();
        assert_eq!(with_interpreter(python.clone()), python);
    }

    #[test]
    fn a_script_that_fails_is_a_failure() {
        ended(Some(0)).unwrap();
        let failed = ended(Some(3)).unwrap_err();
        assert_eq!(
            (failed.exit_code(), failed.to_string().as_str()),
            (1, "the script exited with 3")
        );
        assert_eq!(ended(None).unwrap_err().exit_code(), 1);
    }
}
