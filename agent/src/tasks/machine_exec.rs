//! `machine_exec`: runs a command in a VM's guest, through its guest agent.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use serde_json::{Value, json};

use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::guest_agent::{self, Exec};

const OPERATION: &str = "guest exec";
/// Longest run unless the client says otherwise.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// Longest run that a client may ask for.
const MAX_LIMIT: Duration = Duration::from_secs(3600);
/// What the guest agent may take beside the command.
const OVERHEAD: Duration = Duration::from_secs(60);
/// Most words of a command, and bytes of all of them.
const MAX_WORDS: usize = 256;
const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Most that a command is given to read, bytes.
const MAX_STDIN_BYTES: usize = 48 * 1024;

/// The kind; parameters `uuid`, `argv`, `stdin` (base64), `timeout` (s).
#[derive(Debug)]
pub struct MachineExec;

impl Handler for MachineExec {
    // Nothing of it is journaled: after a crash nobody could say whether it has run.
    fn kind(&self) -> Kind {
        Kind::query("machine_exec", machine::MACHINE_QUERY, DEFAULT_LIMIT + OVERHEAD)
    }

    fn deadline(&self, params: &Params) -> Duration {
        limit(params).unwrap_or(DEFAULT_LIMIT) + OVERHEAD
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("argv".to_owned(), json!(["uname", "-a"]));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let (program, arguments) = argv(params)?;
        let (stdin, limit) = (stdin(params)?, limit(params)?);
        let exec = Exec { program, arguments, stdin, limit };
        Ok(Plan::of(Vec::new(), Run { vm: machine::vm(params)?, exec }, STEPS))
    }
}

/// Program and arguments.
fn argv(params: &Params) -> Result<(String, Vec<String>), TaskFailure> {
    let words = params.get("argv").and_then(Value::as_array);
    let words: Option<Vec<String>> =
        words.and_then(|words| words.iter().map(|word| word.as_str().map(str::to_owned)).collect());
    let usable = |words: &Vec<String>| {
        let bytes: usize = words.iter().map(String::len).sum();
        (1..=MAX_WORDS).contains(&words.len())
            && !words[0].is_empty()
            && bytes <= MAX_COMMAND_BYTES
            && !words.iter().any(|word| word.contains('\0'))
    };
    let words = words.filter(usable).unwrap_or_default().into_iter();
    split_first(words).ok_or_else(|| {
        let problem = format!(
            "must be the program and its arguments: 1 to {MAX_WORDS} texts, at most \
             {MAX_COMMAND_BYTES} bytes together"
        );
        TaskFailure::bad_param("argv", problem)
    })
}

fn split_first(mut words: impl Iterator<Item = String>) -> Option<(String, Vec<String>)> {
    Some((words.next()?, words.collect()))
}

fn stdin(params: &Params) -> Result<Vec<u8>, TaskFailure> {
    let text = match params.get("stdin") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok()),
    };
    text.filter(|bytes| bytes.len() <= MAX_STDIN_BYTES).ok_or_else(|| {
        let problem = format!("must be base64 of at most {MAX_STDIN_BYTES} bytes");
        TaskFailure::bad_param("stdin", problem)
    })
}

fn limit(params: &Params) -> Result<Duration, TaskFailure> {
    let seconds = match params.get("timeout") {
        None | Some(Value::Null) => return Ok(DEFAULT_LIMIT),
        Some(value) => lenient::number(value).map(Duration::from_secs),
    };
    let fits = |limit: &Duration| (Duration::from_secs(1)..=MAX_LIMIT).contains(limit);
    seconds.filter(fits).ok_or_else(|| {
        TaskFailure::bad_param("timeout", format!("must be 1 to {} s", MAX_LIMIT.as_secs()))
    })
}

const STEPS: &[Row<Run>] = steps![("run", 100, run)];

#[derive(Debug)]
struct Run {
    vm: VmUuid,
    exec: Exec,
}

impl Run {
    async fn run(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::must_run(ctx, OPERATION, self.vm).await?;
        let done = guest_agent::run(&ctx.drivers.guest_agents, self.vm, &self.exec).await;
        ctx.finish_with(json!(done.map_err(failed(OPERATION))?));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine_tests::{Host, one_vm, params, run, uuid};
    use super::*;

    #[test]
    fn commands_are_checked() {
        let plan = |more: Value| {
            let mut all = MachineExec.example();
            all.extend(more.as_object().unwrap().clone());
            MachineExec
                .plan(&all)
                .map(drop)
                .map_err(|failure| failure.details.unwrap()["field"].clone())
        };
        plan(json!({})).unwrap();
        plan(json!({ "stdin": "b2s=", "timeout": "30" })).unwrap();
        for (bad, field) in [
            (json!({ "argv": [] }), "argv"),
            (json!({ "argv": [""] }), "argv"),
            (json!({ "argv": "ls" }), "argv"),
            (json!({ "argv": ["a\u{0}"] }), "argv"),
            (json!({ "argv": ["x".repeat(MAX_COMMAND_BYTES + 1)] }), "argv"),
            (json!({ "stdin": "!" }), "stdin"),
            (json!({ "timeout": 0 }), "timeout"),
            (json!({ "timeout": 3601 }), "timeout"),
        ] {
            assert_eq!(plan(bad), Err(json!(field)));
        }
        let mut long = MachineExec.example();
        long.insert("timeout".to_owned(), json!(3600));
        assert!(MachineExec.deadline(&long) > Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_without_an_agent_is_told_what_to_do() {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let exec = || host.context(&drivers, &params(json!({ "argv": ["true"] })));
        let missing = run(&exec(), "machine_exec", false).await.unwrap_err();
        assert_eq!(missing.code, "GuestAgentMissing");
        assert!(missing.message.contains("install the package qemu-guest-agent"), "{missing}");
        host.guests.install_agent(uuid());
        let context = exec();
        run(&context, "machine_exec", false).await.unwrap();
        let done = context.result.lock().clone();
        assert_eq!((&done["exit_status"], &done["stdout"]), (&json!(0), &json!("b2s=")));
    }
}
