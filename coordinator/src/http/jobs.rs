//! Jobs: what starts them on a server, and `/jobs`, which stands in for the workflow API.

use http::{Method, StatusCode};
use muster_shared::api::job::{
    Execution, Job, JobParams, JobStarted, NicAction, NicTags, SetupParams,
};
use muster_shared::lenient::js_number;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Also, Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use crate::app::AppError;
use crate::app::jobs::{JobFilter, checked_nics};

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType];
const BOOL: &[Rule] = &[Rule::Optional, Rule::BooleanType];
const FLAG: &[Rule] = &[Rule::Optional, Rule::BooleanString, Rule::ToBoolean];
const NUMBER: &[Rule] = &[Rule::Optional, Rule::NotNegative];
const NICS: &str = "Interfaces, each with `mac` and `nic_tags_provided`";
const ORIGIN: Param = Param::new("origin", TEXT, "Passed on to the job");
const CREATOR: Param = Param::new("creator_uuid", TEXT, "Passed on to the job");

const SETUP_PARAMS: &[Param] = &[
    Param::new(
        "hostname",
        &[Rule::Optional, Rule::StringType, Rule::Trim],
        "The server's name from now on",
    ),
    Param::new("postsetup_script", TEXT, "Run once the server is set up"),
    Param::new("nics", &[Rule::Optional, Rule::ArrayType], NICS).schema(schema::nic_tags),
    Param::new("disk_spares", NUMBER, "Spare disks, 0 or more"),
    Param::new("disk_width", NUMBER, "Disks in a group, 0 or more"),
    Param::new("disk_cache", FLAG, "Whether to use cache disks"),
    Param::new("disk_layout", TEXT, "single, mirror, raidz1, raidz2 or raidz3"),
    Param::new("disk_exclude", TEXT, "Disks to leave alone, comma-separated"),
    Param::new("encryption_enabled", FLAG, "Whether to encrypt the pool"),
    ORIGIN,
    CREATOR,
];
const REBOOT_PARAMS: &[Param] = &[
    Param::new("drain", BOOL, "Wait until the agent's tasks have ended"),
    Param::new("nojob", BOOL, "Ask the agent at once and wait for it"),
    ORIGIN,
    CREATOR,
];
const RESET_PARAMS: &[Param] = &[ORIGIN, CREATOR];
const NIC_PARAMS: &[Param] = &[
    Param::new("action", &[Rule::StringType], "`update`, `replace` or `delete`"),
    Param::new("nics", &[Rule::ArrayType], NICS).schema(schema::nic_tags),
    ORIGIN,
    CREATOR,
];
const LIST_PARAMS: &[Param] = &[
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Only about this server"),
    Param::new("name", TEXT, "Only of this name, e.g. `server-reboot-1.2.0`"),
    Param::new("execution", TEXT, "Only those `queued`, `running`, `succeeded` or `failed`"),
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("offset", &[Rule::Optional, Rule::Int], "Skip this many").schema(schema::offset),
];

const SET_UP: &[Also] = &[Also { status: 204, doc: "It is set up already", schema: None }];
const NO_JOB: &[Also] =
    &[Also { status: 204, doc: "With `nojob`: the server reboots", schema: None }];

const HAS_VMS: &[Also] = &[Also {
    status: 409,
    doc: "It has VMs, which the text counts, or a parameter is wrong",
    schema: Some(text_or_error),
}];

/// The reference refuses a reset with a bare text.
fn text_or_error() -> Value {
    json!({ "anyOf": [{ "type": "string" }, { "$ref": "#/components/schemas/Error" }] })
}

const LAYOUTS: &[&str] = &["single", "mirror", "raidz1", "raidz2", "raidz3"];

pub(super) fn routes() -> Vec<Route> {
    vec![
        job_route(Method::PUT, "/servers/:server_uuid/setup", "ServerSetup", setup)
            .summary("Prepares a new server for VMs")
            .strict()
            .params(SETUP_PARAMS)
            .also(SET_UP),
        job_route(
            Method::PUT,
            "/servers/:server_uuid/factory-reset",
            "ServerFactoryReset",
            factory_reset,
        )
        .summary("Wipes a server that has no VMs")
        .strict()
        .params(RESET_PARAMS)
        .also(HAS_VMS),
        job_route(Method::POST, "/servers/:server_uuid/reboot", "ServerReboot", reboot)
            .summary("Restarts a server")
            .strict()
            .params(REBOOT_PARAMS)
            .errors(&[403])
            .also(NO_JOB),
        job_route(Method::PUT, "/servers/:server_uuid/nics", "NicUpdate", nics)
            .summary("Changes the tags of a server's network interfaces")
            .params(NIC_PARAMS),
        Route::new(Method::GET, "/jobs", "JobList", list)
            .summary("Jobs, newest first")
            .params(LIST_PARAMS)
            .returns_schema(schema::array_of::<Job>),
        Route::new(Method::GET, "/jobs/:job_uuid", "JobGet", get)
            .summary("One job with the state of its steps")
            .versioned()
            .returns_schema(schema::of::<Job>),
    ]
}

fn job_route<F, Fut>(
    method: Method,
    pattern: &'static str,
    operation: &'static str,
    handler: F,
) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Route::new(method, pattern, operation, handler)
        .success(StatusCode::ACCEPTED)
        .server(ServerRule::Exists)
        .running()
        .fenced()
        .returns_schema(schema::of::<JobStarted>)
}

fn started(job_uuid: uuid::Uuid) -> Result<Response, ApiError> {
    Response::json(JobStarted { job_uuid })
}

/// Where the request comes from, as the client says.
fn passed_on(request: &Request) -> JobParams {
    let text = |name: &str| request.text(name).map(str::to_owned);
    JobParams { origin: text("origin"), creator_uuid: text("creator_uuid"), ..JobParams::default() }
}

/// The parameter `nics`; `None` when absent.
fn given_nics(request: &Request) -> Result<Option<Vec<NicTags>>, ApiError> {
    let nics = request.param("nics").and_then(Value::as_array);
    Ok(nics.map(|nics| checked_nics(nics)).transpose()?)
}

async fn setup(request: Request) -> Result<Response, ApiError> {
    let layout = request.text("disk_layout");
    if layout.is_some_and(|layout| !LAYOUTS.contains(&layout)) {
        let all: Vec<String> = LAYOUTS.iter().map(|layout| format!("'{layout}'")).collect();
        let text = format!("disk_layout must be one of: {}", all.join(", "));
        return Err(ApiError::InvalidArgument(text));
    }
    let disks = |name: &str| match request.param(name).and_then(js_number) {
        None => Ok(None),
        Some(number) => whole(number)
            .map(Some)
            .ok_or_else(|| ApiError::invalid(name, "value was not a whole number up to 1000000")),
    };
    let text = |name: &str| request.text(name).map(str::to_owned);
    let setup = SetupParams {
        hostname: text("hostname"),
        postsetup_script: text("postsetup_script"),
        disk_layout: text("disk_layout"),
        disk_exclude: text("disk_exclude"),
        disk_spares: disks("disk_spares")?,
        disk_width: disks("disk_width")?,
        disk_cache: request.flag("disk_cache").filter(|cache| !cache),
        encryption_enabled: request.flag("encryption_enabled"),
        reboot: None,
    };
    let nics = given_nics(&request)?;
    let wanted = JobParams { setup, nics, ..passed_on(&request) };
    match request.app.jobs.server_setup(request.server()?, wanted, &request.caller).await? {
        Some(job) => started(job),
        None => Ok(Response::empty().status(StatusCode::NO_CONTENT)),
    }
}

/// A number of disks.
fn whole(number: f64) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    (number.fract() == 0.0 && (0.0..=1e6).contains(&number)).then_some(number as u32)
}

async fn factory_reset(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let jobs = &request.app.jobs;
    match jobs.server_factory_reset(server, passed_on(&request), &request.caller).await? {
        Ok(job) => started(job),
        // The reference's answer is this bare string.
        Err(vms) => {
            let text = format!("Server may not be reset because it has {vms} vms");
            Ok(Response::json(text)?.status(StatusCode::CONFLICT))
        }
    }
}

async fn reboot(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let app = &request.app;
    if request.flag("nojob") != Some(true) {
        let params = JobParams { drain: request.flag("drain"), ..passed_on(&request) };
        return started(app.jobs.server_reboot(server, params, &request.caller).await?);
    }
    app.nodes.server_reboot_now(server, request.params.clone(), &request.caller).await?;
    Ok(Response::empty().status(StatusCode::NO_CONTENT))
}

async fn nics(request: Request) -> Result<Response, ApiError> {
    let nic_action = request.param("action").and_then(|text| NicAction::deserialize(text).ok());
    if nic_action.is_none() {
        let text = "action must be 'update', 'replace', or 'delete'";
        return Err(ApiError::invalid("action", text));
    }
    let nics = given_nics(&request)?;
    let params = JobParams { nic_action, nics, ..passed_on(&request) };
    started(request.app.jobs.nic_update(request.server()?, params, &request.caller).await?)
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let execution = match request.text("execution") {
        None => None,
        Some("queued") => Some(Execution::Queued),
        Some("running") => Some(Execution::Running),
        Some("succeeded") => Some(Execution::Succeeded),
        Some("failed") => Some(Execution::Failed),
        // The workflow API's word; no job here is ever that.
        Some("canceled") => return Response::json(Vec::<Job>::new()),
        Some(_) => {
            let text = "must be queued, running, succeeded, failed or canceled";
            return Err(ApiError::invalid("execution", text));
        }
    };
    let number = |name: &str| request.text(name).map(str::parse::<usize>);
    let offset = match number("offset") {
        None => 0,
        Some(Ok(offset)) => offset,
        Some(Err(_)) => return Err(ApiError::invalid("offset", "must be 0 or more")),
    };
    let filter = JobFilter {
        server: request.text("server_uuid").and_then(|text| text.parse().ok()),
        name: request.text("name").map(str::to_owned),
        execution,
        limit: request.limit()?,
        offset,
    };
    Response::json(request.app.jobs.list(&filter).await?)
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let job = request.text("job_uuid").and_then(|text| text.parse().ok());
    let job = job.ok_or(AppError::JobNotFound)?;
    let (job, version) = request.app.jobs.get(job).await?;
    Ok(Response::json(job)?.etag(version))
}
