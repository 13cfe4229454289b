//! Tasks of servers' agents.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::IsoTime;
use crate::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use crate::wire::{Code, TaskError};

/// Where a task is; CNAPI knows these three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not ended.
    Active,
    /// Ended well.
    Complete,
    /// Ended badly.
    Failure,
}

impl TaskStatus {
    /// As CNAPI spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Complete => "complete",
            Self::Failure => "failure",
        }
    }
}

/// What an entry of a task's history is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// What it returned.
    Finish,
    /// Why it failed.
    Error,
}

/// An entry of a task's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskEntry {
    /// What it is about.
    pub name: EntryKind,
    /// When.
    #[schema(value_type = IsoTime)]
    pub timestamp: String,
    /// What the task returned, or why it failed.
    #[schema(value_type = TaskEvent)]
    pub event: Value,
}

impl TaskEntry {
    /// Why the task failed, in words; agents have two forms of it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let error = self.event.get("error")?;
        error.as_str().or_else(|| error.get("message")?.as_str())
    }
}

/// The schema of what a task returned; which members depends on its kind.
#[derive(Debug, ToSchema)]
struct TaskEvent {}

/// Where the whole of something large is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blob {
    /// Its name in the blob store.
    pub blob: String,
    /// Its size.
    pub bytes: u64,
}

/// What a script did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Executed {
    /// Null: it was ended by a signal.
    #[serde(rename = "exitCode")]
    #[schema(required)]
    pub exit_code: Option<i64>,
    /// Its output; of a large one the beginning and the end.
    pub stdout: String,
    /// Its other output, likewise.
    pub stderr: String,
    /// The whole output, if it was large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_blob: Option<Blob>,
    /// The whole other output, if it was large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_blob: Option<Blob>,
}

/// A server that refused a VM before anything was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// The server.
    pub server_uuid: ServerUuid,
    /// The agent's code.
    #[schema(value_type = String)]
    pub code: Code,
    /// The agent's text.
    pub message: String,
}

/// What an agent said of a task on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskProgress {
    /// E.g. `start:create_disks`.
    #[serde(default)]
    pub name: String,
    /// When, ISO 8601.
    #[serde(default)]
    pub timestamp: String,
    /// What belongs to it.
    #[serde(default)]
    pub event: Value,
}

/// A task of a server's agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// The request that made it.
    pub req_id: String,
    /// Its kind.
    pub task: String,
    /// Where it runs.
    pub server_uuid: ServerUuid,
    /// Where it is.
    pub status: TaskStatus,
    /// When it was made.
    #[schema(value_type = IsoTime)]
    pub timestamp: String,
    /// Only when it ended: `finish`, or `error` and `finish`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(min_items = 1, max_items = 2)]
    pub history: Vec<TaskEntry>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IsoTime>)]
    pub finished_at: Option<String>,
    /// The VM that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_uuid: Option<VmUuid>,
    /// The ticket under which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_uuid: Option<TicketUuid>,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// What a failed task returned nevertheless, e.g. the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Servers that refused the VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// How far it is, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 100)]
    pub progress: Option<u8>,
    /// Progress events of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskProgress>,
    /// In plain words; only while it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// The task that was started; see /tasks/{taskid}.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskId)]
pub struct TaskStarted {
    /// The task.
    #[schema(value_type = uuid::Uuid)]
    pub id: TaskId,
}
