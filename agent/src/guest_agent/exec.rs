//! Running a command in a guest.

use std::pin::pin;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::api::vm::GuestExecuted;
use muster_shared::ids::VmUuid;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use super::{ANSWER, GuestAgents, failed};
use crate::drivers::DriverError;

/// Most that is returned of each output, bytes.
pub const MAX_OUTPUT_BYTES: usize = 256 * 1024;
/// Between looks at a command that runs: the first one; doubled up to [`MAX_LOOK`].
const MIN_LOOK: Duration = Duration::from_millis(50);
/// Longest time between looks.
const MAX_LOOK: Duration = Duration::from_secs(1);

/// A command.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Looked for in the guest's own path.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What it reads.
    pub stdin: Vec<u8>,
    /// How long its end is waited for.
    pub limit: Duration,
}

#[derive(Deserialize)]
struct Started {
    pid: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Status {
    exited: bool,
    exitcode: Option<i64>,
    signal: Option<i64>,
    #[serde(default)]
    out_data: String,
    #[serde(default)]
    err_data: String,
    #[serde(default)]
    out_truncated: bool,
    #[serde(default)]
    err_truncated: bool,
}

/// Runs a command and waits for its end. Others may talk to the guest agent meanwhile.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`: e.g. there is no such program.
pub async fn run(
    agents: &GuestAgents,
    vm: VmUuid,
    exec: &Exec,
) -> Result<GuestExecuted, DriverError> {
    let mut limit = pin!(sleep(exec.limit));
    let wanted = json!({
        "path": exec.program, "arg": exec.arguments, "capture-output": true,
        "input-data": BASE64_STANDARD.encode(&exec.stdin),
    });
    let mut talking = agents.talk(vm).await?;
    let started: Started = talking.ask("guest-exec", &wanted, ANSWER).await.map_err(failed(vm))?;
    drop(talking);
    let mut look = MIN_LOOK;
    loop {
        let mut talking = agents.talk(vm).await?;
        let asked = json!({ "pid": started.pid });
        let status: Status =
            talking.ask("guest-exec-status", &asked, ANSWER).await.map_err(failed(vm))?;
        drop(talking);
        if status.exited {
            return Ok(executed(Some(status)));
        }
        if limit.is_elapsed() {
            return Ok(executed(None));
        }
        tokio::select! {
            () = &mut limit => {}
            () = sleep(look) => {}
        }
        look = (look * 2).min(MAX_LOOK);
    }
}

/// `None`: it goes on.
fn executed(status: Option<Status>) -> GuestExecuted {
    let Some(status) = status else {
        return GuestExecuted { timed_out: true, ..GuestExecuted::default() };
    };
    let (stdout, cut_stdout) = bounded(&status.out_data);
    let (stderr, cut_stderr) = bounded(&status.err_data);
    GuestExecuted {
        exit_status: status.exitcode,
        signal: status.signal,
        timed_out: false,
        stdout,
        stderr,
        stdout_truncated: status.out_truncated || cut_stdout,
        stderr_truncated: status.err_truncated || cut_stderr,
    }
}

/// Base64 of its beginning, and whether that is not all.
fn bounded(base64: &str) -> (String, bool) {
    // What is no base64 is no output.
    let mut bytes = BASE64_STANDARD.decode(base64).unwrap_or_default();
    let cut = bytes.len() > MAX_OUTPUT_BYTES;
    bytes.truncate(MAX_OUTPUT_BYTES);
    (BASE64_STANDARD.encode(bytes), cut)
}
