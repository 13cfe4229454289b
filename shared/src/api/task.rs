//! Tasks of servers' agents.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::IsoTime;
use crate::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};

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
    pub event: TaskEvent,
}

/// Where the whole of something large is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blob {
    /// Its name in the blob store.
    pub blob: String,
    /// Its size.
    pub bytes: u64,
}

/// Why a task failed, in one of the two forms that agents use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskEventError {
    /// In words only.
    Text(String),
    /// With more.
    Object {
        /// In words.
        message: String,
    },
}

impl TaskEventError {
    /// In words.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Object { message } => message,
        }
    }
}

/// What a task returned; which members depends on its kind. A member over 256 KiB is cut, and the
/// whole of `x` is at `x_blob`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskEvent {
    /// In the entry `error`: why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskEventError>,
    /// What the kind of task returns.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What an agent said of a task on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskProgress {
    /// E.g. `start:create_disks`.
    #[serde(default)]
    pub name: String,
    /// What belongs to it.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A task of a server's agent, as far as its readers need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub timestamp: String,
    /// Only when it ended: `finish`, or `error` and `finish`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TaskEntry>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The VM that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_uuid: Option<VmUuid>,
    /// The ticket under which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_uuid: Option<TicketUuid>,
    /// How far it is, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u8>,
    /// What the agent said on the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskProgress>,
    /// In plain words; only while it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// The task that was started; see /tasks/{taskid}.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStarted {
    /// The task.
    pub id: TaskId,
}
