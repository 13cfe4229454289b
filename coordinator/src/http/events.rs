//! Heartbeats and status updates of agents that POST.

use http::Method;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Route, ServerRule};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::POST,
            "/servers/:server_uuid/events/heartbeat",
            "ServerEventHeartbeat",
            heartbeat,
        )
        .summary("A sign of life")
        .strict()
        .server(ServerRule::Shaped)
        .no_content()
        .unaudited(),
        Route::new(
            Method::POST,
            "/servers/:server_uuid/events/status",
            "ServerEventStatusUpdate",
            status,
        )
        .summary("VMs, memory and disk of a server; nothing is validated")
        .server(ServerRule::Exists)
        .no_content(),
    ]
}

async fn heartbeat(request: Request) -> Result<Response, ApiError> {
    request.app.heartbeat_posted(request.server()?);
    Ok(Response::empty())
}

async fn status(request: Request) -> Result<Response, ApiError> {
    request.app.status_posted(request.server()?, &request.params);
    Ok(Response::empty())
}
