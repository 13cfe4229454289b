//! Tasks whose result is the answer of a request, and which of them an agent can do.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::ServerUuid;
use serde_json::{Map, Value};

use crate::app::App;
use crate::app::error::AppError;

impl App {
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
    /// [`AppError::Agent`]; as [`App::task_create`].
    pub async fn task_run(
        self: &Arc<Self>,
        server: ServerUuid,
        task: &str,
        params: Map<String, Value>,
        req_id: &str,
        timeout: Duration,
    ) -> Result<Value, AppError> {
        self.require_capability(server, task)?;
        if !self.agents.is_connected(server) {
            return Err(AppError::NotConnected(server));
        }
        let id = self.task_create(server, task, params, req_id).await?;
        let ended = self.task_wait(&id, timeout).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match ended.get("status").and_then(Value::as_str) {
            Some("complete") => Ok(ended["history"][0]["event"].clone()),
            Some("failure") => {
                let error = ended.get("error").cloned().unwrap_or_default();
                Err(AppError::Agent {
                    code: text(&error["code"]),
                    message: text(&error["message"]),
                    details: error.get("details").cloned(),
                })
            }
            _ => Err(AppError::Timeout(task.to_owned())),
        }
    }
}
