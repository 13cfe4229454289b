//! Tasks whose result is the answer of a request, and which of them an agent can do.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::ids::ServerUuid;
use muster_shared::wire::TaskError;
use serde_json::Value;

use super::Tasks;
use crate::app::Caller;
use crate::app::error::AppError;

impl Tasks {
    /// Refuses a kind of task that a server's agent is known not to have.
    ///
    /// # Errors
    /// [`AppError::NotSupported`].
    pub fn require_capability(&self, server: ServerUuid, task: &str) -> Result<(), AppError> {
        if self.agents.supports(server, task) {
            return Ok(());
        }
        Err(AppError::NotSupported { server, task: task.to_owned() })
    }

    /// Runs a stored task and returns what it returns. It goes on when the wait is over.
    ///
    /// # Errors
    /// [`AppError::NotSupported`], [`AppError::NotConnected`], [`AppError::Timeout`],
    /// [`AppError::Agent`]; as [`Tasks::create`].
    pub async fn run(
        self: &Arc<Self>,
        server: ServerUuid,
        task: &str,
        params: Object,
        caller: &Caller,
        timeout: Duration,
    ) -> Result<Value, AppError> {
        self.require_capability(server, task)?;
        if !self.agents.is_connected(server) {
            return Err(AppError::NotConnected(server));
        }
        let id = self.create(server, task, params, caller).await?;
        match self.ended(&id, timeout).await?.and_then(|record| record.outcome()) {
            Some(Ok(result)) => Ok(result),
            Some(Err(TaskError { code, message, details })) => {
                Err(AppError::Agent { code, message, details })
            }
            None => Err(AppError::Timeout(task.to_owned())),
        }
    }
}
