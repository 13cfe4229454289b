//! What endpoints share that ask an agent and answer with what it returned.

use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::ids::ServerUuid;
use serde_json::Value;

use super::error::ApiError;
use super::request::Request;
use super::route::Param;
use super::rule::Rule;
use super::schema;
use crate::agents::Query;
use crate::app::AppError;

/// Of clients that run jobs of their own.
pub(super) const JOB: Param = Param::new("jobid", &[Rule::Optional, Rule::StringType], "Passed on");
/// Of tasks that bring something about.
pub(super) const IDEMPOTENT: Param =
    Param::new("idempotent", &[], "Succeeds if nothing is left to do").checked(schema::flag);

/// A task whose result is the answer.
#[derive(Debug)]
pub(super) struct Ask {
    /// Its kind.
    pub(super) task: &'static str,
    /// Its parameters.
    pub(super) params: Object,
    /// Longest wait, seconds.
    pub(super) seconds: u64,
    /// Its name in the text of a timeout, if another than the kind.
    pub(super) label: Option<&'static str>,
}

impl Ask {
    /// A task of this kind, with parameters and the longest wait in seconds.
    pub(super) fn new(task: &'static str, params: Object, seconds: u64) -> Self {
        Self { task, params, seconds, label: None }
    }

    /// Runs it on the request's server; nobody stores it.
    pub(super) async fn query(self, request: &Request) -> Result<Value, AppError> {
        let server = server(request)?;
        let query = Query {
            server,
            task: self.task,
            label: self.label,
            params: self.params,
            req_id: &request.caller.req_id,
            timeout: Duration::from_secs(self.seconds),
        };
        request.app.nodes.query(&request.caller, query).await
    }

    /// Runs it on the request's server as a stored task: for what changes something.
    pub(super) async fn run(self, request: &Request) -> Result<Value, AppError> {
        let server = server(request)?;
        let limit = Duration::from_secs(self.seconds);
        request.app.tasks.run(server, self.task, self.params, &request.caller, limit).await
    }
}

fn server(request: &Request) -> Result<ServerUuid, AppError> {
    request.server().map_err(|error| AppError::InvalidArgument(error.to_string()))
}

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
pub(super) fn pick(request: &Request, names: &[&str]) -> Object {
    names.iter().filter_map(|name| Some((*name, request.param(name)?.clone()))).collect()
}
