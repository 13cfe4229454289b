//! `/why`: what a thing waits for.

use http::Method;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::Route;
use super::schema;
use crate::app::AppError;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/why/:kind/:id", "Why", why)
            .summary("What a task, VM, server or ticket is waiting for, in plain words; /why/store/records names records that cannot be read")
            .returns_schema(schema::why),
    ]
}

async fn why(request: Request) -> Result<Response, ApiError> {
    let id = request.text("id").unwrap_or_default();
    let app = &request.app;
    let missing = |what: &str| ApiError::NotFound(format!("{what} {id} not found"));
    match request.text("kind").unwrap_or_default() {
        "task" => {
            let id = id.parse().map_err(|_| ApiError::from(AppError::TaskNotFound))?;
            Response::json(app.why.task(&id).await?)
        }
        "server" => {
            let server = id.parse().map_err(|_| missing("Server"))?;
            Response::json(app.why.server(server)?)
        }
        "vm" => {
            let vm = id.parse().map_err(|_| missing("VM"))?;
            Response::json(app.why.vm(vm)?)
        }
        "ticket" => {
            let ticket =
                id.parse().map_err(|_| ApiError::NotFound(format!("ticket {id} not found")))?;
            Response::json(app.why.ticket(ticket).await?)
        }
        "store" if id == "records" => Response::json(app.why.records()),
        kind => Err(ApiError::NotFound(format!("/why/{kind} does not exist"))),
    }
}
