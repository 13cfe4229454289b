//! `/tasks`: one task, waiting for it, stopping it, all of them.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use muster_shared::api::task::{Task, TaskStarted, TaskStatus};
use muster_shared::ids::TaskId;
use muster_shared::lenient::js_parse_int;
use serde::Deserialize as _;
use serde_json::Value;

use super::MAX_WAITS_OF_CLIENT;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use crate::app::AppError;
use crate::app::tasks::{MAX_WAIT, TaskFilter};

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType];
const LIST_PARAMS: &[Param] = &[
    Param::new("status", TEXT, "`active`, `complete` or `failure`"),
    Param::new("task", TEXT, "Only of this kind"),
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Only on this server"),
    Param::new("vm_uuid", &[Rule::Optional, Rule::Uuid], "Only about this VM"),
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("marker", TEXT, "After this task; see the header x-next-marker"),
];
const WAIT_PARAMS: &[Param] =
    &[Param::new("timeout", &[], "Seconds; 3600 when absent, 0 or no number")
        .schema(schema::seconds)];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/tasks", "TaskList", list)
            .summary("Tasks, oldest first")
            .params(LIST_PARAMS)
            .reply_headers(&[("x-next-marker", "`marker` of the next page, if there is one")])
            .returns_schema(schema::array_of::<Task>),
        Route::new(Method::GET, "/tasks/:taskid", "TaskGet", get)
            .summary("One task")
            .versioned()
            .returns_schema(schema::of::<Task>),
        Route::new(Method::GET, "/tasks/:taskid/wait", "TaskWait", wait)
            .summary("One task, once it has ended or the timeout has passed")
            .params(WAIT_PARAMS)
            .errors(&[503])
            .returns_schema(schema::of::<Task>),
        Route::new(Method::POST, "/tasks/:taskid/cancel", "TaskCancel", cancel)
            .summary("Cancels a task, if it can still be stopped")
            .success(StatusCode::ACCEPTED)
            .versioned()
            .errors(&[409, 503])
            .returns_schema(schema::of::<TaskStarted>),
    ]
}

fn task_id(request: &Request) -> Result<TaskId, ApiError> {
    let id = request.text("taskid").and_then(|text| text.parse().ok());
    id.ok_or_else(|| AppError::TaskNotFound.into())
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let status = request.param("status").map(TaskStatus::deserialize).transpose();
    let status =
        status.map_err(|_| ApiError::invalid("status", "must be active, complete or failure"))?;
    let filter = TaskFilter {
        status,
        task: request.text("task").map(str::to_owned),
        server: request.text("server_uuid").and_then(|text| text.parse().ok()),
        vm: request.text("vm_uuid").and_then(|text| text.parse().ok()),
        limit: request.limit()?,
        marker: request.text("marker").and_then(|text| text.parse().ok()),
    };
    let page = request.app.tasks.list(&filter).await?;
    let answer = Response::list(page.tasks)?;
    let next = page.next.and_then(|id| HeaderValue::try_from(id.as_str()).ok());
    Ok(match next {
        Some(next) => answer.header(HeaderName::from_static("x-next-marker"), next),
        None => answer,
    })
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let id = task_id(&request)?;
    // Before the record: a version that is too old is refused, one that is too new is not.
    let version = request.app.tasks.version(&id).await?;
    Ok(Response::json(request.app.tasks.get(&id).await?)?.etag(version))
}

async fn wait(request: Request) -> Result<Response, ApiError> {
    let id = task_id(&request)?;
    let timeout = wait_timeout(request.param("timeout"));
    let _share = request.share(&request.shell.waits, MAX_WAITS_OF_CLIENT, "waits")?;
    Response::json(request.app.tasks.wait(&id, timeout).await?)
}

/// As the reference reads it: whole seconds in front of the text; none and 0 are the default.
fn wait_timeout(value: Option<&Value>) -> Duration {
    match value.and_then(js_parse_int) {
        None | Some(0) => MAX_WAIT,
        // Less than nothing is over at once.
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }
}

async fn cancel(request: Request) -> Result<Response, ApiError> {
    let id = task_id(&request)?;
    request.app.tasks.cancel(&id, &request.expected()).await?;
    Response::json(TaskStarted { id })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_is_as_long_as_in_the_reference() {
        for (text, seconds) in [
            ("0", 3600),
            ("", 3600),
            ("soon", 3600),
            ("0.9", 3600),
            ("7", 7),
            ("7.9s", 7),
            ("-1", 0),
        ] {
            let expected = Duration::from_secs(seconds);
            assert_eq!(wait_timeout(Some(&json!(text))), expected, "{text}");
        }
        assert_eq!(wait_timeout(None), MAX_WAIT);
    }
}
