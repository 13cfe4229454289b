//! The messages themselves.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Code;
use crate::ids::{ServerUuid, TaskId, VmUuid};

/// First frame of the agent on every connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hello {
    /// The server this agent speaks for.
    #[schema(value_type = String, format = Uuid)]
    pub server_uuid: ServerUuid,
    /// Changes with every boot of the host.
    pub boot_id: String,
    /// Changes with every start of the agent.
    #[schema(value_type = String, format = Uuid)]
    pub agent_instance_id: Uuid,
    /// The agent's release.
    pub version: String,
    /// What the agent can do: `task:<name>` for every task kind it knows, and feature names.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// SHA-256 (hex) of the current sysinfo; empty when there is none yet.
    #[serde(default)]
    pub sysinfo_hash: String,
    /// Tasks accepted and not ended.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub running_task_ids: Vec<TaskId>,
    /// Tasks whose result nobody has acknowledged yet; the results follow by themselves.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub unacked_result_ids: Vec<TaskId>,
    /// Whether new work is accepted.
    #[serde(default)]
    pub intake: Intake,
    /// The cluster whose work this agent does; none before its first welcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub cluster: Option<Uuid>,
}

/// Whether an agent accepts new mutating tasks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Intake {
    /// Yes.
    #[default]
    Accepting,
    /// No, until `resume`.
    Paused,
    /// No, and some that were accepted still run.
    Draining,
    /// No, and none runs.
    Drained,
    /// In a way that this version does not know.
    #[serde(other)]
    Other,
}

/// First frame of the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Welcome {
    /// The coordinator's instance name.
    pub instance: String,
    /// Feature names.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// URLs of all coordinators, for the agent to dial as well.
    #[serde(default)]
    pub members: Vec<String>,
    /// Tasks of this server that the store holds as `active`. The agent answers each with
    /// [`Accepted`], [`TaskResult`] or [`Error`] `UnknownTask`.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub open_task_ids: Vec<TaskId>,
    /// Hash of the sysinfo the store holds; empty when there is none.
    #[serde(default)]
    pub sysinfo_hash: String,
    /// Names the coordinators' store. An agent remembers the first one it is told and works for no
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub cluster: Option<Uuid>,
}

/// Sign of life, every second; from a coordinator only when it says nothing else, and only to an
/// agent that has [`super::feature::HEARTBEAT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// Counts up from 0 on each connection.
    pub seq: u64,
    /// The sender's wall clock, ISO 8601; shown as clock skew, never used for decisions.
    pub ts: String,
}

/// From the agent: its sysinfo. Without `sysinfo`, from the coordinator: send it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sysinfo {
    /// The document, in SmartOS's key names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub sysinfo: Option<Map<String, Value>>,
    /// `[{name, version, …}]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub agents: Option<Vec<Value>>,
    /// SHA-256 (hex) over canonical JSON of `sysinfo` without `Muster.agent_instance_id`.
    #[serde(default)]
    pub hash: String,
}

/// A fencing token: compared by epoch, then counter.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
pub struct Token {
    /// The store's epoch.
    pub epoch: u64,
    /// Counter within the epoch.
    pub counter: u64,
}

/// The waitlist ticket a task was started under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// What the ticket guards: its queue, `<server or "default">/<scope>/<id>`.
    pub resource: String,
    /// The agent refuses a token older than the newest it saw for the resource.
    pub token: Token,
}

/// Run a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Dispatch {
    /// The task's id; a second dispatch of the same id attaches to the first.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Id of the request that made the task.
    #[serde(default)]
    pub req_id: String,
    /// The task kind.
    pub task: String,
    /// Its parameters.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
    /// Longest run time, ms; the agent's own limit for the kind applies as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The ticket, if the request named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
    /// True when nobody stored the task (a query that somebody waits for): the agent does not
    /// journal it and the result is sent once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volatile: bool,
}

/// The task (or the pause, resume, drain or cancel named by its token) is durable at the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// The task's id or the request's token.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// After a pause, resume or drain: whether new tasks are accepted now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intake: Option<Intake>,
}

/// How a running task gets on. Lossy: at most four a second for each task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Counts up within the task.
    pub seq: u64,
    /// `progress`, `start:<step>`, `end:<step>` or a name of the task's own.
    pub name: String,
    /// `{"value": 0..100}` for `progress`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub event: Value,
    /// When, ISO 8601.
    pub ts: String,
}

/// How a task ended. Sent again on every connection until acknowledged. An outcome that this
/// version does not know is read as a failure that names it, so that the task ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(from = "AnyResult")]
pub struct TaskResult {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// How it ended.
    pub status: Outcome,
    /// What the task kind returns.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub result: Value,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// When it ended, ISO 8601.
    #[serde(default)]
    pub finished_at: String,
}

/// As [`TaskResult`], of any version.
#[derive(Deserialize)]
struct AnyResult {
    id: TaskId,
    status: Value,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Option<TaskError>,
    #[serde(default)]
    finished_at: String,
}

impl From<AnyResult> for TaskResult {
    fn from(any: AnyResult) -> Self {
        let AnyResult { id, status, result, error, finished_at } = any;
        let (status, error) = match Outcome::deserialize(&status) {
            Ok(outcome) => (outcome, error),
            Err(_) => (Outcome::Failure, Some(unknown_outcome(&status, error))),
        };
        Self { id, status, result, error, finished_at }
    }
}

fn unknown_outcome(outcome: &Value, error: Option<TaskError>) -> TaskError {
    let mut name = outcome.to_string();
    // Cut at a character's border.
    name.truncate(name.char_indices().take(100).last().map_or(0, |(at, c)| at + c.len_utf8()));
    let reason = error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
    TaskError {
        message: format!("the agent ended the task as {name}, which is not known here{reason}"),
        code: Code::UnknownOutcome,
        details: error.and_then(|error| error.details),
    }
}

/// The two ways a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Complete,
    /// Not done; [`TaskResult::error`] says why.
    Failure,
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskError {
    /// For people.
    pub message: String,
    /// For programs, e.g. `VmExists`.
    #[schema(value_type = String)]
    pub code: Code,
    /// More, e.g. the bad members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub details: Option<Value>,
}

/// The coordinator holds the result durably; the agent may forget it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Acknowledge {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
}

/// Stop a task if its kind allows that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancel {
    /// The task.
    #[schema(value_type = String)]
    pub id: TaskId,
}

/// Refuse new mutating tasks until [`Resume`]. Answered with [`Accepted`] of the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    /// For people; shown by `why`.
    pub reason: String,
    /// Whose pause it is; without, [`super::OPERATOR`]'s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Names this request.
    #[schema(value_type = String)]
    pub token: TaskId,
}

/// Accept tasks again, as far as nobody else's pause or drain is in the way. Answered with
/// [`Accepted`] of the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resume {
    /// Whose pause or drain ends; without, everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Names this request.
    #[schema(value_type = String)]
    pub token: TaskId,
}

/// Refuse new mutating tasks and give back those that have not started. Answered with
/// [`Accepted`] of the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// For people.
    pub reason: String,
    /// Names this request.
    #[schema(value_type = String)]
    pub token: TaskId,
    /// After this many seconds the drain ends by itself.
    pub ttl_s: u64,
    /// Whose drain it is; without, that of the job whose id is the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// A second websocket is wanted for a byte stream; the agent dials it within 10 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOpen {
    /// Names the stream; part of the URL the agent dials.
    #[schema(value_type = String, format = Uuid)]
    pub stream_id: Uuid,
    /// What is wanted.
    pub stream: StreamKind,
    /// Of which VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm_uuid: VmUuid,
}

/// What a byte stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// The VM's serial console.
    Console,
    /// The VM's VNC display.
    Vnc,
    /// Something that this version does not know.
    #[serde(other)]
    Other,
}

/// Something was refused or not understood; the connection stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Error {
    /// The task, request token or stream it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// For programs: `UnknownKind`, `Malformed`, `UnknownTask`, `TaskIdReused`, `QueueFull`,
    /// `Draining`, `JournalFull`, `StaleTicket`, `NotSupported`, `NotCancellable`, `VmNotFound`.
    #[schema(value_type = String)]
    pub code: Code,
    /// For people.
    pub message: String,
}
