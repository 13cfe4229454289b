//! What a change of the store means to readers of events. Pure.

use muster_shared::clock::iso;
use muster_shared::secrets::masked;
use serde_json::{Map, Value, json};

use super::{Change, EventKind, members};
use crate::store;

/// The first parts of the keys whose records readers are told about.
const TOLD: &[&str] = &["roster", "vms", "task", "ticket", "job"];

/// What a change of the store means to readers; `None` for records that are nobody's business.
pub(super) fn change_of(event: &store::Event) -> Option<Change> {
    let (prefix, rest) = event.key.split_once('/').filter(|(p, _)| TOLD.contains(p))?;
    let value = event.value.as_deref().map(serde_json::from_slice::<Map<String, Value>>);
    let value = value
        .transpose()
        .inspect_err(|error| tracing::error!(key = event.key, %error, "a record can't be told"))
        .ok()?;
    let get = |name: &str| value.as_ref().and_then(|v| v.get(name)).cloned().unwrap_or_default();
    let (kind, data) = match (prefix, &value) {
        ("roster", _) => {
            let since = get("since").as_str().and_then(|at| at.parse().ok()).map(iso);
            let data = json!({
                "server_uuid": rest, "status": get("status"), "since": since,
                "removed": value.is_none(),
            });
            (EventKind::Server, data)
        }
        ("vms", _) => {
            let (server, vm) = rest.split_once('/')?;
            let index = get("index");
            let data = json!({
                "vm_uuid": vm, "server_uuid": server, "state": get("state"),
                "zone_state": get("zone_state"), "owner_uuid": get("owner_uuid"),
                "alias": index.get("alias"), "removed": value.is_none(),
            });
            (EventKind::Vm, data)
        }
        // Old ones that are deleted are no news.
        ("task", Some(_)) => {
            let data = json!({
                "id": get("id"), "task": get("task"), "server_uuid": get("server_uuid"),
                "vm_uuid": get("vm_uuid"), "status": get("status"), "req_id": get("req_id"),
                "accepted": get("accepted"), "timestamp": get("timestamp"),
                "finished_at": get("finished_at"), "error": masked(&get("error")),
            });
            (EventKind::Task, data)
        }
        ("ticket", Some(_)) => (EventKind::Ticket, ticket(&get)),
        ("job", Some(_)) => (EventKind::Job, job(&get)),
        _ => return None,
    };
    let mut data = members(data);
    data.insert("revision".to_owned(), json!(event.revision.to_string()));
    Some(Change { kind, data })
}

fn ticket(get: &dyn Fn(&str) -> Value) -> Value {
    // The queue's members stand in the record, or in a member of their own.
    let queue = get("queue");
    let of = |name: &str| queue.get(name).cloned().unwrap_or_else(|| get(name));
    json!({
        "uuid": get("uuid"), "server_uuid": of("server_uuid"), "scope": of("scope"),
        "id": of("id"), "action": get("action"), "status": get("status"),
    })
}

fn job(get: &dyn Fn(&str) -> Value) -> Value {
    let chain = get("chain");
    let step = |step: &Value| json!({ "name": step["name"], "state": step["state"] });
    let steps: Vec<Value> = chain.as_array().into_iter().flatten().map(step).collect();
    json!({
        "uuid": get("uuid"), "name": get("name"), "server_uuid": get("server_uuid"),
        "execution": get("execution"), "steps": steps,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::store::Revision;

    fn event(key: &str, value: Option<&Value>, counter: u64) -> store::Event {
        let value = value.map(|value| Bytes::from(value.to_string()));
        store::Event { key: key.to_owned(), value, revision: Revision { epoch: 1, counter } }
    }

    #[test]
    fn changes_of_the_store_are_told_in_the_api_s_words() {
        let server = "11111111-1111-4111-8111-111111111111";
        let roster = event(&format!("roster/{server}"), Some(&json!({ "status": "unknown" })), 7);
        let change = change_of(&roster).unwrap();
        assert_eq!(change.kind, EventKind::Server);
        assert_eq!(change.data["status"], "unknown");
        assert_eq!(change.data["server_uuid"], server);
        assert_eq!(change.data["revision"], "1.7");
        let gone = change_of(&event(&format!("vms/{server}/v"), None, 8)).unwrap();
        assert_eq!((gone.kind, &gone.data["removed"]), (EventKind::Vm, &json!(true)));
        assert_eq!(change_of(&event("task/t", None, 9)), None);
        assert_eq!(change_of(&event("sysinfo/x", Some(&json!({})), 9)), None);
        let ticket =
            json!({ "uuid": "u", "queue": { "scope": "vm", "id": "i" }, "status": "active" });
        let ticket = change_of(&event("ticket/u", Some(&ticket), 9)).unwrap();
        assert_eq!(
            (&ticket.data["scope"], &ticket.data["status"]),
            (&json!("vm"), &json!("active"))
        );
    }
}
