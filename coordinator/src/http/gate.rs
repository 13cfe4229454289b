//! What the preconditions ask about a server.

use async_trait::async_trait;
use muster_shared::ids::ServerUuid;

use super::error::ApiError;
use crate::app::{App, ServerGate};

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
        self.server_gate(server)
            .await
            .map_err(|error| ApiError::internal("Precondition failed: no connection moray", error))
    }
}
