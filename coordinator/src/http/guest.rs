//! `/servers/:server_uuid/vms/:uuid/exec`, `…/file` and `…/login`: what a VM's guest agent does inside.

use http::Method;
use muster_shared::api::Object;
use muster_shared::api::vm::{FilePiece, FileWritten, GuestExecuted};
use muster_shared::lenient;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ask::{Ask, pick};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use super::vms::in_cnapi_s_words;
use crate::app::AppError;

/// Longest run of a command that names no limit, seconds; the agent has the same.
const EXEC_SECONDS: u64 = 60;
/// What the answer may take beside a command, and longest wait for anything else, seconds.
const ANSWER_SECONDS: u64 = 125;
const NOT_UNDERSTOOD: &str = "the agent's answer is not understood";

const EXEC_PARAMS: &[Param] = &[
    Param::new("argv", &[Rule::ArrayType], "Program and arguments").checked(schema::texts),
    Param::new(
        "stdin",
        &[Rule::Optional, Rule::StringType],
        "What it reads: base64, at most 48 KiB",
    ),
    Param::new("timeout", &[], "Seconds that it may take; else 60").checked(schema::exec_seconds),
];
const PATH: Param = Param::new("path", &[Rule::StringType], "Of the file in the guest");
const OFFSET: Param =
    Param::new("offset", &[], "Where the piece begins, bytes; else 0").checked(schema::file_offset);
const READ_PARAMS: &[Param] = &[PATH, OFFSET];
const WRITE_PARAMS: &[Param] = &[
    PATH,
    OFFSET,
    Param::new(
        "data",
        &[Rule::StringType],
        "The piece, base64. The file is made, or emptied, with the one at 0",
    ),
];
const LOGIN_PARAMS: &[Param] = &[
    Param::new("user", &[Rule::StringType], "Of the guest"),
    Param::new("password", &[Rule::Optional, Rule::StringType], "Its new password"),
    Param::new(
        "ssh_keys",
        &[Rule::Optional, Rule::ArrayType],
        "Public keys that it may log in with",
    )
    .checked(schema::texts),
    Param::new("replace_keys", &[], "Its other keys go").checked(schema::flag),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Method::POST, "/servers/:server_uuid/vms/:uuid/exec", "VmExec", exec)
            .summary("Runs a command in the guest, through its guest agent, and waits for its end")
            .params(EXEC_PARAMS)
            .returns_schema(schema::of::<GuestExecuted>),
        route(Method::GET, "/servers/:server_uuid/vms/:uuid/file", "VmFileRead", read)
            .summary("A piece of a file of the guest, at most 256 KiB; an empty one is its end")
            .params(READ_PARAMS)
            .returns_schema(schema::of::<FilePiece>),
        route(Method::PUT, "/servers/:server_uuid/vms/:uuid/file", "VmFileWrite", write)
            .summary("Writes a piece of a file of the guest")
            .params(WRITE_PARAMS)
            .returns_schema(schema::of::<FileWritten>),
        route(Method::POST, "/servers/:server_uuid/vms/:uuid/login", "VmLogin", login)
            .summary("Sets a password of the guest, or the keys that a user of it logs in with")
            .params(LOGIN_PARAMS)
            .no_content(),
    ]
}

fn route<F, Fut>(
    method: Method,
    pattern: &'static str,
    operation: &'static str,
    handler: F,
) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Route::new(method, pattern, operation, handler)
        .server(ServerRule::Exists)
        .vm()
        .running()
        .fenced()
}

async fn exec(request: Request) -> Result<Response, ApiError> {
    let seconds = request.param("timeout").and_then(lenient::number).unwrap_or(EXEC_SECONDS);
    let params = about(&request, &["argv", "stdin", "timeout"])?;
    let ask = Ask::new("machine_exec", params, seconds.saturating_add(ANSWER_SECONDS));
    Response::json(answer::<GuestExecuted>(&request, ask).await?)
}

async fn read(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &["path", "offset"])?;
    let ask = Ask::new("machine_file_read", params, ANSWER_SECONDS);
    Response::json(answer::<FilePiece>(&request, ask).await?)
}

async fn write(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &["path", "offset", "data"])?;
    let ask = Ask::new("machine_file_write", params, ANSWER_SECONDS);
    Response::json(answer::<FileWritten>(&request, ask).await?)
}

async fn login(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &["user", "password", "ssh_keys", "replace_keys"])?;
    let ask = Ask::new("machine_login", params, ANSWER_SECONDS);
    answer::<Object>(&request, ask).await?;
    Ok(Response::empty())
}

/// The VM and these parameters.
fn about(request: &Request, names: &[&str]) -> Result<Object, ApiError> {
    let mut params = pick(request, names);
    params.set("uuid", json!(request.vm()?));
    Ok(params)
}

async fn answer<T: DeserializeOwned>(request: &Request, ask: Ask) -> Result<T, ApiError> {
    let vm = request.vm()?;
    let answer: Value = ask.query(request).await.map_err(|error| in_cnapi_s_words(error, vm))?;
    Ok(T::deserialize(answer).map_err(|_| AppError::Answer(NOT_UNDERSTOOD))?)
}
