//! `muster why`: what a thing waits for, and what happened to it.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::ValueEnum;
use muster_shared::api::task::Task;
use serde_json::Value;

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{CLEAR, Output, compact, terminal_width, write_out};
use crate::page::{Page, when};
use crate::{CliError, pick, plain, wait};

/// Between two looks.
const WATCH: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The type is detected; give it first if a name is ambiguous. Examples:
  muster why web1                  what a VM is waiting for, where it is, what failed last
  muster why cn1                   why a server gets no VMs
  muster why task 3fa9c1d2         why a task is not done, or why it failed
  muster why ticket 9b1c55f0-…     who holds the resource, and whether there is a deadlock
  muster why job 01a2009f-…        the step that failed
  muster why allocation 0197a1c2   which server was chosen, or why none")]
pub(crate) struct Args {
    /// Its type, if the name is ambiguous; otherwise its id or name.
    #[arg(value_name = "KIND")]
    first: String,
    /// Its id, the beginning of its id, or its name.
    id: Option<String>,
    /// Shows everything that is known.
    #[arg(long, short)]
    verbose: bool,
    /// Looks again every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Vm,
    Server,
    Task,
    Job,
    Ticket,
    Allocation,
}

/// What was asked for, found.
struct Thing {
    kind: Kind,
    id: String,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let thing = match &args.id {
        Some(id) => {
            let kind = Kind::from_str(&args.first, true);
            let wrong = |_| {
                let kinds = Kind::value_variants().iter().filter_map(Kind::to_possible_value);
                let kinds: Vec<_> = kinds.map(|kind| kind.get_name().to_owned()).collect();
                let first = &args.first;
                CliError::Usage(format!("{first:?} is not one of {}", kinds.join(", ")))
            };
            find(client, kind.map_err(wrong)?, id).await?
        }
        None => find_any(client, &args.first).await?,
    };
    loop {
        let answer = ask(client, &thing).await?;
        if output.is_json() {
            output.object(&answer)?;
        } else {
            let page = page(client, &thing, &answer, args.verbose).await?;
            let clear = if args.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
            write_out(&format!("{clear}{}", page.text(terminal_width())))?;
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH).await;
    }
}

async fn find(client: &Client, kind: Kind, name: &str) -> Result<Thing, CliError> {
    let id = match kind {
        Kind::Vm => vm(client, name).await?,
        Kind::Server => pick::server(client, name).await?.record.uuid.to_string(),
        Kind::Task => pick::task(client, name).await?,
        Kind::Job => pick::job(client, name).await?,
        Kind::Allocation => pick::allocation(client, name).await?,
        Kind::Ticket => pick::ticket(client, name).await?,
    };
    Ok(Thing { kind, id })
}

/// One that is still being made is in no list.
async fn vm(client: &Client, name: &str) -> Result<String, CliError> {
    match pick::vm(client, name).await {
        Ok(vm) => Ok(vm.vm.uuid.to_string()),
        Err(CliError::NotFound(_)) if name.parse::<uuid::Uuid>().is_ok() => Ok(name.to_owned()),
        Err(other) => Err(other),
    }
}

/// The first kind, in the order of the enum, that has such a thing.
async fn find_any(client: &Client, name: &str) -> Result<Thing, CliError> {
    for kind in Kind::value_variants() {
        let found = match find(client, *kind, name).await {
            Ok(thing) => ask(client, &thing).await.map(|_| thing),
            Err(error) => Err(error),
        };
        match found {
            Ok(thing) => return Ok(thing),
            Err(CliError::NotFound(_)) => {}
            Err(other) => return Err(other),
        }
    }
    let text =
        format!("nothing is called {name:?}: no VM, server, task, job, ticket or allocation");
    Err(CliError::NotFound(text))
}

async fn ask(client: &Client, thing: &Thing) -> Result<Value, CliError> {
    let id = &thing.id;
    let path = match thing.kind {
        Kind::Vm => format!("/why/vm/{id}"),
        Kind::Server => format!("/why/server/{id}"),
        Kind::Task => format!("/why/task/{id}"),
        Kind::Ticket => format!("/why/ticket/{id}"),
        Kind::Job => format!("/jobs/{id}"),
        Kind::Allocation => format!("/allocations/{id}"),
    };
    client.get(&path, &[]).await
}

async fn page(
    client: &Client,
    thing: &Thing,
    answer: &Value,
    verbose: bool,
) -> Result<Page, CliError> {
    let mut page = match thing.kind {
        Kind::Job => job(answer),
        Kind::Allocation => allocation(answer),
        Kind::Vm | Kind::Server | Kind::Task | Kind::Ticket => {
            let mut page = Page::new(compact(&answer["text"]));
            explained(&mut page, answer);
            page
        }
    };
    if thing.kind == Kind::Vm
        && let Some(failed) = last_failure(client, answer, &thing.id).await?
    {
        page.group("Last failure")
            .line(&failed.task, wait::reason(&failed))
            .maybe("When", failed.finished_at.as_deref().map(when));
        page.next(format!("muster task get {}", failed.id));
    }
    for task in answer["open_tasks"].as_array().into_iter().flatten() {
        let id = task["id"].as_str().or(task.as_str());
        page.next(format!("muster why task {}", id.unwrap_or_default()));
    }
    if verbose {
        page.group("All");
        rest(&mut page, "", answer);
    }
    Ok(page)
}

/// The members that say more than the text.
fn explained(page: &mut Page, answer: &Value) {
    page.group("Now");
    let server = &answer["server"];
    for (name, value) in [
        ("State", &answer["state_reason"]),
        ("Server", &server["text"]),
        ("Remembered since", &answer["since"]),
        ("Progress", &answer["progress"]),
        ("Last step", &answer["last_event"]["name"]),
    ] {
        if !value.is_null() {
            page.line(name, compact(value));
        }
    }
    if let Some(time) = answer["created_at"].as_str() {
        page.line("Created", when(time));
    }
    page.group("Subtasks");
    for part in answer["subtasks"].as_array().into_iter().flatten() {
        page.line(
            &compact(&part["task"]),
            format!("{}, {}", compact(&part["status"]), compact(&part["id"])),
        );
    }
    page.group("Refused by");
    for refusal in answer["refusals"].as_array().into_iter().flatten() {
        page.line(&compact(&refusal["server_uuid"]), compact(&refusal["message"]));
    }
}

fn job(job: &Value) -> Page {
    let results = job["chain_results"].as_array().map_or(&[][..], Vec::as_slice);
    let has_failed = |step: &&Value| step["error"].as_str().is_some_and(|it| !it.is_empty());
    let failed = results.iter().rfind(has_failed);
    let title = |step: &Value| plain::job_step(&compact(&step["name"]));
    let why = failed.map(|step| format!(": {}: {}", title(step), compact(&step["error"])));
    let (name, state) = (compact(&job["name"]), compact(&job["execution"]));
    let mut page = Page::new(format!("job {name} is {state}{}", why.unwrap_or_default()));
    page.group("Steps");
    for step in job["steps"].as_array().into_iter().flatten() {
        let error = step["error"].as_str().map(|error| format!(", {error}")).unwrap_or_default();
        page.line(&title(step), format!("{}{error}", compact(&step["state"])));
    }
    page.next(format!("muster job get {}", compact(&job["uuid"])));
    page
}

fn allocation(decision: &Value) -> Page {
    let mut page = Page::new(match decision["server_uuid"].as_str() {
        Some(server) => format!("server {server} was chosen"),
        None => format!("no server was chosen: {}", compact(&decision["failure"])),
    });
    page.group("Steps");
    let mut before = None;
    // Only those that removed a server say something.
    for step in decision["steps"].as_array().into_iter().flatten() {
        let remaining = step["remaining"].as_u64();
        if before != remaining {
            let title = compact(&step["step"]);
            page.line(&format!("{} left", compact(&step["remaining"])), plain::step(&title));
        }
        before = remaining;
    }
    page.next(format!("muster allocation get {}", compact(&decision["id"])));
    page
}

/// The newest task about the machine that failed.
async fn last_failure(client: &Client, answer: &Value, vm: &str) -> Result<Option<Task>, CliError> {
    let mut query = vec![("status", "failure".to_owned())];
    query.extend(answer["server_uuid"].as_str().map(|server| ("server_uuid", server.to_owned())));
    let id = |task: &Answer<Task>| task.id.to_string();
    let failed = client.get_all("/tasks", &query, id).await?;
    let about = |task: &&Answer<Task>| task.vm_uuid.is_some_and(|of| of.to_string() == vm);
    Ok(failed.iter().rfind(about).map(|task| Task::clone(task)))
}

fn rest(page: &mut Page, outer: &str, value: &Value) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                let name = if outer.is_empty() { name.clone() } else { format!("{outer}.{name}") };
                rest(page, &name, value);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (number, item) in items.iter().enumerate() {
                rest(page, &format!("{outer}.{number}"), item);
            }
        }
        Value::Array(items) => {
            page.line(outer, items.iter().map(compact).collect::<Vec<_>>().join(", "));
        }
        plain => {
            page.line(outer, compact(plain));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_job_begins_with_the_step_that_failed() {
        let answer = json!({
            "uuid": "j", "name": "server-reboot", "execution": "failed",
            "chain_results": [
                { "name": "check", "error": "" }, { "name": "cnapi.reboot", "error": "refused" },
            ],
            "steps": [{ "name": "check", "state": "ok", "error": null },
                      { "name": "reboot", "state": "failed", "error": "refused" }],
        });
        let text = job(&answer).text(None);
        assert!(text.starts_with("job server-reboot is failed: reboot: refused\n"), "{text}");
        assert!(text.contains("failed, refused") && text.contains("muster job get j"), "{text}");
    }

    #[test]
    fn a_decision_shows_the_steps_that_removed_servers() {
        let answer = json!({
            "id": "d", "server_uuid": null, "failure": "no servers with enough RAM",
            "steps": [
                { "step": "Servers", "remaining": 2 }, { "step": "Servers that run", "remaining": 2 },
                { "step": "Servers with enough RAM", "remaining": 0 },
            ],
        });
        let text = allocation(&answer).text(None);
        assert!(text.starts_with("no server was chosen: no servers with enough RAM"), "{text}");
        assert!(text.contains("0 left  Servers with enough RAM"), "{text}");
        assert!(!text.contains("Servers that run"), "{text}");
    }
}
