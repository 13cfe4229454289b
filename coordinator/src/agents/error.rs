//! Why an agent could not be asked, or what it answered instead.

use muster_shared::ids::ServerUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use super::streams::StreamError;

/// A question to an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server's agent is not connected.
    #[error("the agent of server {0} is not connected")]
    NotConnected(ServerUuid),
    /// The queue to the agent is full.
    #[error("the queue to server {0} is full")]
    Busy(ServerUuid),
    /// No answer in time; names what was asked.
    #[error("Time-out reached waiting for {0} request to return")]
    Timeout(String),
    /// The agent refused, or the task failed there.
    #[error("{message}")]
    Agent {
        /// The agent's code.
        code: Code,
        /// The agent's text.
        message: String,
        /// More.
        details: Option<Value>,
    },
    /// The agent has no such byte stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// This coordinator is shutting down.
    #[error("the coordinator is stopping")]
    Stopping,
}
