//! What endpoints share that ask an agent and answer with what it returned.

use std::time::Duration;

use serde_json::{Map, Value};

use super::error::ApiError;
use super::request::Request;
use crate::agents::Query;
use crate::app::AppError;

/// A task whose result is the answer.
#[derive(Debug)]
pub(super) struct Ask {
    /// Its kind.
    pub(super) task: &'static str,
    /// Its parameters.
    pub(super) params: Map<String, Value>,
    /// Longest wait, seconds.
    pub(super) seconds: u64,
}

impl Ask {
    /// Runs it on the request's server; nobody stores it.
    pub(super) async fn query(self, request: &Request) -> Result<Value, AppError> {
        let server = request.server().map_err(|_| AppError::InvalidArgument(INVALID.to_owned()))?;
        let query = Query {
            server,
            task: self.task,
            label: None,
            params: self.params,
            req_id: &request.req_id,
            timeout: Duration::from_secs(self.seconds),
        };
        request.app.agents().query(query).await
    }

    /// Runs it on the request's server as a stored task: for what changes something.
    pub(super) async fn run(self, request: &Request) -> Result<Value, AppError> {
        let server = request.server().map_err(|_| AppError::InvalidArgument(INVALID.to_owned()))?;
        let limit = Duration::from_secs(self.seconds);
        request.app.task_run(server, self.task, self.params, &request.req_id, limit).await
    }
}

const INVALID: &str = "Invalid server_uuid";

/// The agent's refusal or failure behind the endpoint's own words, with the status of its code.
pub(super) fn prefixed(prefix: &'static str) -> impl Fn(AppError) -> ApiError {
    move |error| match error {
        AppError::Agent { ref code, .. } => {
            ApiError::Agent { code: code.clone(), message: format!("{prefix}{error}") }
        }
        AppError::Timeout(_) => {
            ApiError::Internal { message: format!("{prefix}{error}"), source: None }
        }
        other => other.into(),
    }
}

/// Parameters of these names, as far as the request has them.
pub(super) fn pick(request: &Request, names: &[&str]) -> Map<String, Value> {
    let found = names.iter().filter_map(|name| Some(((*name).to_owned(), request.param(name)?)));
    found.map(|(name, value)| (name, value.clone())).collect()
}
