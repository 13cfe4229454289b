//! What the coordinator says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::task::TaskStarted;
use super::{IsoTime, Object};

/// Whether a part of the coordinator works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It does.
    Online,
    /// It does not.
    Offline,
}

/// Jobs, store and agents, by their old names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Services {
    /// Jobs.
    pub workflow: ServiceState,
    /// The store.
    pub moray: ServiceState,
    /// Agents.
    pub amqp: ServiceState,
}

/// Whether it is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ping {
    /// All services are online.
    pub ready: bool,
    /// Jobs, store and agents, by their old names.
    pub services: Services,
}

/// The version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// E.g. `1.2.3`.
    pub version: String,
}

/// The log level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLevel {
    /// From 10 (trace) to 60 (off).
    #[schema(minimum = 10, maximum = 60)]
    pub level: u64,
}

/// Memory of the process. A Rust process has only its resident memory to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessMemory {
    /// Resident, bytes.
    pub rss: u64,
    /// The same.
    pub heap_total: u64,
    /// The same.
    pub heap_used: u64,
    /// 0.
    pub external: u64,
}

/// What the process does and uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Diagnostics {
    /// When it started.
    #[schema(value_type = IsoTime)]
    pub start_timestamp: String,
    /// Memory.
    pub memory: ProcessMemory,
    /// Open tasks by kind.
    #[serde(rename = "taskCallbacks")]
    pub task_callbacks: BTreeMap<String, Vec<TaskStarted>>,
    /// Always empty: nothing waits in memory alone.
    #[serde(rename = "pendingActivationsByServer")]
    pub pending_activations: Object,
}
