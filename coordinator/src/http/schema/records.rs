//! The records themselves. Closed (`additionalProperties: false`) where this coordinator makes
//! every member, so that the table's tests find a member that nobody documented.

use serde_json::{Value, json};

use super::{any, iso, reference, uuid};

/// An object with exactly these members.
fn closed(description: &str, required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object", "description": description, "additionalProperties": false,
        "required": required, "properties": properties,
    })
}

fn described(kind: &str, description: &str) -> Value {
    json!({ "type": kind, "description": description })
}

pub(super) fn task() -> Value {
    let required = ["id", "req_id", "task", "server_uuid", "status", "timestamp"];
    let entry = json!({
        "type": "object", "required": ["name", "timestamp", "event"],
        "additionalProperties": false,
        "properties": {
            "name": { "enum": ["finish", "error"] },
            "timestamp": iso(),
            "event": reference("TaskEvent"),
        },
    });
    closed(
        "A task of a server's agent",
        &required,
        &json!({
            "id": { "type": "string" },
            "req_id": described("string", "The request that made it"),
            "task": described("string", "Its kind"),
            "server_uuid": uuid(),
            "status": { "enum": ["active", "complete", "failure"] },
            "timestamp": iso(),
            "history": {
                "type": "array", "minItems": 1, "maxItems": 2, "items": entry,
                "description": "Only when it ended: `finish`, or `error` and `finish`",
            },
            "finished_at": iso(),
            "vm_uuid": uuid(),
            "ticket_uuid": uuid(),
            "error": { "type": "object", "description": "Why it failed, for programs" },
            "result": { "description": "What a failed task returned all the same" },
            "refusals": {
                "type": "array", "items": { "type": "object" },
                "description": "Servers that refused the VM",
            },
            "progress": { "type": "integer", "minimum": 0, "maximum": 100 },
            "events": {
                "type": "array", "items": { "type": "object" },
                "description": "What the agent said on the way",
            },
            "waiting_for": described("string", "In plain words; only while it is active"),
        }),
    )
}

/// An element of a task history; the agent makes it.
pub(super) fn history_entry() -> Value {
    json!({
        "type": "object", "description": "A task as its agent remembers it",
        "required": ["task", "status"],
        "properties": {
            "task": { "type": "string" },
            "status": { "enum": ["active", "finished", "failed"] },
            "started_at": any(),
            "finished_at": any(),
            "pid": any(),
            "params": { "type": ["object", "null"] },
            "errorCount": { "type": ["integer", "null"] },
            "messages": { "type": ["array", "null"] },
            "log": { "type": ["array", "null"] },
        },
    })
}
