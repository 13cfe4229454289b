//! The routes of the local HTTP, and what each does.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request};
use muster_shared::error_chain::Chain;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::secrets::masked;
use muster_shared::wire::logs::LogQuery;
use muster_shared::wire::{Code, Intake, OPERATOR};
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::{Local, console, metrics};
use crate::report::feed::PoolAge;
use crate::tasks::record::{Origin, State};
use crate::tasks::{Class, Filter, Refusal, Submission};

/// Largest request body.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Longest wait of `GET /tasks/:id/wait`, and the default.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Most entries of a list, and the default.
const MAX_LIST: usize = 1000;

type Query = Map<String, Value>;

/// Finds the route and runs it.
pub(super) async fn route(
    request: Request<Incoming>,
    local: &Arc<Local>,
    id: &str,
    origin: Origin,
) -> Answer {
    let method = request.method().clone();
    let path = request.uri().path().trim_matches('/').to_owned();
    let query = query(request.uri().query().unwrap_or_default());
    let segments: Vec<&str> = path.split('/').collect();
    let get = matches!(method, Method::GET | Method::HEAD);
    match (get, segments.as_slice()) {
        (true, ["ping"]) => ping(local),
        (true, ["history"]) => Answer::json(200, &local.agent.engine.history().await.into()),
        (true, ["status"]) => status(local).await,
        (true, ["tasks"]) => list(local, &query).await,
        (true, ["tasks", task]) => task_get(local, task).await,
        (true, ["tasks", task, "log"]) => task_log(local, task).await,
        (true, ["tasks", task, "wait"]) => task_wait(local, task, &query).await,
        (true, ["queues"]) => queues(local),
        (true, ["logs"]) => logs(local, &query).await,
        (true, ["vms"]) => vms(local),
        (true, ["vms", vm]) => vm_get(local, vm),
        (true, ["vms", vm, "console"]) => console::open(request, local, vm).await,
        (true, ["sysinfo"]) => {
            Answer::json(200, &local.agent.feed.sysinfo().borrow().sysinfo.clone().into())
        }
        (true, ["metrics"]) => {
            let interfaces = local.agent.drivers.report.interfaces().await;
            Answer::text(metrics::render(&local.agent, local.started, &interfaces))
        }
        (false, _) if method != Method::POST => Answer::bad_method(&method),
        (false, ["tasks"]) => run(request, local, query, id, origin).await,
        (false, ["tasks", task, "cancel"]) => cancel(local, task),
        (false, ["sysinfo", "refresh"]) => {
            Answer::json(200, &local.agent.feed.refresh().await.sysinfo.clone().into())
        }
        (false, ["pause"]) => intake(local.agent.engine.pause(OPERATOR, "paused locally").await),
        (false, ["resume"]) => intake(local.agent.engine.resume(Some(OPERATOR)).await),
        _ => Answer::error(404, &Code::ResourceNotFound, &format!("/{path} does not exist")),
    }
}

/// Whether the original agent has this route.
pub(super) fn is_of_the_original(method: &Method, path: &str) -> bool {
    matches!(
        (method.as_str(), path),
        ("POST", "/tasks" | "/pause" | "/resume") | ("GET", "/history" | "/ping")
    )
}

fn query(text: &str) -> Query {
    url::form_urlencoded::parse(text.as_bytes())
        .map(|(key, value)| (key.into_owned(), Value::String(value.into_owned())))
        .collect()
}

fn ping(local: &Local) -> Answer {
    let engine = &local.agent.engine;
    let counts = engine.counts();
    Answer::json(
        200,
        &json!({
            "ping": "pong",
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "server_uuid": local.agent.server_uuid,
            "draining": engine.intake() != Intake::Accepting,
            "intake": engine.intake(),
            "coordinator": local.agent.links.summary(),
            "degraded": degraded(local),
            "active_tasks": counts.active,
            "queued_tasks": counts.queued,
        }),
    )
}

/// What is wrong that only people can change.
fn degraded(local: &Local) -> Vec<String> {
    let turned_away = local.agent.links.turned_away();
    let turned_away = turned_away.iter().map(|(url, reason)| format!("{url}: {reason}"));
    turned_away.chain(local.agent.drivers.report.remarks()).collect()
}

async fn status(local: &Local) -> Answer {
    match local.agent.feed.sample(PoolAge::Fresh).await {
        Ok(mut sample) => {
            crate::link::remark(&mut sample, &local.agent.engine);
            let mut status = serde_json::to_value(&sample.figures).unwrap_or_default();
            status["vms"] = serde_json::to_value(&sample.vms).unwrap_or_default();
            Answer::json(200, &status)
        }
        Err(error) => internal(&error),
    }
}

fn internal(error: &(dyn std::error::Error + 'static)) -> Answer {
    tracing::warn!(error = %Chain(error), "a local request failed");
    Answer::error(500, &Code::InternalError, &error.to_string())
}

fn intake(done: Result<(), Refusal>) -> Answer {
    match done {
        Ok(()) => Answer::empty(204),
        Err(error) => internal(&error),
    }
}

fn unknown(task: &str) -> Answer {
    Answer::error(404, &Code::ResourceNotFound, &format!("task {task} does not exist"))
}

async fn list(local: &Local, query: &Query) -> Answer {
    let text = |key: &str| query.get(key).and_then(Value::as_str).map(str::to_owned);
    let vm = text("vm_uuid").map(|vm| vm.parse::<VmUuid>()).transpose();
    let after = text("after").map(|id| id.parse::<TaskId>()).transpose();
    let part_of = text("part_of").map(|id| id.parse::<TaskId>()).transpose();
    let limit = text("limit").map(|n| n.parse::<usize>()).transpose();
    let (Ok(vm), Ok(after), Ok(part_of), Ok(limit)) = (vm, after, part_of, limit) else {
        let text = "vm_uuid, after, part_of or limit is malformed";
        return Answer::error(409, &Code::InvalidArgument, text);
    };
    if let Some(status) = text("status").filter(|status| !Filter::is_status(status)) {
        let text = format!("status {status:?} is none that a task has");
        return Answer::error(409, &Code::InvalidArgument, &text);
    }
    let limit = limit.unwrap_or(MAX_LIST).min(MAX_LIST);
    let (status, task) = (text("status"), text("task"));
    let filter = Filter { status, task, vm, part_of, after, limit };
    Answer::json(200, &local.agent.engine.list(&filter).await.into())
}

async fn task_get(local: &Local, id: &str) -> Answer {
    let Ok(id) = id.parse::<TaskId>() else { return unknown(id) };
    match local.agent.engine.view(&id).await {
        Some(view) => Answer::json(200, &view),
        None => unknown(id.as_str()),
    }
}

/// The task's events, one JSON object a line.
async fn task_log(local: &Local, id: &str) -> Answer {
    let Ok(id) = id.parse::<TaskId>() else { return unknown(id) };
    let Some(view) = local.agent.engine.view(&id).await else { return unknown(id.as_str()) };
    let messages = view["messages"].as_array().into_iter().flatten();
    Answer::lines(messages.map(|message| format!("{message}\n")).collect())
}

async fn task_wait(local: &Local, id: &str, query: &Query) -> Answer {
    let Ok(task) = id.parse::<TaskId>() else { return unknown(id) };
    let seconds = query.get("timeout").and_then(Value::as_str).map(str::parse::<u64>).transpose();
    let Ok(seconds) = seconds else {
        return Answer::error(409, &Code::InvalidArgument, "timeout must be a number of seconds");
    };
    let limit = seconds.map_or(MAX_WAIT, Duration::from_secs).min(MAX_WAIT);
    if local.agent.engine.wait(&task, limit).await {
        return task_get(local, id).await;
    }
    Answer::error(504, &Code::Timeout, "the task has not ended")
}

fn cancel(local: &Local, id: &str) -> Answer {
    let Ok(id) = id.parse::<TaskId>() else { return unknown(id) };
    match local.agent.engine.cancel(&id) {
        Ok(()) => Answer::json(202, &json!({ "id": id })),
        Err(refusal) => Answer::refused(&refusal),
    }
}

/// What the agent logged of late.
async fn logs(local: &Local, query: &Query) -> Answer {
    match LogQuery::read(|name| query.get(name)) {
        Ok(query) => Answer::json(200, &json!(local.agent.drivers.log.read(&query).await)),
        Err(bad) => Answer::error(409, &Code::InvalidArgument, &bad.to_string()),
    }
}

fn queues(local: &Local) -> Answer {
    let engine = &local.agent.engine;
    let entry = |(queue, depth): (crate::tasks::Queue, crate::tasks::order::Depth)| {
        json!({
            "name": queue.name,
            "tasks": engine.registry().kinds_in(queue.name),
            "max_concurrent": queue.max_concurrent,
            "max_wait_s": queue.max_wait.as_secs(),
            "running": depth.running,
            "waiting": depth.waiting,
        })
    };
    Answer::json(200, &engine.queues().into_iter().map(entry).collect::<Vec<_>>().into())
}

fn vms(local: &Local) -> Answer {
    let vms = &local.agent.drivers.vms;
    let objects = vms.entries().into_iter().filter_map(|vm| vms.object(vm.record.uuid, true));
    let objects: Vec<Value> = objects.map(|vm| masked(&vm)).collect();
    Answer::json(200, &objects.into())
}

fn vm_get(local: &Local, vm: &str) -> Answer {
    let uuid = vm.parse::<VmUuid>().ok();
    match uuid.and_then(|uuid| local.agent.drivers.vms.object(uuid, true)) {
        Some(object) => Answer::json(200, &masked(&object)),
        None => Answer::error(404, &Code::VmNotFound, &format!("VM {vm} does not exist")),
    }
}

/// `POST /tasks`: the reference's checks in the reference's order.
async fn run(
    request: Request<Incoming>,
    local: &Local,
    mut given: Query,
    id: &str,
    origin: Origin,
) -> Answer {
    let engine = &local.agent.engine;
    let server = request.headers().get("x-server-uuid").and_then(|uuid| uuid.to_str().ok());
    let other = server.is_some_and(|uuid| uuid != local.agent.server_uuid.to_string());
    // A client that declares too much is told before it sends anything.
    let declared = usize::try_from(request.body().size_hint().lower()).unwrap_or(usize::MAX);
    if declared > MAX_BODY_BYTES {
        return too_large();
    }
    match Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await {
        Ok(body) => match parse(&body.to_bytes()) {
            Ok(body) => given.extend(body),
            Err(error) => return Answer::error(400, &Code::InvalidContent, &error),
        },
        Err(error) if error.is::<LengthLimitError>() => {
            return too_large();
        }
        Err(error) => return Answer::error(400, &Code::InvalidContent, &error.to_string()),
    }
    let task = given.get("task").and_then(Value::as_str).map(str::to_owned);
    let kind = task.as_deref().and_then(|task| engine.registry().get(task));
    let query = kind.is_some_and(|kind| kind.kind().class == Class::Query);
    if engine.intake() != Intake::Accepting && !query {
        let text = "CN Agent is not accepting tasks for maintenance";
        return Answer::error(503, &Code::ServiceUnavailable, text);
    }
    if other {
        return Answer::error(500, &Code::InternalError, "the request is for another server");
    }
    let Some(task) = task else {
        let text = match given.get("task") {
            None => "Missing key 'task'",
            Some(_) => "'task' must be a string",
        };
        return Answer::error(409, &Code::InvalidArgument, text);
    };
    let params = match given.get("params") {
        Some(Value::Object(params)) => params.clone(),
        Some(Value::String(text)) if serde_json::from_str::<Map<_, _>>(text).is_ok() => {
            serde_json::from_str(text).unwrap_or_default()
        }
        None => return Answer::error(409, &Code::InvalidArgument, "Missing key 'params'"),
        Some(_) => return Answer::error(409, &Code::InvalidArgument, "'params' must be an object"),
    };
    let req_id = params.get("req_id").and_then(Value::as_str).unwrap_or(id).to_owned();
    let submission = Submission {
        id: engine.new_id(),
        req_id,
        task,
        params,
        deadline_ms: None,
        ticket: None,
        volatile: false,
        origin,
        part_of: None,
    };
    let wait = given.get("async").and_then(Value::as_str) != Some("true");
    finish(local, submission, wait).await
}

fn too_large() -> Answer {
    Answer::error(413, &Code::RequestEntityTooLarge, "a body has at most 1 MiB")
}

fn parse(body: &[u8]) -> Result<Map<String, Value>, String> {
    if body.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(body).map_err(|error| format!("the body is not a JSON object: {error}"))
}

async fn finish(local: &Local, submission: Submission, wait: bool) -> Answer {
    let engine = &local.agent.engine;
    let id = submission.id.clone();
    if let Err(refusal) = engine.submit(submission).await {
        return refused(&refusal);
    }
    if !wait {
        return Answer::json(202, &json!({ "id": id }));
    }
    engine.wait(&id, Duration::MAX).await;
    match engine.record(&id).await {
        Some(record) if record.state == State::Finished => match &record.result {
            Value::Null => Answer::json(200, &json!({})),
            result => Answer::json(200, result),
        },
        Some(record) => match &record.error {
            Some(error) => Answer::task_failed(error),
            None => Answer::error(500, &Code::InternalError, "the task failed without a reason"),
        },
        None => Answer::error(500, &Code::InternalError, "the task's record is gone"),
    }
}

fn refused(refusal: &Refusal) -> Answer {
    Answer::refused(refusal)
}
