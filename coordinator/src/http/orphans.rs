//! `/servers/:server_uuid/orphans`: what lies on a server under a VM's name without a record.

use http::Method;
use muster_shared::api::Object;
use muster_shared::api::orphan::Orphans;
use muster_shared::api::task::TaskStarted;

use super::ask::Ask;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use super::servers::start_task;

const CONFIRM: &[Param] =
    &[Param::new("confirm", &[Rule::StringType], "The same UUID: nothing brings it back")];

pub(super) fn routes() -> Vec<Route> {
    let start = |method, pattern, operation, task| {
        let route = Route::new(method, pattern, operation, move |r: Request| start_task(r, task));
        route
            .server(ServerRule::Exists)
            .running()
            .fenced()
            .returns_schema(schema::of::<TaskStarted>)
    };
    vec![
        Route::new(Method::GET, "/servers/:server_uuid/orphans", "ServerOrphans", list)
            .summary("Guests, disks and copies of records that belong to no VM of the server")
            .server(ServerRule::Exists)
            .errors(&[501, 503])
            .fenced()
            .returns_schema(schema::of::<Orphans>),
        start(
            Method::POST,
            "/servers/:server_uuid/orphans/:uuid/adopt",
            "OrphanAdopt",
            "orphan_adopt",
        )
        .summary("Turns an orphan into a VM of the server, from the copy of its record"),
        start(
            Method::DELETE,
            "/servers/:server_uuid/orphans/:uuid",
            "OrphanRemove",
            "orphan_remove",
        )
        .summary("Ends an orphan's guest and removes its disks for good")
        .params(CONFIRM),
    ]
}

async fn list(request: Request) -> Result<Response, ApiError> {
    Response::json(Ask::new("server_orphans", Object::new(), 60).query(&request).await?)
}
