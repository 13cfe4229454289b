//! `muster task get`, for people.

use muster_shared::api::task::{EntryKind, Task, TaskStatus};
use serde_json::Value;

use crate::cell::{Cell, span};
use crate::client::Client;
use crate::output::compact;
use crate::page::{Page, when};
use crate::{CliError, pick, wait};

/// Prints the task.
pub(crate) async fn show(client: &Client, task: &Task) -> Result<(), CliError> {
    let server = pick::hostnames(client).await?.remove(&task.server_uuid.to_string());
    let vm = match &task.vm_uuid {
        Some(vm) => pick::aliases(client).await?.remove(&vm.to_string()),
        None => None,
    };
    page(task, server.as_deref(), vm.as_deref()).print()
}

fn page(task: &Task, server: Option<&str>, vm: Option<&str>) -> Page {
    let server_id = task.server_uuid.to_string();
    let on = server.unwrap_or(&server_id);
    let of = vm.map(|vm| format!(" of {vm}")).unwrap_or_default();
    let outcome = match task.status {
        TaskStatus::Active => match &task.waiting_for {
            Some(cause) => format!("is active, waiting for {cause}"),
            None => "is active".to_owned(),
        },
        TaskStatus::Complete => "is complete".to_owned(),
        TaskStatus::Failure => format!("failed: {}", wait::reason(task)),
    };
    let mut page = Page::new(format!("{}{of} on {on} {outcome}", task.task));
    page.group("Task")
        .line("Id", task.id.as_str())
        .line("Server", format!("{on} ({server_id})"))
        .maybe("VM", task.vm_uuid.map(|uuid| named(vm, &uuid.to_string())))
        .line("Created", when(&task.timestamp))
        .maybe("Ended", task.finished_at.as_deref().map(when))
        .maybe("Took", took(task))
        .maybe("Code", task.error.as_ref().map(|error| error.code.to_string()))
        .maybe("Progress", task.progress.map(|percent| format!("{percent} %")))
        .line("Request", &task.req_id)
        .maybe("Ticket", task.ticket_uuid.map(|uuid| uuid.to_string()));
    page.group("Steps");
    for event in task.events.iter().filter(|event| event.name != "progress") {
        page.line(&event.name.replacen(':', " ", 1), when(&event.timestamp));
    }
    page.group("Servers that refused the VM");
    for refusal in &task.refusals {
        page.line(&Cell::id(&refusal.server_uuid).text, &refusal.message);
    }
    page.group("Result");
    for (name, value) in results(task) {
        page.line(&name, value);
    }
    match task.status {
        TaskStatus::Active => {
            page.next(format!("muster task wait {}", task.id));
            page.next(format!("muster task cancel {}", task.id));
            page.next(format!("muster why task {}", task.id));
        }
        TaskStatus::Failure => {
            if let Some(vm) = task.vm_uuid {
                page.next(format!("muster why vm {vm}"));
            }
            page.next(format!("muster why server {server_id}"));
        }
        TaskStatus::Complete => {}
    }
    page
}

fn named(name: Option<&str>, id: &str) -> String {
    name.map_or_else(|| id.to_owned(), |name| format!("{name} ({id})"))
}

fn took(task: &Task) -> Option<String> {
    let at = |time: &str| time.parse::<jiff::Timestamp>().ok();
    let (from, to) = (at(&task.timestamp)?, at(task.finished_at.as_deref()?)?);
    u64::try_from(to.duration_since(from).as_secs()).ok().map(span)
}

/// What it returned; of what is large only that it is there.
fn results(task: &Task) -> Vec<(String, String)> {
    let finish = task.history.iter().find(|entry| entry.name == EntryKind::Finish);
    let members = finish.and_then(|entry| entry.event.as_object()).into_iter().flatten();
    let shown = |value: &Value| match value {
        Value::Object(members) => {
            format!("an object of {} members (-o json shows it)", members.len())
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            format!("a list of {} (-o json shows it)", items.len())
        }
        Value::Array(items) => items.iter().map(compact).collect::<Vec<_>>().join(", "),
        plain => compact(plain),
    };
    members.map(|(name, value)| (name.clone(), shown(value))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_begins_with_its_reason() {
        let task: Task = serde_json::from_value(json!({
            "id": "11111111-1111-4111-8111-111111111111", "req_id": "r", "task": "machine_reboot",
            "status": "failure", "timestamp": "2026-05-01T10:00:00.000Z",
            "finished_at": "2026-05-01T10:03:05.000Z", "server_uuid": uuid::Uuid::nil(),
            "vm_uuid": uuid::Uuid::nil(),
            "error": { "code": "StoreFull", "message": "disk full" },
            "history": [
                { "name": "error", "timestamp": "", "event": { "error": { "message": "disk full" } } },
                { "name": "finish", "timestamp": "", "event": { "vm": { "a": 1 }, "n": [1, 2] } },
            ],
        }))
        .unwrap();
        let text = page(&task, Some("cn1"), Some("web1")).text(None);
        assert!(text.starts_with("machine_reboot of web1 on cn1 failed: disk full\n"), "{text}");
        for part in ["StoreFull", "3m", "an object of 1 members", "1, 2", "muster why vm"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
