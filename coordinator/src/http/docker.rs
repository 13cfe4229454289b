//! `/servers/:server_uuid/vms/:uuid/docker-*`: sessions with a container.

use http::{Method, StatusCode};
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::ask::{Ask, pick};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use crate::app::AppError;

const OBJECT: &[Rule] = &[Rule::ObjectType];
const EXEC: &[Param] = &[Param::new("command", OBJECT, "What to run, as in docker's API")
    .checked(schema::docker_command)];
const STATS: &[Param] =
    &[Param::new("payload", OBJECT, "As in docker's API").checked(schema::stats_payload)];
const BUILD: &[Param] =
    &[Param::new("payload", OBJECT, "As in docker's API").checked(schema::build_payload)];
const COPY: &[Param] = &[
    Param::new("path", &[Rule::Optional, Rule::StringType], "Path in the container"),
    Param::new("mode", &[Rule::Optional, Rule::StringType], "`read` (default), `write` or `stat`"),
    Param::new("no_overwrite_dir", &[], "A directory is not replaced by a file, nor the reverse")
        .checked(schema::flag),
    Param::new("payload", &[Rule::Optional, Rule::ObjectType], "`path` and `mode`, the old way")
        .checked(schema::copy_payload),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/docker-exec",
            "VmDockerExec",
            exec,
        )
        .params(EXEC),
        Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/docker-copy",
            "VmDockerCopy",
            copy,
        )
        .params(COPY),
        Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/docker-stats",
            "VmDockerStats",
            stats,
        )
        .params(STATS),
        Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/docker-build",
            "VmDockerBuild",
            build,
        )
        .params(BUILD),
    ]
    .into_iter()
    .map(|route| {
        route
            .summary("Opens a session with a container; answers with its address")
            .server(ServerRule::Exists)
            .vm()
            .running()
            .fenced()
            .returns_schema(schema::session)
    })
    .collect()
}

async fn exec(request: Request) -> Result<Response, ApiError> {
    let params = pick(&request, &["uuid", "command"]);
    let ask = Ask::new("docker_exec", params, 60);
    Response::json(ask.query(&request).await?)
}

async fn copy(request: Request) -> Result<Response, ApiError> {
    let mut params = pick(&request, &["uuid", "path", "mode", "no_overwrite_dir", "payload"]);
    if !params.has("path") {
        // The old way.
        for name in ["path", "mode"] {
            if let Some(value) = request.param("payload").and_then(|payload| payload.get(name)) {
                params.set(name, value.clone());
            }
        }
    }
    if params.text("path").is_none() {
        return Err(ApiError::invalid("path", "value was not a string"));
    }
    let ask = Ask::new("docker_copy", params, 10);
    Response::json(ask.query(&request).await.map_err(copy_failed)?)
}

/// The refusals of a copy have words of their own.
fn copy_failed(error: AppError) -> ApiError {
    let AppError::Agent { code, .. } = &error else { return error.into() };
    let (status, message) = match code {
        Code::FileNotFound => (StatusCode::NOT_FOUND, "Could not find requested file"),
        Code::PathNotDirectory => (StatusCode::BAD_REQUEST, "Given path was not to a directory"),
        Code::VmNotRunning => {
            (StatusCode::CONFLICT, "Operation attempted on vm which is not running")
        }
        Code::DockerCopyStopped => {
            (StatusCode::CONFLICT, "This container must be running in order to use `docker cp`")
        }
        _ => return error.into(),
    };
    ApiError::coded(status, code.clone(), message)
}

async fn stats(request: Request) -> Result<Response, ApiError> {
    let params = pick(&request, &["uuid", "payload"]);
    let asked = Ask::new("docker_stats", params, 30).query(&request).await;
    let result = asked.map_err(|error| match &error {
        AppError::Agent { message, .. } if Code::in_text(message) == Some(Code::FileNotFound) => {
            let member = |name: &str| match request.param("payload").map(|p| &p[name]) {
                Some(Value::String(text)) => text.clone(),
                other => json!(other).to_string(),
            };
            ApiError::NotFound(format!(
                "Could not find the file {} in container {}",
                member("Resource"),
                member("id")
            ))
        }
        _ => error.into(),
    })?;
    Response::json(result)
}

async fn build(request: Request) -> Result<Response, ApiError> {
    let params = pick(&request, &["uuid", "payload"]);
    let ask = Ask::new("docker_build", params, 30);
    Response::json(ask.query(&request).await?)
}
