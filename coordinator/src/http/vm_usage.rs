//! `/vms/usage`: what VMs use.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use muster_shared::api::usage::FleetVmUsage;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use crate::app::UsageFilter;

const PARAMS: &[Param] = &[
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Only on this server"),
    Param::new(
        "max_age",
        &[Rule::Optional, Rule::NotNegative],
        "Have agents asked that told longer ago than this, seconds; else what they told last, \
         which is up to a minute old",
    )
    .schema(schema::seconds),
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("marker", &[Rule::Optional, Rule::Uuid], "After this VM"),
];
/// Most VMs in one answer.
const MAX_LIMIT: usize = 1_000;
/// Figures are never older than that without a reason.
const MAX_AGE: Duration = Duration::from_secs(3600);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/vms/usage", "FleetVmUsage", list)
            .summary(
                "What VMs use, in uuid order: counters since each one's start; rates are the \
                 difference of two answers",
            )
            .params(PARAMS)
            .reply_headers(&[("x-next-marker", "`marker` of the next page, if there is one")])
            .returns_schema(schema::array_of::<FleetVmUsage>),
    ]
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let max_age = request.seconds("max_age");
    if max_age.is_some_and(|age| age > MAX_AGE) {
        return Err(ApiError::invalid("max_age", "must be from 0 to 3600"));
    }
    let filter = UsageFilter {
        server: request.text("server_uuid").and_then(|text| text.parse().ok()),
        marker: request.text("marker").and_then(|text| text.parse().ok()),
        limit: request.limit()?,
        max_age,
    };
    let vms = request.app.usage.list(&filter, &request.caller.req_id).await;
    let full = vms.len() == filter.limit.unwrap_or(MAX_LIMIT);
    let last = vms.last().filter(|_| full);
    let next = last.and_then(|last| HeaderValue::try_from(last.uuid.to_string()).ok());
    let answer = Response::list(vms)?;
    Ok(match next {
        Some(next) => answer.header(HeaderName::from_static("x-next-marker"), next),
        None => answer,
    })
}
