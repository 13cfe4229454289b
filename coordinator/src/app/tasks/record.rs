//! The task record: what is stored, and CNAPI's view of it. Pure.

use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::task::{EntryKind, Refusal, Task, TaskEntry, TaskStatus};
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use muster_shared::wire::{Code, Outcome, TaskError, Ticket};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::roster::authority::Authority;

/// What a record keeps of an error: its message, its code and its details, bytes. An agent's own
/// limits are below these.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
const MAX_CODE_BYTES: usize = 128;
const MAX_DETAILS_BYTES: usize = 32 * 1024;

/// Parameters, in the record or in a blob beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Params {
    /// In the record.
    Inline(Object),
    /// In this blob, because they are large.
    Blob(String),
}

impl Default for Params {
    fn default() -> Self {
        Self::Inline(Object::new())
    }
}

/// The record `task/<id>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The task.
    pub id: TaskId,
    /// The request that made it.
    pub req_id: String,
    /// Its kind.
    pub task: String,
    /// Where it runs.
    pub server_uuid: ServerUuid,
    /// Whether it ended.
    pub status: TaskStatus,
    /// When it was made, ISO 8601.
    pub timestamp: String,
    /// Only when it ended: CNAPI's one or two entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TaskEntry>,
    /// When it ended, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// What a failed task returned nevertheless, e.g. the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The VM it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_uuid: Option<VmUuid>,
    /// Until it ends.
    #[serde(default)]
    pub params: Params,
    /// It may have reached an agent; written before it is first sent. A task that was never sent
    /// can be ended here; one that was is its agent's.
    #[serde(default)]
    pub sent: bool,
    /// An agent said that it has it.
    #[serde(default)]
    pub accepted: bool,
    /// Who calls an agent for it that must not be called twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<TaskCaller>,
    /// The ticket it was started under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
    /// That ticket's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_uuid: Option<TicketUuid>,
    /// The servers that refused the VM, for a task that places one; `None` for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusals: Option<Vec<Refusal>>,
    /// What the allocator is told of the kept package of such a VM, also when it is placed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Object>,
    /// What another version keeps in the record.
    #[serde(flatten)]
    pub unknown: Object,
}

/// A coordinator that calls an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskCaller {
    /// Which one, and which start of it.
    #[serde(flatten)]
    pub who: Authority,
    /// Since when, by its wall clock.
    pub since: Timestamp,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Well or badly.
    pub outcome: Outcome,
    /// What it returned.
    pub result: Value,
    /// Why it failed.
    pub error: Option<TaskError>,
}

impl Ending {
    /// A failure decided by the coordinator or told by the agent.
    #[must_use]
    pub fn failure(code: Code, message: impl Into<String>) -> Self {
        let error = TaskError { code, message: message.into(), details: None };
        Self { outcome: Outcome::Failure, result: Value::Null, error: Some(error) }
    }

    /// With an error that a record has room for: one that can't be stored is delivered for ever.
    #[must_use]
    pub(super) fn cut(mut self) -> Self {
        let Some(error) = &mut self.error else { return self };
        if error.message.len() > MAX_MESSAGE_BYTES {
            error.message.truncate(error.message.floor_char_boundary(MAX_MESSAGE_BYTES));
            error.message.push('…');
        }
        if error.code.as_str().len() > MAX_CODE_BYTES {
            error.code = Code::InternalError;
        }
        let bytes = error.details.as_ref().map_or(0, |details| details.to_string().len());
        if bytes > MAX_DETAILS_BYTES {
            error.details = Some(json!({ "left_out": format!("{bytes} bytes of details") }));
        }
        self
    }
}

impl TaskRecord {
    /// The record of the ended task. Clients rely on the layout: `history[0]` is the `finish`
    /// entry of a success, and the `error` entry of a failure comes before its `finish`.
    #[must_use]
    pub fn ended(&self, ending: Ending, now: Timestamp) -> Self {
        let at = iso(now);
        let entry = |name, event| TaskEntry { name, timestamp: at.clone(), event };
        let mut record = Self { params: Params::default(), package: None, ..self.clone() };
        record.finished_at = Some(at.clone());
        match ending.outcome {
            Outcome::Complete => {
                record.status = TaskStatus::Complete;
                record.history = vec![entry(EntryKind::Finish, object_or_empty(ending.result))];
            }
            Outcome::Failure => {
                let mut error = ending.error.unwrap_or_else(no_error);
                if error.message.is_empty() {
                    error.message = no_error().message;
                }
                let event = json!({ "error": { "message": error.message } });
                record.status = TaskStatus::Failure;
                record.history =
                    vec![entry(EntryKind::Error, event), entry(EntryKind::Finish, json!({}))];
                record.error = Some(error);
                record.result = (!ending.result.is_null()).then_some(ending.result);
            }
        }
        record
    }

    /// What an ended task returned, whole; `None` while it is open.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<Value, TaskError>> {
        match self.status {
            TaskStatus::Active => None,
            TaskStatus::Complete => {
                Some(Ok(self.history.first().map(|entry| entry.event.clone()).unwrap_or_default()))
            }
            TaskStatus::Failure => Some(Err(self.error.clone().unwrap_or_else(no_error))),
        }
    }

    /// CNAPI's record, all that the task brought; Muster's members stand outside `history`.
    #[must_use]
    pub fn public(&self) -> Task {
        Task {
            id: self.id.clone(),
            req_id: self.req_id.clone(),
            task: self.task.clone(),
            server_uuid: self.server_uuid,
            status: self.status,
            timestamp: self.timestamp.clone(),
            history: self.history.clone(),
            finished_at: self.finished_at.clone(),
            vm_uuid: self.vm_uuid,
            ticket_uuid: self.ticket_uuid,
            error: self.error.clone(),
            result: self.result.clone(),
            refusals: self.refusals.clone().unwrap_or_default(),
            progress: None,
            events: Vec::new(),
            waiting_for: None,
        }
    }
}

fn no_error() -> TaskError {
    TaskError { message: "no error given".to_owned(), code: Code::InternalError, details: None }
}

fn object_or_empty(value: Value) -> Value {
    if value.is_null() { json!({}) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active() -> TaskRecord {
        serde_json::from_value(json!({
            "id": "t1", "req_id": "r1", "task": "nop",
            "server_uuid": "00000000-0000-0000-0000-000000000001", "status": "active",
            "timestamp": "2026-01-01T00:00:00.000Z",
        }))
        .unwrap()
    }

    fn at() -> Timestamp {
        "2026-01-01T00:00:01Z".parse().unwrap()
    }

    #[test]
    fn an_active_record_has_cnapi_s_six_members() {
        let keys: Vec<_> =
            Object::of(&active().public()).iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(keys, ["id", "req_id", "task", "server_uuid", "status", "timestamp"]);
    }

    #[test]
    fn a_success_starts_its_history_with_finish() {
        let result = json!({ "vm": { "uuid": "u" } });
        let ending = Ending { outcome: Outcome::Complete, result, error: None };
        let view = json!(active().ended(ending, at()).public());
        assert_eq!(view["status"], "complete");
        assert_eq!(
            view["history"],
            json!([{ "name": "finish", "timestamp": "2026-01-01T00:00:01.000Z",
                     "event": { "vm": { "uuid": "u" } } }])
        );
    }

    #[test]
    fn a_failure_has_error_then_finish() {
        let view = json!(active().ended(Ending::failure("Boom".into(), "boom"), at()).public());
        assert_eq!(view["status"], "failure");
        assert_eq!(view["history"][0]["event"], json!({ "error": { "message": "boom" } }));
        assert_eq!(view["history"][1]["event"], json!({}));
        let silent = Ending { outcome: Outcome::Failure, result: Value::Null, error: None };
        let view = json!(active().ended(silent, at()).public());
        assert_eq!(view["history"][0]["event"]["error"]["message"], "no error given");
        let empty = Ending::failure("Boom".into(), "");
        let view = json!(active().ended(empty, at()).public());
        assert_eq!(view["history"][0]["event"]["error"]["message"], "no error given");
        assert_eq!(view["error"]["code"], "Boom");
    }

    #[test]
    fn every_error_has_room_in_a_record() {
        let long = "ä".repeat(1 << 20);
        let error = TaskError {
            message: long.clone(),
            code: long.as_str().into(),
            details: Some(json!({ "more": long })),
        };
        let ending = Ending { outcome: Outcome::Failure, result: Value::Null, error: Some(error) };
        let record = active().ended(ending.cut(), at());
        assert!(json!(record).to_string().len() < 64 * 1024);
        assert!(record.error.unwrap().message.starts_with('ä'));
        let short = Ending::failure("Boom".into(), "boom");
        assert_eq!(short.clone().cut(), short);
    }

    #[test]
    fn who_asked_for_a_task_gets_all_that_it_brought() {
        let vm = json!({ "vm": { "alias": "a", "customer_metadata": { "root_pw": "x" } } });
        let complete = Ending { outcome: Outcome::Complete, result: vm.clone(), error: None };
        let complete = active().ended(complete, at());
        assert_eq!(complete.outcome(), Some(Ok(vm.clone())));
        assert_eq!(json!(complete.public())["history"][0]["event"], vm);
        let details = Some(json!({ "token": "y" }));
        let error = TaskError { code: "E".into(), message: "m".to_owned(), details };
        let failed =
            Ending { outcome: Outcome::Failure, result: vm.clone(), error: Some(error.clone()) };
        let failed = active().ended(failed, at());
        assert_eq!(failed.outcome(), Some(Err(error)));
        assert_eq!(json!(failed.public())["result"], vm);
        assert_eq!(json!(failed.public())["error"]["details"]["token"], "y");
        assert_eq!(active().outcome(), None);
    }
}
