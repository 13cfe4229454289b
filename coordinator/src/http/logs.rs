//! `/logs`: what daemons logged of late, this coordinator and servers' agents.

use http::Method;
use muster_shared::api::log::LogPage;
use muster_shared::wire::logs::LogQuery;

use super::MAX_WAITS_OF_CLIENT;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType];
const WHOLE: &[Rule] = &[Rule::Optional, Rule::Int];

const PARAMS: &[Param] = &[
    Param::new("after", WHOLE, "The first lines after the one of this number; absent: the last")
        .schema(schema::whole_number),
    Param::new(
        "instance",
        &[Rule::Optional, Rule::Uuid],
        "The process that counted `after`; when it is another one now, all its lines are after it",
    ),
    Param::new("limit", WHOLE, "At most this many, 1 to 1000").schema(schema::limit),
    Param::new("level", TEXT, "Only lines that matter this much: error, warn, info, debug, trace")
        .schema(schema::levels),
    Param::new("task", TEXT, "Only about the task of this id"),
    Param::new("vm", &[Rule::Optional, Rule::Uuid], "Only about this VM"),
    Param::new("max_age", WHOLE, "Only of the last so many seconds, by the daemon's own clock")
        .schema(schema::whole_number),
    Param::new("wait", WHOLE, "Seconds to wait when there is no such line yet, 0 to 30")
        .schema(schema::log_wait),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // A line about each look would be the next one to look at.
        Route::new(Method::GET, "/logs", "LogList", of_coordinator)
            .summary("Recent log lines of this coordinator, oldest first")
            .params(PARAMS)
            .errors(&[503])
            .unaudited()
            .returns_schema(schema::of::<LogPage>),
        Route::new(Method::GET, "/servers/:server_uuid/logs", "ServerLogList", of_server)
            .summary("Recent log lines of the server's agent, oldest first")
            .server(ServerRule::Exists)
            .params(PARAMS)
            .errors(&[501, 503])
            .returns_schema(schema::of::<LogPage>),
    ]
}

fn query(request: &Request) -> Result<LogQuery, ApiError> {
    LogQuery::read(|name| request.param(name))
        .map_err(|bad| ApiError::invalid(bad.field, bad.problem))
}

async fn of_coordinator(request: Request) -> Result<Response, ApiError> {
    let query = query(&request)?;
    let Some(log) = &request.shell.config.log else {
        return Err(ApiError::Unavailable("this process does not log".to_owned()));
    };
    let _share = request.share(&request.shell.waits, MAX_WAITS_OF_CLIENT, "waits")?;
    Ok(Response::unwritten(log.ring().read(&query).await))
}

async fn of_server(request: Request) -> Result<Response, ApiError> {
    let (server, query) = (request.server()?, query(&request)?);
    let _share = request.share(&request.shell.waits, MAX_WAITS_OF_CLIENT, "waits")?;
    let page = request.app.nodes.logs(server, &query, &request.caller).await?;
    Ok(Response::unwritten(page))
}
