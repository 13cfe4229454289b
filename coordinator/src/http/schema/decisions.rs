//! What the allocator's endpoints answer.

use serde_json::{Map, Value, json};

use super::results::{count, exact, map_of, open, word};
use super::values::texts;
use super::{any, iso, list, server, uuid};

pub(super) fn allocation_step() -> Value {
    open(
        "What an algorithm of the allocator left",
        &["step"],
        &json!({
            "step": word("What it does"),
            "remaining": {
                "description": "Servers; with `counts` how many",
                "anyOf": [texts(), { "type": "integer" }],
            },
            "reasons": { "type": "object", "description": "Why a server is out, by uuid" },
        }),
    )
}

/// A server for a VM.
pub(crate) fn allocated() -> Value {
    open(
        "The server chosen, and why",
        &["server", "imgapiPeers", "id", "seed"],
        &json!({
            "server": server(),
            "steps": {
                "description": "What each algorithm left, in order",
                "anyOf": [list("AllocationStep"), { "type": "null" }],
            },
            "imgapiPeers": { "type": "array", "description": "Always empty" },
            "id": word("Of the decision, see /allocations/{id}"),
            "seed": { "description": "Decides shuffles; for a repetition" },
            "allocations": {
                "type": "array", "items": { "type": "object" },
                "description": "Of several VMs: each one's server",
            },
            "explain": any(),
            "least_changes": {
                "type": "array", "items": { "type": "object" },
                "description": "With a refusal: what would make it fit, each by itself",
            },
            "least_changes_cut": {
                "const": true, "description": "There may be more of them: not all were looked for",
            },
        }),
    )
}

/// What servers have left.
pub(crate) fn capacities() -> Value {
    let left = json!({
        "cpu": { "type": "number", "description": "Percent of a CPU" },
        "ram": { "type": "number", "description": "MiB" },
        "disk": { "type": "number", "description": "MiB" },
    });
    open(
        "What servers have left; may be negative",
        &["capacities"],
        &json!({
            "capacities": map_of(&exact("What one has left", &left)),
            "errors": {
                "type": "object", "additionalProperties": { "type": "string" },
                "description": "Why a server was left out",
            },
        }),
    )
}

/// What every view of a decision has.
fn decision_members() -> Map<String, Value> {
    let members = json!({
        "id": uuid(),
        "at": iso(),
        "kind": { "enum": ["allocate", "vms"], "description": "What asked" },
        "vm_uuid": word("The VM; empty if the request named none"),
        "server_uuid": { "type": ["string", "null"], "description": "The chosen server" },
        "score": { "type": ["number", "null"], "description": "Its score" },
        "failure": { "type": ["string", "null"], "description": "Why there is none" },
        "reserved": { "type": "boolean", "description": "Whether room was kept for the VM" },
        "keep": { "type": "boolean", "description": "The snapshot stays as long as the decision" },
    });
    members.as_object().cloned().unwrap_or_default()
}

/// Decisions, shortly.
pub(crate) fn decisions() -> Value {
    let one = exact("A decision", &Value::Object(decision_members()));
    json!({ "type": "array", "items": one })
}

/// One decision, whole.
pub(crate) fn decision() -> Value {
    let mut members = decision_members();
    let more = json!({
        "request": { "type": ["object", "null"], "description": "The body of the request" },
        "config_hash": word("SHA-256 of the policy, hexadecimal"),
        "shuffled": { "type": "boolean", "description": "Servers were looked at in random order" },
        "host_os_reference": { "type": "boolean", "description": "Linux hosts were dropped" },
        "seed": count("What shuffles were made from"),
        "recent": any(),
        "snapshot_revision": count("Of the fleet as the allocator saw it"),
        "fingerprint": word("What a replay must come to"),
        "steps": {
            "type": "array", "description": "How many servers each algorithm left",
            "items": exact("A step", &json!({
                "step": word("What it does"),
                "algorithm": { "type": ["string", "null"], "description": "None for the first" },
                "remaining": count("Servers"),
            })),
        },
        "best": {
            "type": "array", "description": "The best servers, each with its score, best first",
            // Not `prefixItems`, which clients that know older drafts can't read.
            "items": {
                "type": "array", "items": { "type": ["string", "number"] }, "minItems": 2,
                "maxItems": 2,
            },
        },
    });
    members.extend(more.as_object().cloned().unwrap_or_default());
    let mut all = exact("A decision", &Value::Object(members));
    if let Some(Value::Array(required)) = all.get_mut("required") {
        required.retain(|name| name != "recent");
    }
    all
}

/// A decision made again.
pub(crate) fn replayed() -> Value {
    let server = json!({ "type": ["string", "null"], "description": "The chosen server" });
    let score = json!({ "type": ["number", "null"], "description": "Its score" });
    let failure = json!({ "type": ["string", "null"], "description": "Why there is none" });
    let names = || json!({ "type": "array", "items": uuid() });
    let changed = exact(
        "A step that left another number of servers; null: it has no such step",
        &json!({
            "step": word("What it does"),
            "was": { "type": ["integer", "null"] },
            "is": { "type": ["integer", "null"] },
        }),
    );
    exact(
        "A decision made again",
        &json!({
            "id": uuid(),
            "identical": { "type": "boolean", "description": "Every verdict and score is the same" },
            "server": server, "score": score, "failure": failure,
            "seed": count("What shuffles were made from"),
            "fingerprint": word("Of all verdicts and scores"),
            "original": exact("What was decided then", &json!({
                "server": server, "score": score, "failure": failure,
                "fingerprint": word("Of all verdicts and scores"),
            })),
            "difference": exact("What is not as it was", &json!({
                "steps": { "type": "array", "items": changed },
                "best_gone": names(),
                "best_new": names(),
            })),
            "steps": {
                "description": "What each algorithm left, in order",
                "anyOf": [list("AllocationStep"), { "type": "null" }],
            },
        }),
    )
}

/// How many of a VM fit, and what is stranded.
pub(crate) fn plan() -> Value {
    let left = |doc: &str| {
        exact(
            doc,
            &json!({
                "cpu": { "type": "number", "description": "Percent of a CPU" },
                "ram": { "type": "number", "description": "MiB" },
                "disk": { "type": "number", "description": "MiB" },
            }),
        )
    };
    let server = exact(
        "A server",
        &json!({
            "server_uuid": uuid(),
            "hostname": { "type": ["string", "null"] },
            "fits": count("How many more fit"),
            "limited_by": { "type": ["string", "null"], "description": "The algorithm that refuses the next" },
            "reason": any(),
            "unreserved": left("What is left now"),
            "stranded": left("What is left once all are there"),
        }),
    );
    let fleet = exact(
        "All of them",
        &json!({
            "servers": count("How many were looked at"),
            "fits": count("How many more fit"),
            "unreserved": left("What is left now; a server that owes counts as none"),
            "stranded": left("What is left once all are there"),
        }),
    );
    exact(
        "How many fit, and what is stranded then",
        &json!({
            "servers": { "type": "array", "items": server },
            "fleet": fleet,
        }),
    )
}
