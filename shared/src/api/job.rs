//! Jobs: sequences of steps on one server, shown as Triton's workflow API shows them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::IsoTime;
use crate::ids::{ServerUuid, TaskId, TicketUuid};

/// Where a job is, in the words of the workflow API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Execution {
    /// No step has begun.
    Queued,
    /// Under way.
    Running,
    /// All steps are done.
    Succeeded,
    /// A step failed for good.
    Failed,
}

impl Execution {
    /// As the workflow API spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing more happens.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// Where a step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// Not begun, or to be tried again.
    #[default]
    Pending,
    /// Begun; after a crash it is run once more.
    Running,
    /// Done.
    Ok,
    /// Failed for good.
    Failed,
    /// Not needed for this job.
    Skipped,
}

/// What the workflow API says of a step that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum StepVerdict {
    /// It is done.
    #[serde(rename = "OK")]
    Ok,
    /// It failed.
    #[serde(rename = "")]
    Failed,
}

/// A step that has ended, as the workflow API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepResult {
    /// E.g. `cnapi.validate_params`.
    pub name: String,
    /// `OK`; empty if it failed.
    #[schema(value_type = String)]
    pub result: StepVerdict,
    /// Empty unless it failed.
    pub error: String,
    /// When its first try began.
    #[schema(value_type = Option<IsoTime>, required)]
    pub started_at: Option<String>,
    /// When it was done or given up.
    #[schema(value_type = Option<IsoTime>, required)]
    pub finished_at: Option<String>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// E.g. `cnapi.validate_params`.
    pub name: String,
    /// Where it is.
    pub state: StepState,
    /// Tries begun.
    pub attempt: u32,
    /// When its first try began.
    #[schema(value_type = Option<IsoTime>, required)]
    pub started_at: Option<String>,
    /// When it was done, skipped or given up.
    #[schema(value_type = Option<IsoTime>, required)]
    pub finished_at: Option<String>,
    /// Of the last try.
    #[schema(required)]
    pub error: Option<String>,
    /// The agent task it made.
    #[schema(required)]
    pub task: Option<TaskId>,
}

/// What happens with the tags that interfaces carry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NicAction {
    /// The given ones are added.
    Update,
    /// The given list is the whole truth.
    Replace,
    /// The given ones are removed.
    Delete,
}

/// An interface and its tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NicTags {
    /// Its address, in lower case.
    pub mac: String,
    /// Its tags.
    pub nic_tags_provided: Vec<String>,
}

/// What an agent is told that sets its server up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetupParams {
    /// The server's name from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Run once the server is set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postsetup_script: Option<String>,
    /// `single`, `mirror`, `raidz1`, `raidz2` or `raidz3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_layout: Option<String>,
    /// Disks to leave alone, comma-separated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_exclude: Option<String>,
    /// Spare disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_spares: Option<u32>,
    /// Disks in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_width: Option<u32>,
    /// Whether to use cache disks; only ever `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_cache: Option<bool>,
    /// Whether to encrypt the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_enabled: Option<bool>,
    /// Whether the server restarts when it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<bool>,
}

/// What a job was made with; which members depends on its kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobParams {
    /// What happens with the tags of `nics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_action: Option<NicAction>,
    /// Interfaces and their tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<NicTags>>,
    /// For a setup.
    #[serde(flatten)]
    pub setup: SetupParams,
    /// Whether a reboot waits until the agent's tasks have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<bool>,
    /// Of clients that say where a request comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Of clients that say for whom they ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator_uuid: Option<String>,
    /// The server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_uuid: Option<ServerUuid>,
    /// The server once more, as workflows have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ServerUuid>,
    /// Of jobs of another version.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A sequence of steps that the coordinator runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its name.
    pub uuid: Uuid,
    /// Type and version, e.g. `server-reboot-1.2.0`.
    pub name: String,
    /// Where it is.
    pub execution: Execution,
    /// What it was made with; secrets are masked.
    pub params: JobParams,
    /// The server that it is about.
    pub target: ServerUuid,
    /// When it was made.
    #[schema(value_type = IsoTime)]
    pub created_at: String,
    /// When its first step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IsoTime>)]
    pub started: Option<String>,
    /// Time it was run, seconds.
    #[serde(default)]
    pub elapsed: f64,
    /// Same as `created_at`: jobs are never delayed.
    #[serde(default)]
    #[schema(value_type = IsoTime)]
    pub exec_after: String,
    /// Steps that have ended.
    pub chain_results: Vec<StepResult>,
    /// Cleanup steps that ended, after a failure.
    #[serde(default)]
    pub onerror_results: Vec<StepResult>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IsoTime>)]
    pub finished_at: Option<String>,
    /// The ticket under which it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_uuid: Option<TicketUuid>,
    /// All steps, cleanup after a failure last.
    pub steps: Vec<Step>,
}

/// The job that was started; see /jobs/{job_uuid}.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = JobId)]
pub struct JobStarted {
    /// The job.
    pub job_uuid: Uuid,
}
