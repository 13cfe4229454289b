//! `/servers`: records of servers, and what is asked of their agents as a whole.

use http::Method;
use muster_shared::api::FieldError;
use muster_shared::api::Object;
use muster_shared::api::boot::BootModules;
use muster_shared::api::server::{Server, Sysinfo};
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::ServerUuid;
use muster_shared::lenient::js_number;
use muster_shared::secrets::masked;
use serde_json::Value;

use super::ask::Ask;
use super::error::ApiError;
use super::request::{Request, ServerRef};
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::{FLAG_PATTERN, Rule};
use super::schema;
use crate::alloc::num;
use crate::app::ServerFilter;
use crate::app::ServerUpdate;
use crate::app::fields::Extras;

const LIST: &str = "^[-a-z0-9A-Z]+(,[-a-z0-9A-Z]+)*$";
const WORDS: &str = "^[a-zA-Z_]+(,[a-zA-Z_]+)*$";
const FLAG: &[Rule] = &[Rule::Optional, Rule::Regex(FLAG_PATTERN), Rule::ToBoolean];
const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType, Rule::Trim];
const NAME: &[Rule] = &[Rule::Optional, Rule::StringType, Rule::Trim, Rule::Plain];
const BOOL: &[Rule] = &[Rule::Optional, Rule::BooleanType];
/// Longest wait for an agent's history, seconds.
const HISTORY_TIMEOUT: u64 = 10;

const LIST_PARAMS: &[Param] = &[
    Param::new("uuids", &[Rule::Optional, Rule::Regex(LIST)], "Only these, comma-separated"),
    Param::new("setup", FLAG, "Only those that are set up, or not"),
    Param::new("headnode", FLAG, "Only headnodes, or none"),
    Param::new("reserved", FLAG, "Only reserved ones, or none"),
    Param::new("reservoir", FLAG, "Only reservoir ones, or none"),
    Param::new("hostname", TEXT, "Only the server of this name"),
    Param::new(
        "extras",
        &[Rule::Optional, Rule::Regex(WORDS)],
        "Further members to show: agents, capacity, disk, memory, sysinfo, vms, or all; muster: what its agent remarks",
    ),
    Param::new("fields", &[Rule::Optional, Rule::Regex(WORDS)], "Only these members"),
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("offset", &[Rule::Optional, Rule::Int], "Skip this many").schema(schema::offset),
];

const UPDATE_PARAMS: &[Param] = &[
    Param::new("agents", &[Rule::Optional, Rule::ArrayType], "The agents installed"),
    Param::new("nics", &[Rule::Optional, Rule::ArrayType], "Accepted and ignored"),
    Param::new("boot_params", &[Rule::Optional, Rule::ObjectType], "Kernel arguments"),
    Param::new("overprovision_ratios", &[Rule::Optional, Rule::ObjectType], "Sent to the agent"),
    Param::new("traits", &[Rule::Optional, Rule::ObjectType], "For the allocator"),
    Param::new("boot_platform", NAME, "Platform of the next boot"),
    Param::new("comments", TEXT, "For people"),
    Param::new("datacenter", NAME, "Where it is"),
    Param::new("default_console", NAME, "Console of the next boot"),
    Param::new("next_reboot", TEXT, "ISO time, empty to clear"),
    Param::new("rack_identifier", NAME, "Where it is"),
    Param::new("serial", NAME, "Serial device of the next boot"),
    Param::new("transitional_status", TEXT, "`rebooting`, empty to clear"),
    Param::new("etag_retries", &[Rule::Optional, Rule::NumberType], "Accepted and ignored"),
    Param::new("reservation_ratio", &[Rule::Optional, Rule::NumberType], "Share kept free"),
    Param::new("reserved", BOOL, "Gets no new VMs"),
    Param::new("reservoir", BOOL, "Gets VMs only when no other server has room"),
    Param::new("setting_up", BOOL, "A setup is in progress"),
    Param::new("setup", BOOL, "Set up"),
];

const SYSINFO_PARAMS: &[Param] =
    &[Param::new("sysinfo", &[Rule::ObjectType], "The document, in SmartOS's key names")
        .schema(schema::of::<Sysinfo>)];
const IMAGE_PARAMS: &[Param] = &[
    Param::new("image_uuid", &[Rule::StringType], "The image").checked(schema::exact_uuid),
    Param::new("zfs_storage_pool_name", &[Rule::Optional, Rule::StringType], "Its pool"),
    Param::new("imgapiPeers", &[Rule::Optional, Rule::ArrayType], "Accepted and ignored")
        .schema(schema::peers),
];

pub(super) fn routes() -> Vec<Route> {
    let pause = agent_route("/servers/:server_uuid/cn-agent/pause", "ServerPauseCnAgent", pause);
    let resume =
        agent_route("/servers/:server_uuid/cn-agent/resume", "ServerResumeCnAgent", resume);
    let (pause, resume) = (pause.no_content(), resume.no_content());
    let ensure = task_route(
        "/servers/:server_uuid/ensure-image",
        "ServerEnsureImage",
        "image_ensure_present",
    )
    .strict()
    .params(IMAGE_PARAMS);
    vec![
        Route::new(Method::GET, "/servers", "ServerList", list)
            .summary("Servers in uuid order")
            .strict()
            .params(LIST_PARAMS)
            .returns_schema(schema::array_of::<Server>),
        Route::new(Method::GET, "/servers/:server_uuid", "ServerGet", get)
            .summary("One server with everything known about it")
            .strict()
            .server(ServerRule::ExistsOrDefault)
            .versioned()
            .returns_schema(schema::of::<Server>),
        Route::new(Method::POST, "/servers/:server_uuid", "ServerUpdate", update)
            .summary("Changes a server's record")
            .strict()
            .server(ServerRule::Exists)
            .params(UPDATE_PARAMS)
            .versioned()
            .errors(&[403, 501, 503])
            .fenced()
            .no_content(),
        Route::new(Method::DELETE, "/servers/:server_uuid", "ServerDelete", delete)
            .summary(
                "Deletes a server's record; the node itself is not touched, its open tasks end",
            )
            .strict()
            .server(ServerRule::Exists)
            .versioned()
            .no_content(),
        Route::new(
            Method::POST,
            "/servers/:server_uuid/sysinfo",
            "ServerSysinfoRegister",
            register,
        )
        .summary("Registers a server, or takes over its new sysinfo")
        .strict()
        .params(SYSINFO_PARAMS),
        agent_route("/servers/:server_uuid/sysinfo-refresh", "ServerSysinfoRefresh", refresh)
            .strict()
            .fenced(),
        Route::new(Method::GET, "/servers/:server_uuid/task-history", "ServerTaskHistory", history)
            .summary("The agent's recent tasks, newest last")
            .strict()
            .server(ServerRule::Exists)
            .errors(&[501, 503])
            .returns_schema(schema::history),
        pause.alias(Method::GET, true),
        pause,
        resume.alias(Method::GET, true),
        resume,
        ensure.alias(Method::GET, true),
        ensure,
    ]
}

fn agent_route<F, Fut>(pattern: &'static str, operation: &'static str, handler: F) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Route::new(Method::POST, pattern, operation, handler)
        .summary("Asks the server's agent and waits for its answer")
        .server(ServerRule::Exists)
        .running()
}

/// An endpoint that only makes a task of all its parameters.
fn task_route(pattern: &'static str, operation: &'static str, task: &'static str) -> Route {
    Route::new(Method::POST, pattern, operation, move |request| start_task(request, task))
        .summary("Starts a task on the server")
        .server(ServerRule::Exists)
        .running()
        .fenced()
        .returns_schema(schema::of::<TaskStarted>)
}

/// Makes a task of the request's parameters; answers with its id.
pub(super) async fn start_task(request: Request, task: &'static str) -> Result<Response, ApiError> {
    let server = request.server()?;
    if let Ok(vm) = request.vm() {
        request.app.fleet.vm_expected(vm, &request.expected())?;
    }
    let id = request.app.tasks.create(server, task, request.params, &request.caller).await?;
    Response::json(TaskStarted { id })
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let number = |name: &str| {
        let value = request.param(name)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    };
    let limit = match (request.param("limit"), number("limit")) {
        (None, _) => None,
        (Some(_), Some(limit @ 1..=1000)) => usize::try_from(limit).ok(),
        (Some(_), _) => {
            let error = FieldError::new("limit", "limit must be in the range 1-1000 (inclusive)");
            return Err(ApiError::OutOfRange(vec![error]));
        }
    };
    let uuids = request
        .text("uuids")
        .map(|text| text.split(',').filter_map(|uuid| uuid.parse::<ServerUuid>().ok()).collect());
    let offset = match (request.param("offset"), number("offset")) {
        (_, Some(offset)) => usize::try_from(offset).unwrap_or(usize::MAX),
        // One too large for a number is after the end of every list.
        (Some(Value::String(text)), None) if !text.starts_with('-') => usize::MAX,
        _ => 0,
    };
    let filter = ServerFilter {
        uuids,
        setup: request.flag("setup"),
        headnode: request.flag("headnode"),
        reserved: request.flag("reserved"),
        reservoir: request.flag("reservoir"),
        hostname: request.text("hostname").map(str::to_owned),
        limit,
        offset,
    };
    let extras = request.text("extras").map_or_else(Extras::default, Extras::parse);
    let servers = request.app.servers.list(&filter, extras);
    let Some(fields) = request.text("fields") else { return Response::list(servers) };
    let wanted: Vec<_> = fields.split(',').collect();
    let shown = servers.iter().map(|server| {
        let mut shown = Object::of(server);
        shown.retain(|name, _| wanted.contains(&name));
        shown
    });
    Response::list(shown.collect())
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let ServerRef::Server(server) = request.server_ref()? else {
        let (record, version) = request.app.boot.default_server().await?;
        return Ok(Response::json(record)?.etag(version));
    };
    let mut view = request.app.servers.get(server, Extras::ALL)?;
    if let Some(modules) = request.app.boot.modules_of(server).await? {
        view.record.boot.boot_modules = Some(BootModules::Inline(modules));
    }
    let answer = Response::json(view)?;
    Ok(match request.app.fleet.version(server) {
        Some(version) => answer.etag(version),
        None => answer,
    })
}

async fn update(mut request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    if let Some(value) = request.params.get_mut("reservation_ratio") {
        let number = as_number(value);
        let bad = || ApiError::invalid("reservation_ratio", "value was not a number");
        *value = number.ok_or_else(bad)?;
    }
    // The rules have seen to it that every member has its type.
    let update: ServerUpdate = request
        .params
        .read()
        .map_err(|error| ApiError::internal("a parameter's rules are not its type's", error))?;
    request.app.servers.modify(server, &update, &request.expected(), &request.caller).await?;
    Ok(Response::empty())
}

/// JavaScript's `Number(x)` of a value that the rule has let pass.
fn as_number(value: &Value) -> Option<Value> {
    match value {
        Value::Number(_) => Some(value.clone()),
        // Infinity passes the rule, but is no JSON number.
        other => js_number(other).filter(|number| number.is_finite()).map(num::json),
    }
}

async fn delete(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    request.app.servers.delete(server, &request.expected()).await?;
    Ok(Response::empty())
}

async fn register(request: Request) -> Result<Response, ApiError> {
    let text = request.text("server_uuid").unwrap_or_default();
    let server = text.parse().map_err(|_| super::request::invalid_server())?;
    let sysinfo = request.object("sysinfo").unwrap_or_default();
    request.app.reports.register(server, sysinfo).await?;
    Ok(Response::empty())
}

async fn refresh(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let Request { app, params, caller, .. } = request;
    let sysinfo = app.nodes.gather_sysinfo(server, params, &caller).await?;
    app.reports.register(server, sysinfo).await?;
    Ok(Response::empty())
}

async fn history(request: Request) -> Result<Response, ApiError> {
    let result = Ask::new("task_history", Object::new(), HISTORY_TIMEOUT).query(&request).await?;
    // An array alone, or as a member of the result object.
    let entries = result.get("history").or_else(|| result.get("tasks")).unwrap_or(&result);
    // An agent of another make shows them as they are.
    Response::json(masked(entries))
}

async fn pause(request: Request) -> Result<Response, ApiError> {
    request.app.nodes.pause(request.server()?, "paused through the API").await?;
    Ok(Response::empty())
}

async fn resume(request: Request) -> Result<Response, ApiError> {
    request.app.nodes.resume(request.server()?).await?;
    Ok(Response::empty())
}
