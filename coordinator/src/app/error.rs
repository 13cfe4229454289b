//! What the application refuses, and why; each endpoint's file gives it its HTTP form.

use muster_shared::api::{FieldError, Object};
use muster_shared::ids::{ServerUuid, TicketUuid, VmUuid};
use muster_shared::wire::Code;
use serde_json::Value;

use crate::agents::CallError;
use crate::store::StoreError;

/// One refused operation.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// No such server record.
    #[error("Server {0} not found")]
    ServerNotFound(ServerUuid),
    /// The server's status is not `running`.
    #[error("Operation attempted on server which is not running")]
    ServerNotRunning,
    /// No such VM in the index.
    #[error("VM {0} not found")]
    VmNotFound(VmUuid),
    /// A VM of this uuid exists or is being made.
    #[error("VM {0} exists")]
    VmExists(VmUuid),
    /// No such decision.
    #[error("allocation {0} not found")]
    AllocationNotFound(uuid::Uuid),
    /// A decision can't be replayed any more.
    #[error("the snapshot of allocation {0} is no longer kept")]
    SnapshotNotKept(uuid::Uuid),
    /// No such package.
    #[error("package {0} not found")]
    PackageNotFound(String),
    /// A package of this name or uuid exists.
    #[error("package {0} exists")]
    PackageExists(String),
    /// No such task.
    #[error("no such task found")]
    TaskNotFound,
    /// No such ticket.
    #[error("ticket {0} not found")]
    TicketNotFound(TicketUuid),
    /// No such ticket, or no longer, for somebody who waits for it.
    #[error("no such ticket {0}")]
    NoSuchTicket(TicketUuid),
    /// The ticket has expired, for somebody who waits for it.
    #[error("{0}")]
    TicketExpired(String),
    /// The request names a ticket that is not active.
    #[error("ticket {0} is not active")]
    TicketNotActive(String),
    /// No such job.
    #[error("no such job found")]
    JobNotFound,
    /// The task has ended, or its kind can't be cancelled.
    #[error("{0}")]
    NotCancellable(String),
    /// The record is not at the version that the client expects.
    #[error("the record has another version")]
    Changed,
    /// Parameters can't be used: each with what is wrong.
    #[error("Request parameters failed validation")]
    Invalid(Vec<FieldError>),
    /// A request that can't be, whatever its parameters' types (CNAPI's InvalidArgument).
    #[error("{0}")]
    InvalidArgument(String),
    /// As [`AppError::InvalidArgument`], where the reference answers 500.
    #[error("{0}")]
    RefusedArgument(String),
    /// The folder of platforms can't be read.
    #[error("list the platforms in {path}")]
    Platforms {
        /// The folder.
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// No server fits.
    #[error("No compute resources available: {reason}")]
    NoServer {
        /// From the last step of the allocation.
        reason: String,
        /// The last step wanted the server of a mounted volume.
        volumes: bool,
        /// What a client is told beside: the decision's id, what would help, all steps.
        beside: Object,
    },
    /// The server has as many open tasks as it may have, or its queue is full.
    #[error("{0}")]
    Busy(String),
    /// The server's agent does not have this kind of task.
    #[error("the agent of server {server} does not support {task}")]
    NotSupported {
        /// The server.
        server: ServerUuid,
        /// The kind.
        task: String,
    },
    /// Something that has to be so is not.
    #[error("{0}")]
    Precondition(String),
    /// The image repository is of no help.
    #[error("{0}")]
    Imgapi(String),
    /// The server's agent is not connected.
    #[error("the agent of server {0} is not connected")]
    NotConnected(ServerUuid),
    /// The agent gave no answer in time.
    #[error("Time-out reached waiting for {0} request to return")]
    Timeout(String),
    /// A synchronous task failed on the agent.
    #[error("posting task to cn-agent: {message}")]
    Agent {
        /// The agent's code.
        code: Code,
        /// The agent's text.
        message: String,
        /// More.
        details: Option<Value>,
    },
    /// The agent's answer is not what was asked for.
    #[error("{0}")]
    Answer(&'static str),
    /// What the configuration does not allow.
    #[error("{0}")]
    NotAllowed(&'static str),
    /// The server has another software than it takes.
    #[error("{0}")]
    OldServer(&'static str),
    /// The server's agent is too old for it.
    #[error("{0}")]
    OldAgent(String),
    /// The agent has no such byte stream.
    #[error(transparent)]
    Stream(#[from] crate::agents::StreamError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// A blob could not be written or read.
    #[error("{action} blob {path}")]
    Blob {
        /// What was attempted.
        action: &'static str,
        /// Its path.
        path: String,
        /// The cause.
        #[source]
        source: object_store::Error,
    },
    /// A stored record is not what this version writes.
    #[error("record {key} is damaged")]
    Corrupt {
        /// Its key.
        key: String,
        /// The parser's reason.
        #[source]
        source: serde_json::Error,
    },
    /// Shutting down.
    #[error("the coordinator is stopping")]
    Stopping,
}

impl AppError {
    /// A bad parameter.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(field, message)])
    }
}

impl From<CallError> for AppError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotConnected(server) => Self::NotConnected(server),
            CallError::Busy(_) => Self::Busy(error.to_string()),
            CallError::Timeout(what) => Self::Timeout(what),
            CallError::Agent { code, message, details } => Self::Agent { code, message, details },
            CallError::Stream(error) => Self::Stream(error),
            CallError::Stopping => Self::Stopping,
        }
    }
}
