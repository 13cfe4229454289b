//! What the coordinator says about itself: version, log level, diagnostics, OpenAPI document.

use http::Method;
use muster_shared::api::Object;
use muster_shared::api::info::{Diagnostics, LogLevel, ProcessMemory, Version};
use muster_shared::clock::iso;
use muster_shared::process_usage;
use serde_json::Value;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, object_schema};
use super::{openapi, schema};

/// bunyan's numbers for the levels that tracing has.
const LEVELS: [(u64, &str); 6] =
    [(10, "trace"), (20, "debug"), (30, "info"), (40, "warn"), (50, "error"), (60, "off")];

/// Open tasks that the diagnostics name.
const MAX_SHOWN_TASKS: usize = 1_000;

const LOG_LEVEL_PARAMS: &[Param] =
    &[Param::new("level", &[], "A name (`info`) or bunyan's number (30); needed")
        .schema(schema::log_levels)];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/info", "Info", info)
            .summary("The coordinator's version")
            .returns_schema(schema::of::<Version>),
        Route::new(Method::GET, "/loglevel", "LogLevelGet", log_level)
            .summary("The log level, as bunyan's number (10 trace … 60 off)")
            .returns_schema(schema::of::<LogLevel>),
        Route::new(Method::POST, "/loglevel", "LogLevelSet", set_log_level)
            .summary("Changes the log level")
            .params(LOG_LEVEL_PARAMS)
            .errors(&[503]),
        Route::new(Method::GET, "/diagnostics", "Diagnostics", diagnostics)
            .summary("When the process started and what it uses")
            .returns_schema(schema::of::<Diagnostics>),
        Route::new(Method::GET, "/openapi.json", "OpenApi", openapi_document)
            .summary("This API as an OpenAPI 3.1 document")
            .returns_schema(object_schema),
    ]
}

async fn info(_request: Request) -> Result<Response, ApiError> {
    Response::json(Version { version: env!("CARGO_PKG_VERSION").to_owned() })
}

async fn log_level(request: Request) -> Result<Response, ApiError> {
    let filter = request.shell.config.log.as_ref().map(|log| log.filter()).unwrap_or_default();
    // A filter by module has one default level, which stands alone between commas.
    let named = filter
        .split(',')
        .map(str::trim)
        .find_map(|part| LEVELS.iter().find(|(_, name)| name.eq_ignore_ascii_case(part)));
    Response::json(LogLevel { level: named.map_or(30, |(number, _)| *number) })
}

async fn set_log_level(request: Request) -> Result<Response, ApiError> {
    let level = match request.param("level") {
        Some(Value::String(text)) => text.trim().to_ascii_lowercase(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    let known = LEVELS.iter().find(|(number, name)| {
        // bunyan's `fatal` is the strictest level that shows anything.
        *name == level || number.to_string() == level || (level == "fatal" && *number == 50)
    });
    let Some((_, name)) = known else {
        return Err(ApiError::invalid("level", "must be a log level"));
    };
    let Some(log) = &request.shell.config.log else {
        return Err(ApiError::Unavailable("this process does not log".to_owned()));
    };
    log.set(name).map_err(|error| ApiError::internal("cannot change the log level", error))?;
    Ok(Response::empty())
}

async fn diagnostics(request: Request) -> Result<Response, ApiError> {
    let rss = process_usage::usage().resident_bytes;
    Response::json(Diagnostics {
        start_timestamp: iso(request.shell.started),
        memory: ProcessMemory { rss, heap_total: rss, heap_used: rss, external: 0 },
        task_callbacks: request.app.tasks.open_by_kind(MAX_SHOWN_TASKS),
        pending_activations: Object::new(),
    })
}

async fn openapi_document(request: Request) -> Result<Response, ApiError> {
    let shell = &request.shell;
    // It is large and never changes: made for each request, a few readers would keep everybody
    // else waiting.
    let text = shell.openapi.get_or_init(|| {
        let routes = shell.groups.iter().flat_map(|group| &group.routes);
        openapi::document(routes).to_string().into()
    });
    Ok(Response::text(text.clone()))
}
