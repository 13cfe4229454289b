//! Heartbeats and status updates of agents that POST.

use http::Method;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::schema;

/// What of it is not of its type is left out, as in the reference.
const STATUS_PARAMS: &[Param] = &[
    Param::new("vms", &[], "VMs by uuid; left out: as before").schema(schema::reported_vms),
    Param::new("meminfo", &[], "Memory").schema(schema::meminfo),
    Param::new("diskinfo", &[], "Disks").schema(schema::diskinfo),
    Param::new("zpoolStatus", &[], "Pools; ignored").schema(schema::object_schema),
    Param::new("boot_time", &[], "ISO time; ignored").schema(schema::text),
    Param::new("timestamp", &[], "ISO time; ignored").schema(schema::text),
    Param::new("vm_index", &[], "More about VMs, by uuid").schema(schema::vm_index),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::POST,
            "/servers/:server_uuid/events/heartbeat",
            "ServerEventHeartbeat",
            heartbeat,
        )
        .summary("Heartbeat of an agent")
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
        .summary("Status report of an agent: VMs, memory and disk; not validated")
        .server(ServerRule::Exists)
        .params(STATUS_PARAMS)
        .no_content(),
    ]
}

async fn heartbeat(request: Request) -> Result<Response, ApiError> {
    request.app.reports.heartbeat_posted(request.server()?);
    Ok(Response::empty())
}

async fn status(request: Request) -> Result<Response, ApiError> {
    request.app.reports.status_posted(request.server()?, &request.params);
    Ok(Response::empty())
}
