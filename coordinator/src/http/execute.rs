//! `/servers/:server_uuid/execute`: runs a script on a server, where that is allowed.

use std::time::Duration;

use http::Method;
use muster_shared::lenient::js_number;

use super::ask::pick;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::{FLAG_PATTERN, Rule};
use super::schema;

const PARAMS: &[Param] = &[
    Param::new("script", &[Rule::StringType], "The script, with its `#!` line"),
    Param::new("args", &[Rule::Optional, Rule::ArrayType], "Its arguments")
        .checked(schema::arguments),
    Param::new("env", &[Rule::Optional, Rule::ObjectType], "Its environment")
        .checked(schema::environment),
    Param::new(
        "json",
        &[Rule::Optional, Rule::Regex(FLAG_PATTERN), Rule::ToBoolean],
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
    let params = pick(&request, &["script", "args", "env", "timeout"]);
    let limit = request.param("timeout").and_then(js_number).filter(|ms| *ms > 0.0);
    let limit = limit.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
    let server = request.server()?;
    let done = request.app.nodes.command_execute(server, params, limit, &request.caller).await?;
    if request.flag("json") == Some(true) {
        return Response::json(done);
    }
    if done.exit_code != Some(0) {
        let message = "Error executing on remote system".to_owned();
        return Err(ApiError::Internal { message, source: None });
    }
    Response::json(done.stdout.trim())
}
