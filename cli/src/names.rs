//! Names and ids for the completion of shells: what could stand where the cursor is.

use std::time::Duration;

use clap::{Arg, Command, CommandFactory as _};
use muster_shared::api::allocation::Decision;
use muster_shared::api::image::Manifest;
use muster_shared::api::job::Job;
use muster_shared::api::package::Package;
use muster_shared::api::server::Server;
use muster_shared::api::task::Task;
use muster_shared::api::ticket::Ticket;

use crate::answer::Answer;
use crate::cell::safe;
use crate::client::Client;
use crate::output::write_out;
use crate::{CliError, Connection, context, pick};

/// Nobody waits longer for a list of names.
const LIMIT: Duration = Duration::from_secs(3);
/// Most names of tasks, jobs and decisions, the newest.
const MOST: &str = "50";

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vm,
    Server,
    Image,
    Package,
    Task,
    Job,
    Ticket,
    Allocation,
    Context,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The words after `muster`; the last one is being typed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Prints what begins as the last word does. A shell that gets nothing offers what it knows itself,
/// so whatever goes wrong is no error here.
pub(crate) async fn run(connection: &Connection, args: &Args) -> Result<(), CliError> {
    let Some(kind) = kind_of(&args.words) else { return Ok(()) };
    let typed = args.words.last().map(String::as_str).unwrap_or_default();
    let found = tokio::time::timeout(LIMIT, names(connection, kind)).await;
    let mut names = found.unwrap_or(Ok(Vec::new())).unwrap_or_default();
    names.retain(|name| name.starts_with(typed) && *name == safe(name));
    names.sort();
    names.dedup();
    if names.is_empty() { Ok(()) } else { write_out(&names.join("\n")) }
}

/// What the last of the words names.
fn kind_of(words: &[String]) -> Option<Kind> {
    let mut command = crate::Args::command();
    command.build();
    let mut path: Vec<String> = Vec::new();
    let mut place = 0;
    let mut waiting: Option<Arg> = None;
    let (last, before) = words.split_last()?;
    for word in before {
        if waiting.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            waiting = option(&command, word);
        } else if let Some(inner) = command.find_subcommand(word).cloned() {
            path.push(inner.get_name().to_owned());
            (command, place) = (inner, 0);
        } else {
            place += 1;
        }
    }
    if let Some(option) = waiting {
        return kind(&path, option.get_id().as_str());
    }
    if last.starts_with('-') || command.has_subcommands() {
        return None;
    }
    let places: Vec<&Arg> = command.get_positionals().collect();
    // The last one may stand for several.
    let at = places.get(place).or(places.last())?;
    kind(&path, at.get_id().as_str())
}

/// The option that waits for a value after this word.
fn option(command: &Command, word: &str) -> Option<Arg> {
    let is = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word[1..] == short.to_string()),
    };
    let found = command.get_arguments().find(is)?;
    found.get_action().takes_values().then(|| found.clone())
}

fn kind(path: &[String], id: &str) -> Option<Kind> {
    let group = path.first().map(String::as_str).unwrap_or_default();
    match (group, id) {
        ("context", "name") | (_, "context") => Some(Kind::Context),
        (_, "vm" | "vms") => Some(Kind::Vm),
        ("why", "first" | "id") => Some(Kind::Vm),
        (_, "server" | "servers") => Some(Kind::Server),
        (_, "image" | "images" | "cdrom") => Some(Kind::Image),
        (_, "package" | "packages") => Some(Kind::Package),
        ("task", "id" | "ids") | ("events" | "logs", "task") => Some(Kind::Task),
        ("job", "uuid") => Some(Kind::Job),
        ("ticket", "uuid" | "holding") | (_, "ticket") => Some(Kind::Ticket),
        ("allocation", "id") => Some(Kind::Allocation),
        _ => None,
    }
}

async fn names(connection: &Connection, kind: Kind) -> Result<Vec<String>, CliError> {
    if kind == Kind::Context {
        return Ok(context::names());
    }
    let mut connection = connection.clone();
    context::apply(&mut connection)?;
    let client = Client::new(&connection)?;
    let newest = [("limit", MOST.to_owned())];
    Ok(match kind {
        Kind::Vm => {
            let vms = client.get_all("/vms", &[], pick::vm_uuid).await?;
            let name = |vm: &Answer<_>| pick::vm_alias(vm).unwrap_or_else(|| pick::vm_uuid(vm));
            vms.iter().map(name).collect()
        }
        Kind::Server => {
            let all: Vec<Server> = client.get("/servers", &[]).await?;
            all.into_iter().map(|server| server.record.hostname).collect()
        }
        Kind::Image => {
            let all: Vec<Manifest> = client.get("/images", &[]).await?;
            all.iter().map(|image| format!("{}@{}", image.name, image.version)).collect()
        }
        Kind::Package => {
            let all: Vec<Package> = client.get("/packages", &[]).await?;
            all.into_iter().map(|package| package.name).collect()
        }
        Kind::Task => {
            let active = [("status", "active".to_owned()), newest[0].clone()];
            let all: Vec<Task> = client.get("/tasks", &active).await?;
            all.iter().map(|task| task.id.to_string()).collect()
        }
        Kind::Job => {
            let all: Vec<Job> = client.get("/jobs", &newest).await?;
            all.iter().map(|job| job.uuid.to_string()).collect()
        }
        Kind::Ticket => {
            let all: Vec<Ticket> = client.get("/servers/default/tickets", &newest).await?;
            all.iter().map(|ticket| ticket.uuid.to_string()).collect()
        }
        Kind::Allocation => {
            let all: Vec<Decision> = client.get("/allocations", &newest).await?;
            all.iter().map(|decision| decision.id.to_string()).collect()
        }
        Kind::Context => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, wanted: Option<Kind>) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(kind_of(&words), wanted, "{line:?}");
    }

    #[test]
    fn each_argument_has_the_names_of_what_it_is_about() {
        check("vm get ", Some(Kind::Vm));
        check("vm stop web1 we", Some(Kind::Vm));
        check("vm console web", Some(Kind::Vm));
        check("--url http://x vm start ", Some(Kind::Vm));
        check("vm list --server ", Some(Kind::Server));
        check("vm create --image de", Some(Kind::Image));
        check("server get ", Some(Kind::Server));
        check("server images add cn1 ", Some(Kind::Image));
        check("image delete ", Some(Kind::Image));
        check("package get sm", Some(Kind::Package));
        check("package delete a ", Some(Kind::Package));
        check("vm create --package ", Some(Kind::Package));
        check("task wait ", Some(Kind::Task));
        check("job get ", Some(Kind::Job));
        check("allocation replay ", Some(Kind::Allocation));
        check("--context ", Some(Kind::Context));
        check("context use ", Some(Kind::Context));
        check("why ", Some(Kind::Vm));
        check("logs ", Some(Kind::Server));
        check("logs --follow --vm we", Some(Kind::Vm));
        check("logs --task ", Some(Kind::Task));
    }

    #[test]
    fn what_shells_know_themselves_is_left_to_them() {
        for line in ["", "vm", "vm ", "vm create --alias ", "vm list --sta", "image import "] {
            check(line, None);
        }
    }
}
