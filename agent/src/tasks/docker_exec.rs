//! `docker_exec`: runs a program in a container, for one client that connects to the port in the
//! answer.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Need, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::compute::{GuestCommand, TerminalSize};
use crate::sessions::attach::Attached as Console;
use crate::sessions::exec::{self, Attached};

const LIMIT: Duration = Duration::from_secs(90);
/// Time in which the client has to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(30);
/// The queue of sessions with containers.
pub(super) const DOCKER_TASKS: Queue =
    Queue { name: "docker_tasks", max_concurrent: 64, max_wait: Duration::from_secs(10) };
/// Most words of a command, or settings of its environment, and bytes of all of them.
const MAX_TEXTS: usize = 1024;
const MAX_BYTES: usize = 128 * 1024;
/// How long a container is waited for whose console is wanted, and how often it is looked at.
const CONSOLE_WAIT: Duration = Duration::from_secs(55);
const LOOK: Duration = Duration::from_millis(200);
const NOT_RUNNING: &str = "docker_exec: VM is not running, cannot exec";
/// Of a terminal until its client says what it has.
const TERMINAL: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// The kind; parameters `uuid`, `command`.
#[derive(Debug)]
pub struct DockerExec;

impl Handler for DockerExec {
    // A session leaves nothing behind that a journal could bring back.
    fn kind(&self) -> Kind {
        Kind::query("docker_exec", DOCKER_TASKS, LIMIT)
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Containers)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("command".to_owned(), json!({ "Cmd": ["ls", "/"] }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let said = params.get("command").and_then(Value::as_object);
        let said = said.ok_or_else(|| TaskFailure::bad_param("command", "must be an object"))?;
        let terminal = flag(said, "Tty", false)?;
        let command = GuestCommand {
            argv: texts(said, "Cmd")?,
            env: texts(said, "Env")?,
            user: text(said, "User")?,
            dir: text(said, "WorkingDir")?,
            terminal: terminal.then_some(TERMINAL),
        };
        let console = flag(said, "AttachConsole", false)?;
        let detach = flag(said, "Detach", false)?;
        if console && detach {
            return Err(TaskFailure::bad_param("command.Detach", "a console is for a client"));
        }
        if console && !command.argv.is_empty() {
            let problem = "must not be there with AttachConsole: the container's own program runs";
            return Err(TaskFailure::bad_param("command.Cmd", problem));
        }
        if !console && command.argv.first().is_none_or(String::is_empty) {
            return Err(TaskFailure::bad_param(
                "command.Cmd",
                "must be a program and its arguments",
            ));
        }
        if let Some(bad) = command.env.iter().find(|text| !matches!(text.find('='), Some(1..))) {
            let problem = format!("{bad:?} is not NAME=value");
            return Err(TaskFailure::bad_param("command.Env", problem));
        }
        let attached = Attached {
            stdin: flag(said, "AttachStdin", false)?,
            stdout: flag(said, "AttachStdout", true)?,
            stderr: flag(said, "AttachStderr", true)?,
            terminal,
        };
        Ok(Plan::of(Vec::new(), Exec { vm, command, attached, detach, console }, STEPS))
    }
}

fn flag(said: &Map<String, Value>, name: &str, unsaid: bool) -> Result<bool, TaskFailure> {
    match said.get(name) {
        None | Some(Value::Null) => Ok(unsaid),
        Some(value) => lenient::flag(value).ok_or_else(|| {
            TaskFailure::bad_param(&format!("command.{name}"), "must be true or false")
        }),
    }
}

fn text(said: &Map<String, Value>, name: &str) -> Result<Option<String>, TaskFailure> {
    match said.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= 4096 && !text.contains('\0') => {
            Ok(Some(text.clone()).filter(|text| !text.is_empty()))
        }
        Some(_) => {
            let problem = "must be a text of at most 4096 bytes";
            Err(TaskFailure::bad_param(&format!("command.{name}"), problem))
        }
    }
}

fn texts(said: &Map<String, Value>, name: &str) -> Result<Vec<String>, TaskFailure> {
    let all = match said.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
        Some(_) => None,
    };
    let fits = |all: &Vec<String>| {
        all.len() <= MAX_TEXTS
            && all.iter().map(String::len).sum::<usize>() <= MAX_BYTES
            && !all.iter().any(|text| text.contains('\0'))
    };
    all.filter(fits).ok_or_else(|| {
        let problem =
            format!("must be at most {MAX_TEXTS} texts, at most {MAX_BYTES} bytes together");
        TaskFailure::bad_param(&format!("command.{name}"), problem)
    })
}

const STEPS: &[Row<Exec>] = steps![("open", 100, open)];

#[derive(Debug)]
struct Exec {
    vm: VmUuid,
    command: GuestCommand,
    attached: Attached,
    detach: bool,
    /// What the container's own program prints, in place of a command.
    console: bool,
}

impl Exec {
    async fn open(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.console {
            return self.attach(ctx).await;
        }
        must_run(ctx, self.vm, NOT_RUNNING).await?;
        let (compute, vm, command) = (ctx.drivers.compute.clone(), self.vm, self.command.clone());
        if self.detach {
            let process = compute.exec(vm, &command).await?;
            return Ok(ctx.drivers.sessions.detach(exec::run_alone(process))?);
        }
        let attached = self.attached;
        let opened = ctx.drivers.sessions.open(CONNECT, move |peer| async move {
            exec::serve(peer, compute.exec(vm, &command).await, attached).await;
        });
        ctx.finish_with(json!(opened.await?));
        Ok(())
    }

    async fn attach(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vm = self.vm;
        if !machine::record(ctx, "vmadm.load", vm)?.is_container() {
            let text = format!("docker_exec: AttachConsole: VM {vm} is a hardware VM");
            return Err(refuse(Code::NotSupported, text));
        }
        let runs = async {
            while !machine::runs(ctx, vm).await? {
                tokio::time::sleep(LOOK).await;
            }
            Ok::<(), TaskFailure>(())
        };
        match tokio::time::timeout(CONSOLE_WAIT, runs).await {
            Ok(runs) => runs?,
            Err(_) => return Err(refuse(Code::VmNotRunning, NOT_RUNNING)),
        }
        let console = ctx.drivers.sessions.console(vm).await?;
        let process = Console::new(console, ctx.drivers.compute.clone(), vm);
        let attached = self.attached;
        let opened = ctx.drivers.sessions.open(CONNECT, move |peer| async move {
            exec::serve(peer, Ok(Box::new(process)), attached).await;
        });
        ctx.finish_with(json!(opened.await?));
        Ok(())
    }
}

/// Refuses a VM that does not run, in these words.
pub(super) async fn must_run(
    ctx: &TaskContext,
    vm: VmUuid,
    words: &str,
) -> Result<(), TaskFailure> {
    machine::record(ctx, "vmadm.load", vm)?;
    match machine::runs(ctx, vm).await? {
        true => Ok(()),
        false => Err(refuse(Code::VmNotRunning, words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(command: Value, field: &str) {
        let mut params = DockerExec.example();
        params.insert("command".to_owned(), command);
        let failure = DockerExec.plan(&params).map(drop).unwrap_err();
        assert_eq!(failure.details.unwrap()["field"], field);
    }

    #[test]
    fn bad_commands_are_refused_by_field() {
        DockerExec.plan(&DockerExec.example()).unwrap();
        check_refused(json!("ls"), "command");
        check_refused(json!({}), "command.Cmd");
        check_refused(json!({ "Cmd": [] }), "command.Cmd");
        check_refused(json!({ "Cmd": [""] }), "command.Cmd");
        check_refused(json!({ "Cmd": ["a\0"] }), "command.Cmd");
        check_refused(json!({ "Cmd": [1] }), "command.Cmd");
        check_refused(json!({ "Cmd": ["x".repeat(MAX_BYTES + 1)] }), "command.Cmd");
        check_refused(json!({ "Cmd": ["ls"], "Env": ["=x"] }), "command.Env");
        check_refused(json!({ "Cmd": ["ls"], "User": 7 }), "command.User");
        check_refused(json!({ "AttachConsole": true, "Cmd": ["ls"] }), "command.Cmd");
        check_refused(json!({ "AttachConsole": true, "Detach": true }), "command.Detach");
        check_refused(json!({ "Cmd": ["ls"], "Tty": "perhaps" }), "command.Tty");
    }
}
