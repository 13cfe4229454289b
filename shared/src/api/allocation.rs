//! What the allocator decides, and what it says of the fleet's room.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::server::Server;
use super::{IsoTime, Object};

/// How many servers are left: their uuids, or their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Remaining {
    /// These.
    Servers(Vec<String>),
    /// So many.
    Count(u64),
}

impl Remaining {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Servers(servers) => u64::try_from(servers.len()).unwrap_or(u64::MAX),
            Self::Count(count) => *count,
        }
    }
}

/// What an algorithm of the allocator left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AllocationStep {
    /// What it does.
    pub step: String,
    /// Servers; with `counts` how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Remaining>,
    /// Why a server is out, by uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Map<String, Value>>,
    /// With `explain`: more.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// One of the changes with which it would fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeastChange {
    /// In words.
    #[serde(default)]
    pub text: String,
    /// For programs.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The server chosen, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Allocated {
    /// The server.
    pub server: Server,
    /// What each algorithm left, in order.
    #[serde(default)]
    #[schema(required = false, value_type = StepsOrNull)]
    pub steps: Option<Vec<AllocationStep>>,
    /// Always empty.
    #[serde(rename = "imgapiPeers")]
    pub imgapi_peers: Vec<Value>,
    /// Of the decision, see /allocations/{id}; missing if it was not to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Decides shuffles; for a repetition.
    pub seed: Value,
    /// Of several VMs: each one's server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<Vec<Map<String, Value>>>,
    /// What every algorithm compared on every server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explain: Option<Value>,
    /// With a refusal: what would make it fit, each by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_changes: Option<Vec<LeastChange>>,
    /// There may be more of them: not all were looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_changes_cut: Option<bool>,
    /// What a newer coordinator says beside.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The schema of steps that are null when none were asked for.
#[derive(Debug)]
pub(super) struct StepsOrNull;

impl PartialSchema for StepsOrNull {
    fn schema() -> RefOr<Schema> {
        let step = utoipa::openapi::Ref::from_schema_name("AllocationStep");
        let null = ObjectBuilder::new().schema_type(Type::Null);
        OneOfBuilder::new().item(ArrayBuilder::new().items(step)).item(null).into()
    }
}

impl ToSchema for StepsOrNull {}

/// What a server has left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sizes {
    /// Percent of a CPU.
    #[schema(value_type = f64)]
    pub cpu: Number,
    /// MiB.
    #[schema(value_type = f64)]
    pub ram: Number,
    /// MiB.
    #[schema(value_type = f64)]
    pub disk: Number,
}

/// What servers have left; may be negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capacities {
    /// By server.
    pub capacities: BTreeMap<String, Sizes>,
    /// Why a server was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<BTreeMap<String, String>>,
}

/// What asked for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    /// `POST /allocate`.
    Allocate,
    /// `POST /vms`.
    Vms,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// Its name.
    pub id: Uuid,
    /// When.
    #[schema(value_type = IsoTime)]
    pub at: String,
    /// What asked.
    pub kind: AskedBy,
    /// The VM; empty if the request named none.
    pub vm_uuid: String,
    /// The chosen server.
    #[schema(required)]
    pub server_uuid: Option<String>,
    /// Its score.
    #[schema(value_type = Option<f64>, required)]
    pub score: Option<Number>,
    /// Why there is none.
    #[schema(required)]
    pub failure: Option<String>,
    /// Whether room was kept for the VM.
    pub reserved: bool,
    /// The snapshot stays as long as the decision.
    pub keep: bool,
}

/// How many servers an algorithm left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepCount {
    /// What it does.
    pub step: String,
    /// None for the first.
    #[schema(required)]
    pub algorithm: Option<String>,
    /// Servers.
    pub remaining: u64,
}

/// The schema of a server with its score. Not `prefixItems`, which clients that know older drafts
/// can't read.
#[derive(Debug)]
pub(super) struct ServerScore;

impl PartialSchema for ServerScore {
    fn schema() -> RefOr<Schema> {
        let kinds = SchemaType::Array(vec![Type::String, Type::Number]);
        let items = ObjectBuilder::new().schema_type(kinds);
        ArrayBuilder::new().items(items).min_items(Some(2)).max_items(Some(2)).into()
    }
}

impl ToSchema for ServerScore {}

fn shuffled() -> bool {
    true
}

/// A decision, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionDetail {
    /// What every view of it has.
    #[serde(flatten)]
    pub decision: Decision,
    /// The body of the request.
    #[schema(required)]
    pub request: Option<Object>,
    /// SHA-256 of the policy, hexadecimal.
    pub config_hash: String,
    /// Servers were looked at in random order; the default, when a record does not say it.
    #[serde(default = "shuffled")]
    #[schema(required)]
    pub shuffled: bool,
    /// Linux hosts were dropped.
    #[serde(default)]
    #[schema(required)]
    pub host_os_reference: bool,
    /// What shuffles were made from.
    pub seed: u64,
    /// What earlier decisions were known, for policies that ask.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub recent: Value,
    /// The fleet as the allocator saw it; decisions on the same one share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<Uuid>,
    /// Of the fleet as the allocator saw it.
    pub snapshot_revision: u64,
    /// What a replay must come to.
    pub fingerprint: String,
    /// How many servers each algorithm left.
    pub steps: Vec<StepCount>,
    /// The best servers, each with its score, best first.
    #[schema(value_type = Vec<ServerScore>)]
    pub best: Vec<(String, Number)>,
}

/// What was decided then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Original {
    /// The chosen server.
    #[schema(required)]
    pub server: Option<String>,
    /// Its score.
    #[schema(value_type = Option<f64>, required)]
    pub score: Option<Number>,
    /// Why there is none.
    #[schema(required)]
    pub failure: Option<String>,
    /// Of all verdicts and scores.
    pub fingerprint: String,
}

/// A step that left another number of servers; null: it has no such step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedStep {
    /// What it does.
    pub step: String,
    /// Servers that it left then.
    #[schema(required)]
    pub was: Option<u64>,
    /// Servers that it leaves now.
    #[schema(required)]
    pub is: Option<u64>,
}

/// What is not as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Steps.
    pub steps: Vec<ChangedStep>,
    /// Servers that are no longer among the best.
    pub best_gone: Vec<Uuid>,
    /// Servers that are new among the best.
    pub best_new: Vec<Uuid>,
}

/// A decision made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    /// The decision.
    pub id: Uuid,
    /// Every verdict and score is the same.
    pub identical: bool,
    /// The chosen server.
    #[schema(required)]
    pub server: Option<String>,
    /// Its score.
    #[schema(value_type = Option<f64>, required)]
    pub score: Option<Number>,
    /// Why there is none.
    #[schema(required)]
    pub failure: Option<String>,
    /// What shuffles were made from.
    pub seed: u64,
    /// Of all verdicts and scores.
    pub fingerprint: String,
    /// What was decided then.
    pub original: Original,
    /// What is not as it was.
    pub difference: Difference,
    /// What each algorithm left, in order.
    #[schema(value_type = StepsOrNull)]
    pub steps: Option<Vec<AllocationStep>>,
}

/// How many of a VM fit on a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedServer {
    /// The server.
    #[schema(value_type = Uuid)]
    pub server_uuid: String,
    /// Its name.
    #[schema(required)]
    pub hostname: Option<String>,
    /// How many more fit.
    pub fits: u64,
    /// The algorithm that refuses the next.
    #[schema(required)]
    pub limited_by: Option<String>,
    /// Why it does.
    pub reason: Value,
    /// What is left now.
    pub unreserved: Sizes,
    /// What is left once all are there.
    pub stranded: Sizes,
}

/// How many of a VM fit on all servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedFleet {
    /// How many were looked at.
    pub servers: u64,
    /// How many more fit.
    pub fits: u64,
    /// What is left now; a server that owes counts as none.
    pub unreserved: Sizes,
    /// What is left once all are there.
    pub stranded: Sizes,
}

/// How many fit, and what is stranded then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// Each of them.
    pub servers: Vec<PlannedServer>,
    /// All of them.
    pub fleet: PlannedFleet,
}
