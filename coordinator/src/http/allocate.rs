//! `/allocate` and `/capacity`: where a VM would fit.

use http::Method;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Route, object_schema};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::POST, "/allocate", "SelectServer", allocate)
            .summary("The server for a VM, and the steps that led to it")
            .errors(&[409])
            .returns_schema(object_schema),
        Route::new(Method::POST, "/capacity", "ServerCapacity", capacity)
            .summary("What servers have left: percent of a core, MiB of memory and disk")
            .errors(&[409])
            .returns_schema(object_schema),
    ]
}

async fn allocate(request: Request) -> Result<Response, ApiError> {
    Response::json(request.app.allocate(&request.params)?)
}

async fn capacity(request: Request) -> Result<Response, ApiError> {
    Response::json(request.app.capacity(&request.params)?)
}
