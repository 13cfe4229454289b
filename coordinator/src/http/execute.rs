//! `/servers/:server_uuid/execute`: runs a script on a server, where that is allowed.

use http::{Method, StatusCode};
use muster_shared::lenient::js_number;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::ask::{Ask, pick};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;

/// Longest run of a script that names no limit, seconds.
const LIMIT: u64 = 3600;
/// What the answer may take on top of the script's own limit, seconds.
const GRACE: u64 = 30;

const PARAMS: &[Param] = &[
    Param::new("script", &[Rule::StringType], "The script, with its `#!` line"),
    Param::new("args", &[Rule::Optional, Rule::ArrayType], "Its arguments")
        .checked(schema::arguments),
    Param::new("env", &[Rule::Optional, Rule::ObjectType], "Its environment")
        .checked(schema::environment),
    Param::new(
        "json",
        &[Rule::Optional, Rule::BooleanString, Rule::ToBoolean],
        "Answer with exit code and both outputs, whatever the exit code",
    ),
    Param::new("timeout", &[Rule::Optional, Rule::NotNegative], "Longest run, ms; 0: an hour")
        .schema(schema::script_milliseconds),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::POST, "/servers/:server_uuid/execute", "CommandExecute", execute)
            .summary("Runs a script as root; 403 unless `security.allow_command_execute` is set")
            .server(ServerRule::Exists)
            .running()
            .params(PARAMS)
            .errors(&[403])
            .fenced()
            .returns_schema(schema::executed),
    ]
}

async fn execute(request: Request) -> Result<Response, ApiError> {
    if !request.app.config().allow_command_execute {
        let text = "command execution is off: `security.allow_command_execute` is not set";
        return Err(ApiError::coded(StatusCode::FORBIDDEN, Code::NotAuthorized, text));
    }
    let params = pick(&request, &["script", "args", "env", "timeout"]);
    let asked = Ask::new("command_execute", params, limit(&request));
    let result = asked.run(&request).await?;
    if request.param("json") == Some(&json!(true)) {
        let mut answer = pick_members(&result, &["exitCode", "stdout", "stderr"]);
        for blob in ["stdout_blob", "stderr_blob"] {
            if let Some(reference) = result.get(blob) {
                answer[blob] = reference.clone();
            }
        }
        return Response::json(answer);
    }
    if result["exitCode"] != 0 {
        let message = "Error executing on remote system".to_owned();
        return Err(ApiError::Internal { message, source: None });
    }
    Response::json(result["stdout"].as_str().unwrap_or_default().trim())
}

fn limit(request: &Request) -> u64 {
    let asked = request.param("timeout").and_then(js_number).filter(|ms| *ms > 0.0);
    let seconds = asked.and_then(|ms| std::time::Duration::try_from_secs_f64(ms / 1000.0).ok());
    seconds.map_or(LIMIT, |limit| limit.as_secs().saturating_add(1).min(LIMIT)) + GRACE
}

fn pick_members(result: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), result[*name].clone())).collect()
}
