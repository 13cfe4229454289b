//! `GET /ping`: whether the coordinator can work.

use http::Method;
use muster_shared::api::info::{Ping, ServiceState, Services};

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::Route;
use super::schema;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/ping", "Ping", ping)
            .summary("Health of this coordinator and of what it depends on")
            .returns_schema(schema::of::<Ping>)
            .unaudited(),
    ]
}

/// Always 200; the names are those of the reference: workflow = job runner, moray = store,
/// amqp = agent hub.
async fn ping(request: Request) -> Result<Response, ApiError> {
    let app = &request.app;
    let store = !app.has_failed() && app.parts().store.get("ping").await.is_ok();
    let online = ServiceState::Online;
    let moray = if store { online } else { ServiceState::Offline };
    let services = Services { workflow: online, moray, amqp: online };
    Response::json(Ping { ready: store, services })
}
