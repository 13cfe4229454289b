//! Records that agents make.

use serde_json::{Value, json};

use super::any;

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
