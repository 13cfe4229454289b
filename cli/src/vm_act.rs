//! `muster vm start`, `stop`, `reboot`, `kill` and `delete`: what is done to one machine or several.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use muster_shared::api::task::TaskStarted;
use serde_json::{Value, json};

use crate::CliError;
use crate::client::Client;
use crate::confirm::meant;
use crate::output::{Output, print};
use crate::vm::Target;
use crate::vm_select::Select;
use crate::wait::WaitArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct Action {
    #[command(flatten)]
    select: Select,

    /// Skips the confirmation. Without a terminal it is needed only with selectors such as --all.
    #[arg(long, short)]
    yes: bool,

    /// Only lists the VMs that would be affected.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    action: Action,

    /// Boots from this kind of device, for this boot only.
    #[arg(long, value_enum, value_name = "DEVICE")]
    boot_once: Option<BootDevice>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BootDevice {
    Disk,
    Cdrom,
    Network,
}

impl BootDevice {
    fn letter(self) -> &'static str {
        match self {
            Self::Disk => "c",
            Self::Cdrom => "d",
            Self::Network => "n",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Halt {
    #[command(flatten)]
    action: Action,

    /// Seconds the guest gets to shut down [default: 180].
    #[arg(long, value_name = "SECONDS", conflicts_with = "force")]
    grace: Option<u64>,

    /// Powers off at once, without asking the guest.
    #[arg(long)]
    force: bool,
}

impl Halt {
    fn body(&self) -> Value {
        let mut body = json!({});
        if self.force {
            body["force"] = json!(true);
        }
        if let Some(grace) = self.grace {
            body["timeout"] = json!(grace);
        }
        body
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    #[command(flatten)]
    action: Action,

    /// Signal: KILL powers off, TERM presses the power button, HUP resets, INT lets the hypervisor
    /// quit, STOP and CONT pause and resume, USR1 sends an NMI.
    #[arg(long, value_name = "SIGNAL", default_value = "KILL")]
    signal: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    action: Action,

    /// Succeeds even if a VM does not exist.
    #[arg(long)]
    if_exists: bool,
}

pub(crate) async fn start(client: &Client, output: &Output, args: Start) -> Result<(), CliError> {
    // Only a machine that is started here boots from the device.
    let body = match args.boot_once {
        Some(device) => json!({ "once": device.letter() }),
        None => json!({ "idempotent": true }),
    };
    act(client, output, "start", &args.action, &body).await
}

pub(crate) async fn stop(client: &Client, output: &Output, args: Halt) -> Result<(), CliError> {
    let mut body = args.body();
    body["idempotent"] = json!(true);
    act(client, output, "stop", &args.action, &body).await
}

pub(crate) async fn reboot(client: &Client, output: &Output, args: Halt) -> Result<(), CliError> {
    act(client, output, "reboot", &args.action, &args.body()).await
}

pub(crate) async fn kill(client: &Client, output: &Output, args: Kill) -> Result<(), CliError> {
    act(client, output, "kill", &args.action, &json!({ "signal": args.signal })).await
}

pub(crate) async fn delete(client: &Client, output: &Output, args: Delete) -> Result<(), CliError> {
    let targets = args.action.select.find(client, args.if_exists).await?;
    let question = |names: &str| format!("Destroy {names} with all disks and snapshots?");
    if args.action.agreed(output, "delete", &targets, true, question)? {
        all(client, output, "delete", args.action.wait, &targets, None).await?;
    }
    Ok(())
}

/// Does something to each of the machines; nothing is begun unless all are found.
async fn act(
    client: &Client,
    output: &Output,
    verb: &str,
    action: &Action,
    body: &Value,
) -> Result<(), CliError> {
    let targets = action.select.find(client, false).await?;
    let question = |names: &str| format!("{verb} {names}?");
    if action.agreed(output, verb, &targets, false, question)? {
        all(client, output, verb, action.wait, &targets, Some(body)).await?;
    }
    Ok(())
}

impl Action {
    /// Whether it is to be done: not in a dry run, and not unless somebody means machines that
    /// nobody named, or that are destroyed.
    fn agreed(
        &self,
        output: &Output,
        verb: &str,
        targets: &[Target],
        destroys: bool,
        question: impl Fn(&str) -> String,
    ) -> Result<bool, CliError> {
        let names: Vec<String> = targets.iter().map(Target::shown).collect();
        let names = names.join(", ");
        if targets.is_empty() {
            let none: Vec<Value> = Vec::new();
            output.done(&format!("{verb}: no VM matches"), &json!(none))?;
            return Ok(false);
        }
        if self.dry_run {
            let uuids: Vec<_> = targets.iter().map(|target| target.uuid).collect();
            output.done(&format!("would {verb} {names}"), &json!(uuids))?;
            return Ok(false);
        }
        let unnamed = self.select.by_what_they_have();
        if unnamed && !self.yes && !std::io::stdin().is_terminal() {
            let text = format!(
                "this affects {} VMs: confirm with --yes, or preview with --dry-run",
                targets.len()
            );
            return Err(CliError::Usage(text));
        }
        if unnamed || destroys {
            meant(&question(&names), self.yes)?;
        }
        Ok(true)
    }
}

/// Begins the work on all machines, then waits for each. What fails stops no other; the first failure
/// is returned, the others are reported at once.
async fn all(
    client: &Client,
    output: &Output,
    verb: &str,
    wait: WaitArgs,
    targets: &[Target],
    body: Option<&Value>,
) -> Result<(), CliError> {
    let mut begun: Vec<Result<TaskStarted, CliError>> = Vec::new();
    for target in targets {
        begun.push(match body {
            Some(body) => client.post(&target.path(&format!("/{verb}")), body).await,
            None => client.delete(&target.path("")).await,
        });
    }
    let mut objects = Vec::new();
    let mut first = None;
    for (target, started) in targets.iter().zip(begun) {
        let title = format!("{verb} {}", target.shown());
        let outcome = match started {
            Ok(started) => wait.outcome(client, &title, &started, &target.object(&started)).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok((sentence, object)) => {
                if !output.is_json() {
                    print(&sentence)?;
                }
                objects.push(object);
            }
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => error.report(output.is_json()),
        }
    }
    if output.is_json() && !objects.is_empty() {
        let one = objects.len() == 1 && targets.len() == 1;
        output.object(&if one { objects.remove(0) } else { Value::Array(objects) })?;
    }
    first.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    enum Line {
        Stop(Halt),
        Kill(Kill),
    }

    #[test]
    fn a_kill_kills_unless_another_signal_is_named() {
        let signal = |words: &[&str]| match Line::parse_from([&["vm", "kill"], words].concat()) {
            Line::Kill(args) => args.signal,
            Line::Stop(_) => panic!("another command"),
        };
        assert_eq!(signal(&["web1"]), "KILL");
        assert_eq!(signal(&["web1", "web2", "--signal", "HUP"]), "HUP");
    }

    #[test]
    fn a_stop_says_how_much_time_there_is() {
        let body = |words: &[&str]| match Line::try_parse_from([&["vm", "stop"], words].concat()) {
            Ok(Line::Stop(args)) => Ok(args.body()),
            Ok(Line::Kill(_)) => panic!("another command"),
            Err(_) => Err(()),
        };
        assert_eq!(body(&["web1"]), Ok(json!({})));
        assert_eq!(body(&["web1", "--grace", "20"]), Ok(json!({ "timeout": 20 })));
        assert_eq!(body(&["web1", "--force"]), Ok(json!({ "force": true })));
        assert_eq!(body(&["web1", "--force", "--grace", "20"]), Err(()));
        assert_eq!(body(&[]), Err(()));
    }
}
