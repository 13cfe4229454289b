//! Operations of CNAPI that are not implemented: the path is known, the answer is 501.
//!
//! An operation that gets its implementation leaves this list.

use http::{Method, StatusCode};

use super::error::ApiError;
use super::route::Route;

const OPERATIONS: &[(Method, &str, &str)] = &[];

pub(super) fn routes() -> Vec<Route> {
    let route = |(method, pattern, operation): &(Method, &'static str, &'static str)| {
        let operation = *operation;
        let refuse = move |_request| async move { Err(ApiError::NotImplemented(operation)) };
        Route::new(method.clone(), pattern, operation, refuse)
            .summary("Not implemented")
            .success(StatusCode::NOT_IMPLEMENTED)
    };
    OPERATIONS.iter().map(route).collect()
}
