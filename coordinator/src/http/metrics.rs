//! `GET /metrics`: on the API, and on a listener of its own.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, StatusCode};
use warp::Filter;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::Route;
use super::{Shell, process};

/// The text format's media type.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/metrics", "Metrics", |request| async move { get(&request) })
            .summary("Metrics in the text format of Prometheus")
            .returns_bytes(CONTENT_TYPE)
            .unaudited(),
    ]
}

fn get(request: &Request) -> Result<Response, ApiError> {
    let text = text(&request.shell)
        .map_err(|error| ApiError::internal("cannot encode the metrics", error))?;
    Ok(Response::bytes(CONTENT_TYPE, text))
}

/// The coordinator's metrics and those of its process.
fn text(shell: &Shell) -> Result<String, std::fmt::Error> {
    let metrics = shell.app.metrics();
    Ok(process::metrics(shell.started, metrics.static_labels()) + &metrics.text()?)
}

/// The separate listener: metrics at `/metrics`, nothing else.
pub(super) fn filter(
    shell: &Arc<Shell>,
) -> impl Filter<Extract = (warp::reply::Response,), Error = Infallible> + Clone + use<> {
    let shell = Arc::clone(shell);
    warp::method().and(warp::path::full()).map(move |method: Method, path: warp::path::FullPath| {
        let mut response = warp::reply::Response::default();
        *response.status_mut() = match (method, path.as_str()) {
            (Method::GET, "/metrics") => match text(&shell) {
                Ok(text) => {
                    *response.body_mut() = text.into();
                    let kind = http::HeaderValue::from_static(CONTENT_TYPE);
                    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
                    StatusCode::OK
                }
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            },
            (_, "/metrics") => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::NOT_FOUND,
        };
        response
    })
}
