//! What the agent knows about one task, and how others see it (history, results).

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::secrets::masked;
use muster_shared::wire::{INLINE_EDGE_BYTES, MAX_INLINE_BYTES, Outcome, TaskError, TaskResult};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::Params;

/// Largest result that is kept; with its envelope it must fit a frame.
pub(super) const MAX_RESULT_BYTES: usize = 1024 * 1024;
/// Longest error message, bytes.
const MAX_MESSAGE_BYTES: usize = 8 * 1024;
/// Largest error details.
const MAX_DETAILS_BYTES: usize = 64 * 1024;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted; waits for its queue and its locks.
    Queued,
    /// Has begun.
    Running,
    /// Done.
    Finished,
    /// Failed, with the reason.
    Failed,
    /// Could not go on after a restart.
    Interrupted,
    /// Stopped on request.
    Cancelled,
}

impl State {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Which way a task walks through its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Applying them in order.
    #[default]
    Apply,
    /// Undoing them in reverse.
    Undo,
}

/// Who asked for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A coordinator, which gets the result and acknowledges it.
    Coordinator,
    /// The agent itself, or the local HTTP over TCP; nobody acknowledges.
    Local,
    /// The local HTTP over the unix socket: root, or the agent's own user; nobody acknowledges.
    Socket,
}

impl Origin {
    /// Whether nobody acknowledges.
    #[must_use]
    pub fn is_local(self) -> bool {
        match self {
            Self::Coordinator => false,
            Self::Local | Self::Socket => true,
        }
    }
}

/// The step a task is at: it may have done anything from nothing to all of its work, and those
/// before it are done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtStep {
    /// Position in the plan.
    pub index: usize,
    /// Its name; a plan of another shape (after an upgrade) is noticed by it.
    pub name: String,
}

/// One task. `params`, `result` and `notes` are stored apart from the rest, because they are large
/// and rarely change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The task.
    pub id: TaskId,
    /// Order of acceptance on this agent.
    pub seq: u64,
    /// The request that made it.
    #[serde(default)]
    pub req_id: String,
    /// Its kind.
    pub task: String,
    /// Its parameters, as sent.
    #[serde(skip)]
    pub params: Params,
    /// [`fingerprint`] of kind and parameters.
    pub fingerprint: String,
    /// The task it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<TaskId>,
    /// Who asked.
    pub origin: Origin,
    /// The VM it is about, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmUuid>,
    /// Where it is.
    pub state: State,
    /// Which way it walks.
    #[serde(default)]
    pub phase: Phase,
    /// The step it is at; `None` before the first.
    #[serde(default)]
    pub step: Option<AtStep>,
    /// How often it was started; more than 1 after restarts of the agent.
    pub attempt: u32,
    /// Boot of the host in which it last ran.
    pub boot_id: String,
    /// Start of the agent in which it last ran.
    pub instance_id: Uuid,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it began.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// Longest run time asked for, ms; the kind's own limit applies as well.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// What it returns; set by steps, so there may be one before the end.
    #[serde(skip)]
    pub result: Value,
    /// What its steps tell each other; `null` once it has ended.
    #[serde(skip)]
    pub notes: Value,
    /// Why it failed; set when an undo begins.
    #[serde(default)]
    pub error: Option<TaskError>,
    /// Size of the parameters as JSON.
    #[serde(default)]
    pub params_bytes: usize,
    /// Size of the result as JSON.
    #[serde(default)]
    pub result_bytes: usize,
    /// Size of the notes as JSON.
    #[serde(default)]
    pub notes_bytes: usize,
}

impl Record {
    /// Takes over what the steps have gathered; `true` when that is something new.
    pub(super) fn set_gathered(&mut self, result: Value, notes: Value) -> bool {
        let changed = self.result != result || self.notes != notes;
        (self.result, self.notes) = (result, notes);
        changed
    }

    /// How it ended, as the coordinator is told.
    #[must_use]
    pub fn outcome(&self) -> TaskResult {
        let done = self.state == State::Finished;
        TaskResult {
            id: self.id.clone(),
            status: if done { Outcome::Complete } else { Outcome::Failure },
            result: self.result.clone(),
            error: self.error.clone(),
            finished_at: self.finished_at.map(iso).unwrap_or_default(),
        }
    }

    /// The whole record for `GET /tasks/:id`, secrets masked.
    #[must_use]
    pub fn view(&self, acked: bool, events: &[Value]) -> Value {
        let mut view = serde_json::to_value(self).unwrap_or_default();
        view["params"] = masked(&Value::Object(self.params.clone()));
        view["result"] = masked(&self.result);
        view["acked"] = Value::Bool(acked);
        view["messages"] = Value::Array(events.to_vec());
        for (key, at) in [
            ("created_at", Some(self.created_at)),
            ("started_at", self.started_at),
            ("finished_at", self.finished_at),
        ] {
            view[key] = at.map(iso).map_or(Value::Null, Value::String);
        }
        view
    }

    /// An entry of `GET /history` in the reference agent's form (`pid` is the agent's own: tasks
    /// are no processes here).
    #[must_use]
    pub fn history_entry(&self, pid: u32, events: &[Value]) -> Value {
        let status = match self.state {
            State::Queued | State::Running => "active",
            State::Finished => "finished",
            State::Failed | State::Interrupted | State::Cancelled => "failed",
        };
        let mut messages = events.to_vec();
        let mut message = |name: &str, event: Value, at: Option<Timestamp>| {
            let timestamp = at.map(iso).unwrap_or_default();
            messages.push(json!({
                "type": "event", "name": name, "event": event, "timestamp": timestamp,
            }));
        };
        if let Some(error) = &self.error {
            let mut event = json!({ "error": error.message });
            if let Some(details) = &error.details {
                event["details"] = details.clone();
            }
            message("error", event, self.finished_at);
        }
        if self.state.is_terminal() {
            let finish = match &self.result {
                result if self.error.is_none() && !result.is_null() => masked(result),
                _ => json!({}),
            };
            message("finish", finish, self.finished_at);
        }
        let mut entry = json!({
            "id": self.id,
            "req_id": self.req_id,
            "started_at": iso(self.started_at.unwrap_or(self.created_at)),
            "task": self.task,
            "pid": pid,
            "params": masked(&Value::Object(self.params.clone())),
            "status": status,
            "errorCount": u8::from(self.error.is_some()),
            "messages": messages,
            "log": [],
        });
        if let Some(at) = self.finished_at {
            entry["finished_at"] = Value::String(iso(at));
        }
        entry
    }
}

/// SHA-256 (hex) of the canonical JSON (keys sorted at every level) of `{task, params}`.
#[must_use]
pub fn fingerprint(task: &str, params: &Params) -> String {
    let mut hash = Sha256::new();
    hash.update(task.as_bytes());
    hash.update([0]);
    hash.update(canonical(&Value::Object(params.clone())).to_string().as_bytes());
    hex::encode(hash.finalize())
}

fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut sorted: Vec<_> = map.iter().collect();
            sorted.sort_by_key(|(key, _)| key.as_str());
            Value::Object(sorted.into_iter().map(|(k, v)| (k.clone(), canonical(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

/// A result that fits a frame: of the longest strings only the first and last 64 KiB stay, as far
/// as need be (a coordinator puts long ones aside as a whole); what is still too large is replaced
/// by a remark.
#[must_use]
pub fn bounded_result(mut result: Value) -> Value {
    loop {
        let bytes = json_len(&result);
        if bytes <= MAX_RESULT_BYTES {
            return result;
        }
        match longest_text(&mut result) {
            Some(text) => *text = edges(text, INLINE_EDGE_BYTES),
            None => {
                let limit = MAX_RESULT_BYTES;
                let remark = format!("a result of {bytes} bytes is over the limit of {limit}");
                return json!({ "omitted": remark });
            }
        }
    }
}

/// The longest string among the members that is worth cutting.
fn longest_text(result: &mut Value) -> Option<&mut String> {
    let texts = result.as_object_mut()?.values_mut().filter_map(|member| match member {
        Value::String(text) if text.len() > MAX_INLINE_BYTES => Some(text),
        _ => None,
    });
    texts.max_by_key(|text| text.len())
}

/// An error that fits a frame.
#[must_use]
pub fn bounded_error(mut error: TaskError) -> TaskError {
    if error.message.len() > MAX_MESSAGE_BYTES {
        error.message = edges(&error.message, MAX_MESSAGE_BYTES / 2);
    }
    if error.details.as_ref().is_some_and(|d| json_len(d) > MAX_DETAILS_BYTES) {
        error.details = None;
    }
    error
}

/// Length of the value as JSON text.
#[must_use]
pub fn json_len(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

fn edges(text: &str, each: usize) -> String {
    let head = text.floor_char_boundary(each);
    let tail = text.ceil_char_boundary(text.len() - each);
    format!("{}\n… {} bytes left out …\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_ignores_the_order_of_keys() {
        let a: Params = serde_json::from_str(r#"{"a":1,"b":{"c":2,"d":[3]}}"#).unwrap();
        let b: Params = serde_json::from_str(r#"{"b":{"d":[3],"c":2},"a":1}"#).unwrap();
        assert_eq!(fingerprint("nop", &a), fingerprint("nop", &b));
        assert_ne!(fingerprint("nop", &a), fingerprint("sleep", &a));
    }

    #[test]
    fn a_large_result_keeps_its_edges() {
        let result =
            bounded_result(json!({ "stdout": "ä".repeat(MAX_RESULT_BYTES), "exitCode": 0 }));
        assert_eq!(result["exitCode"], 0);
        assert!(json_len(&result) < 3 * INLINE_EDGE_BYTES);
        let whole = json!({ "stdout": "x".repeat(2 * MAX_INLINE_BYTES) });
        assert_eq!(bounded_result(whole.clone()), whole);
        let many: Vec<_> = (0..200_000).map(|n| format!("{n:08}")).collect();
        assert!(bounded_result(json!(many))["omitted"].is_string());
    }
}
