//! `GET /metrics`: on the API, and on a listener of its own.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, StatusCode};
use muster_shared::exposition::{CONTENT_TYPE, Exposition};
use muster_shared::process_usage;
use muster_shared::threads::compute;
use warp::Filter;

use super::Shell;
use super::error::ApiError;
use super::fleet_metrics;
use super::request::Request;
use super::response::Response;
use super::route::Route;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/metrics", "Metrics", get)
            .summary("Metrics in the text format of Prometheus")
            .returns_bytes(CONTENT_TYPE)
            .unaudited(),
    ]
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let text = text(Arc::clone(&request.shell)).await;
    let text = text.map_err(|error| ApiError::internal("cannot encode the metrics", error))?;
    Ok(Response::bytes(CONTENT_TYPE, text))
}

/// The coordinator's metrics, and those of its process, its fleet and its store.
async fn text(shell: Arc<Shell>) -> Result<String, std::fmt::Error> {
    let threads = Arc::clone(&shell.app.parts().threads);
    // All servers and VMs are looked at, and the disk is asked.
    compute(&*threads, move || {
        let metrics = shell.app.metrics();
        let mut page = Exposition::new(metrics.static_labels());
        process_usage::describe(&mut page, shell.started);
        fleet_metrics::describe(&mut page, &shell.app.monitoring.counts());
        if let Some(folder) = &shell.config.store_dir {
            fleet_metrics::describe_store(&mut page, folder);
        }
        Ok(page.into_text() + &metrics.text()?)
    })
    .await
}

/// The separate listener: metrics at `/metrics`, nothing else.
pub(super) fn filter(
    shell: &Arc<Shell>,
) -> impl Filter<Extract = (warp::reply::Response,), Error = Infallible> + Clone + use<> {
    let shell = Arc::clone(shell);
    warp::method().and(warp::path::full()).then(
        move |method: Method, path: warp::path::FullPath| {
            let shell = Arc::clone(&shell);
            async move {
                let mut response = warp::reply::Response::default();
                *response.status_mut() = match (method, path.as_str()) {
                    (Method::GET, "/metrics") => match text(shell).await {
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
            }
        },
    )
}
