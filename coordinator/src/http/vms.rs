//! `/servers/:server_uuid/vms`: the VMs of one server, as CNAPI serves them.

use http::Method;
use muster_shared::api::Object;
use muster_shared::api::task::TaskStarted;
use muster_shared::api::vm::Vm;
use muster_shared::api::vm::Vnc;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde_json::json;

use super::ask::{Ask, IDEMPOTENT, JOB};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::{self, Rule};
use super::schema;
use super::servers::start_task;
use crate::app::AppError;

const FORCE: Param = Param::new("force", &[], "Without asking the guest").checked(schema::flag);
const TIMEOUT: Param =
    Param::new("timeout", &[], "Seconds that the guest has for shutting down; else 180")
        .checked(schema::stop_seconds);
const UPDATE: Param =
    Param::new("update", &[], "Changes made before; only `set_internal_metadata`")
        .schema(schema::boot_update);
const INCLUDE_DNI: Param = Param::new("include_dni", &[], "Also a VM that is hidden from reports");
const CREATE_PARAMS: &[Param] =
    &[JOB, Param::new("uuid", &[Rule::StringType], "The VM").schema(schema::exact_uuid)];
const UPDATE_PARAMS: &[Param] = &[JOB];
const DESTROY_PARAMS: &[Param] = &[JOB, INCLUDE_DNI.checked(schema::flag)];
const ONCE: Param = Param::new(
    "once",
    &[Rule::Optional, Rule::Regex("^[cdn]$")],
    "This boot alone is from a disk (c), CD (d) or network (n)",
);
const START_PARAMS: &[Param] = &[JOB, UPDATE, IDEMPOTENT, ONCE];
const REBOOT_PARAMS: &[Param] = &[JOB, UPDATE, FORCE, TIMEOUT, IDEMPOTENT];
const STOP_PARAMS: &[Param] = &[JOB, FORCE, TIMEOUT, IDEMPOTENT];
const KILL_PARAMS: &[Param] = &[
    JOB,
    Param::new("signal", &[Rule::Optional, Rule::NumberOrString], "Name or number; else SIGTERM"),
    IDEMPOTENT,
];
const REPROVISION_PARAMS: &[Param] = &[
    JOB,
    Param::new("image_uuid", &[Rule::StringType, Rule::Trim], "The new image")
        .checked(schema::exact_uuid),
    Param::new("zfs_storage_pool_name", &[], "Pool that the VM lies in").checked(schema::text),
];
const LOAD_PARAMS: &[Param] = &[INCLUDE_DNI.schema(schema::text)];
const INFO_PARAMS: &[Param] = &[Param::new(
    "info",
    &[],
    "What to tell, comma-separated: all (default), block, blockstats, chardev, cpus, kvm, pci, \
     spice, status, version, vnc",
)
.checked(schema::text)];

const IMAGE_PARAMS: &[Param] = &[
    JOB,
    Param::new("compression", &[Rule::StringType], "`none`, `gzip`, `bzip2`, `xz` or `zstd`"),
    Param::new(
        "imgapi_url",
        &[Rule::Optional, Rule::StringType],
        "Where the image is to be published; else where the server has its images from",
    ),
    Param::new("manifest", &[Rule::ObjectType], "Manifest of the new image"),
    Param::new("incremental", &[Rule::Optional, Rule::BooleanType], "Only the difference"),
    Param::new("prepare_image_script", &[Rule::Optional, Rule::StringType], "Run by the guest"),
    Param::new("max_origin_depth", &[], "Images that it may build on, one on another")
        .checked(schema::depth),
];
// The handler reports all that is wrong with it, in the reference's words.
const MIGRATE_PARAMS: &[Param] = &[
    JOB,
    Param::new("migrationTask", &[], "What is to be done; needed").schema(schema::migration_task),
];
const NICS_PARAMS: &[Param] = &[
    JOB,
    Param::new("original_network", &[], "The network as it was").checked(schema::original_network),
    Param::new("networks", &[], "All networks as they are now").checked(schema::networks),
    Param::new("nics", &[], "Of old clients; passed on").checked(schema::list_of_anything),
];

pub(super) fn routes() -> Vec<Route> {
    let vm = |suffix, operation, task| task_route(Method::POST, suffix, operation, task);
    vec![
        Route::new(Method::GET, "/servers/:server_uuid/vms", "VmList", list)
            .summary("The server's VMs as last reported")
            .server(ServerRule::Exists)
            .returns_schema(schema::array_of::<Vm>),
        Route::new(Method::POST, "/servers/:server_uuid/vms", "VmCreate", create)
            .summary("Creates a VM on this server; POST /vms chooses a server")
            .server(ServerRule::Exists)
            .running()
            .params(CREATE_PARAMS)
            .payload(schema::vm_create)
            .fenced()
            .returns_schema(schema::of::<TaskStarted>),
        query_route("/servers/:server_uuid/vms/:uuid", "VmLoad", load)
            .params(LOAD_PARAMS)
            .returns_schema(schema::vm_object),
        query_route("/servers/:server_uuid/vms/:uuid/info", "VmInfo", info)
            .params(INFO_PARAMS)
            .returns_schema(schema::vm_info),
        query_route("/servers/:server_uuid/vms/:uuid/proc", "VmProc", proc)
            .returns_schema(schema::processes),
        query_route("/servers/:server_uuid/vms/:uuid/vnc", "VmVnc", vnc)
            .returns_schema(schema::of::<Vnc>),
        Route::new(Method::POST, "/servers/:server_uuid/vms/nics/update", "VmNicsUpdate", nics)
            .summary("Starts a task that brings the server's VMs up to date with their networks")
            .server(ServerRule::Exists)
            .running()
            .params(NICS_PARAMS)
            .fenced()
            .returns_schema(schema::of::<TaskStarted>),
        starts(Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/migrate",
            "VmMigrate",
            migrate,
        ))
        .summary("Starts one action of a migration")
        .params(MIGRATE_PARAMS),
        vm("/servers/:server_uuid/vms/:uuid/images", "VmImageCreate", "machine_create_image")
            .params(IMAGE_PARAMS),
        task_route(
            Method::DELETE,
            "/servers/:server_uuid/vms/:uuid",
            "VmDestroy",
            "machine_destroy",
        )
        .params(DESTROY_PARAMS),
        vm("/servers/:server_uuid/vms/:uuid/stop", "VmStop", "machine_shutdown")
            .params(STOP_PARAMS),
        vm("/servers/:server_uuid/vms/:uuid/kill", "VmKill", "machine_kill").params(KILL_PARAMS),
        starts(Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/update",
            "VmUpdate",
            update,
        ))
        .params(UPDATE_PARAMS)
        .payload(schema::vm_update),
        vm("/servers/:server_uuid/vms/:uuid/reprovision", "VmReprovision", "machine_reprovision")
            .params(REPROVISION_PARAMS),
        boot_route("/servers/:server_uuid/vms/:uuid/start", "VmStart", "start", "machine_boot")
            .params(START_PARAMS),
        boot_route(
            "/servers/:server_uuid/vms/:uuid/reboot",
            "VmReboot",
            "reboot",
            "machine_reboot",
        )
        .params(REBOOT_PARAMS),
    ]
}

fn base(route: Route) -> Route {
    route.server(ServerRule::Exists).vm().running().fenced()
}

fn task_route(
    method: Method,
    pattern: &'static str,
    operation: &'static str,
    task: &'static str,
) -> Route {
    starts(Route::new(method, pattern, operation, move |request| start_task(request, task)))
}

/// An endpoint that starts a task about the VM of its path.
pub(super) fn starts(route: Route) -> Route {
    base(route)
        .summary("Starts a task about the VM; all parameters are passed on")
        .versioned()
        .returns_schema(schema::of::<TaskStarted>)
}

fn boot_route(
    pattern: &'static str,
    operation: &'static str,
    verb: &'static str,
    task: &'static str,
) -> Route {
    let handler = move |request: Request| async move {
        check_update(&request, verb)?;
        start_task(request, task).await
    };
    starts(Route::new(Method::POST, pattern, operation, handler))
}

fn query_route<F, Fut>(pattern: &'static str, operation: &'static str, handler: F) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    base(Route::new(Method::GET, pattern, operation, handler))
        .summary("The VM as its agent reports it")
}

/// A start or reboot may change nothing but internal metadata on the way.
fn check_update(request: &Request, verb: &str) -> Result<(), ApiError> {
    let Some(update) = request.param("update") else { return Ok(()) };
    let keys: Vec<_> = update.as_object().map(|u| u.keys().cloned().collect()).unwrap_or_default();
    if update.is_object() && keys == ["set_internal_metadata"] {
        return Ok(());
    }
    let keys = keys.join(",");
    Err(ApiError::RefusedUpdate(format!(
        "Vm.{verb} update param only allows set_internal_metadata, received: [{keys}]"
    )))
}

/// Sizes that the server can never give are refused: such a VM would stop at its next start and
/// not come up again. What is left of the server now is not looked at, as in the reference.
async fn update(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let entry = request.app.fleet.get(server).ok_or(AppError::ServerNotFound(server))?;
    let total =
        entry.figures.exact("memory_total_bytes").and_then(|bytes| u64::try_from(bytes).ok());
    for name in ["ram", "max_physical_memory"] {
        let wanted = request.param(name).and_then(lenient::number);
        if let (Some(wanted), Some(total)) = (wanted, total.map(|bytes| bytes / MIB))
            && wanted > total
        {
            let text = format!("is more than the server has: it has {total} MiB");
            return Err(ApiError::invalid(name, text));
        }
    }
    start_task(request, "machine_update").await
}

async fn list(request: Request) -> Result<Response, ApiError> {
    Response::list(request.app.fleet.vms_of(request.server()?))
}

async fn create(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let uuid: VmUuid = request
        .text("uuid")
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| ApiError::invalid("uuid", "value was not a UUID"))?;
    let Request { app, mut params, caller, .. } = request;
    app.datasets.complete(server, &mut params).await?;
    let id = app.placement.create_on(server, uuid, params, &caller).await?;
    Response::json(TaskStarted { id })
}

async fn nics(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let id = request.app.nodes.vm_nics_update(server, request.params, &request.caller).await?;
    Response::json(TaskStarted { id })
}

async fn migrate(request: Request) -> Result<Response, ApiError> {
    let task = request.param("migrationTask");
    let member = |name: &str| task.and_then(|task| task.get(name)).cloned();
    let mut errors = Vec::new();
    for (name, value, rule) in [
        ("migrationTask", task.cloned(), Rule::ObjectType),
        ("migrationTask.action", member("action"), Rule::StringType),
        ("migrationTask.record", member("record"), Rule::ObjectType),
    ] {
        let mut found: Object = value.map(|value| (name, value)).into_iter().collect();
        rule::check(name, &[rule], &mut found, &mut errors);
    }
    if !errors.is_empty() {
        return Err(ApiError::InvalidParameters(errors));
    }
    start_task(request, "machine_migrate").await
}

async fn vnc(request: Request) -> Result<Response, ApiError> {
    let (server, vm) = (request.server()?, request.vm()?);
    let found = request.app.nodes.vm_vnc(server, vm, &request.caller).await;
    Response::json(found.map_err(|error| in_cnapi_s_words(error, vm))?)
}

/// Parameters of a task about the VM.
fn about(request: &Request) -> Result<Object, ApiError> {
    Ok(Object::from_iter([("uuid", json!(request.vm()?))]))
}

/// An absent VM is a 404 in CNAPI's words.
pub(super) fn in_cnapi_s_words(error: AppError, vm: VmUuid) -> AppError {
    match error {
        AppError::Agent { code: Code::VmNotFound, .. } => AppError::VmNotFound(vm),
        other => other,
    }
}

/// What the agent says about the VM.
async fn answer_of(request: &Request, ask: Ask) -> Result<Response, ApiError> {
    let vm = request.vm()?;
    let answer = ask.query(request).await.map_err(|error| in_cnapi_s_words(error, vm))?;
    Response::json(answer)
}

async fn load(request: Request) -> Result<Response, ApiError> {
    let mut params = about(&request)?;
    if let Some(dni) = request.param("include_dni") {
        params.set("include_dni", lenient::flag(dni) == Some(true));
    }
    answer_of(&request, Ask::new("machine_load", params, 60)).await
}

async fn info(request: Request) -> Result<Response, ApiError> {
    let types = request.text("info").filter(|types| !types.is_empty());
    let mut params = about(&request)?;
    params.set("types", types.unwrap_or("all").split(',').collect::<Vec<_>>());
    // The reference names machine_load in the text of this timeout.
    let ask = Ask { label: Some("machine_load"), ..Ask::new("machine_info", params, 10) };
    answer_of(&request, ask).await
}

async fn proc(request: Request) -> Result<Response, ApiError> {
    let ask = Ask::new("machine_proc", about(&request)?, 20);
    answer_of(&request, ask).await
}
