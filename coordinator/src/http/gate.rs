//! What the preconditions ask about a server.

use async_trait::async_trait;
use muster_shared::ids::ServerUuid;

use super::error::ApiError;
use crate::app::App;

/// What the preconditions of an endpoint ask about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerGate {
    /// Its stored status is exactly `running`.
    pub(crate) running: bool,
}

/// Answers the preconditions S and R.
#[async_trait]
pub(crate) trait Gate: Send + Sync {
    /// The server; `None` when there is no such record.
    ///
    /// # Errors
    /// [`ApiError::Internal`] when the store can't be asked.
    async fn server(&self, server: ServerUuid) -> Result<Option<ServerGate>, ApiError>;
}

#[async_trait]
impl Gate for App {
    async fn server(&self, server: ServerUuid) -> Result<Option<ServerGate>, ApiError> {
        let gate = self.fleet.with(server, |entry| {
            let running = entry.stored_status() == "running";
            entry.record.as_ref().map(|_| ServerGate { running })
        });
        Ok(gate.flatten())
    }
}
