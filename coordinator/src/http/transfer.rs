//! `/servers/:server_uuid/vms/:uuid/export` and `…/import`, `/vms/import`: VMs that are copied piece by
//! piece. What is there and what was taken is the agent's to know; nothing is kept here.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{Method, StatusCode};
use muster_shared::api::Object;
use muster_shared::api::transfer::{VmExport, VmImport, VmPiece};
use muster_shared::api::vm::VmPlaced;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ask::{Ask, JOB, pick};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use super::servers::start_task;
use super::vms::{in_cnapi_s_words, starts};
use crate::app::AppError;

/// Longest wait for an agent, seconds: its own limits are shorter, but for a disk that is slow.
const ANSWER_SECONDS: u64 = 310;
/// Largest piece of a disk, bytes; agents have the same.
const MAX_PIECE_BYTES: usize = 512 * 1024;
/// Of what an import needs beside the VM, the payload's own members may be as large as usual.
const IMPORT_LIMIT_BYTES: usize = 2 * 1024 * 1024;
const NOT_UNDERSTOOD: &str = "the agent's answer is not understood";

const SNAPSHOT: Param =
    Param::new("snapshot_name", &[Rule::StringType], "The snapshot").checked(schema::snapshot_name);
const OFFSET: Param =
    Param::new("offset", &[], "Where to begin, bytes; else 0").checked(schema::file_offset);
const EXPORT_PARAMS: &[Param] = &[SNAPSHOT];
const PIECE_PARAMS: &[Param] = &[
    SNAPSHOT,
    Param::new("disk", &[], "`number` of the disk's volume; without, what its firmware keeps, or all files of a container")
        .checked(schema::volume_number),
    OFFSET,
];
const PLACE_PARAMS: &[Param] = &[
    Param::new("vm", &[Rule::ObjectType], "The VM, as an export has it").schema(schema::vm_create),
    Param::new("export", &[Rule::StringType], "Names the export").checked(schema::text),
    Param::new("volumes", &[Rule::ArrayType], "What is to come, as the export has it")
        .checked(schema::list_of_anything),
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Server; chosen if there is none"),
];
const WRITE_PARAMS: &[Param] = &[
    Param::new("volume", &[], "Of the export's, from 0").checked(schema::volume_number),
    OFFSET,
    Param::new("sha256", &[Rule::Regex("^[0-9a-fA-F]{64}$")], "Of the body"),
    Param::new("boot", &[], "As last told; refused if the server was booted since")
        .checked(schema::text),
    Param::new("durable", &[], "All up to here is there for good when this is answered")
        .checked(schema::flag),
];
const END_PARAMS: &[Param] = &[
    JOB,
    Param::new("start", &[], "The VM is started").checked(schema::flag),
    Param::new("discard", &[], "The import is given up: the VM goes").checked(schema::flag),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(Method::GET, "/servers/:server_uuid/vms/:uuid/export", "VmExport", export)
            .summary("What there is to be copied of the VM at one of its snapshots")
            .params(EXPORT_PARAMS)
            .returns_schema(schema::of::<VmExport>),
        route(Method::GET, "/servers/:server_uuid/vms/:uuid/export/piece", "VmExportRead", read)
            .summary("The first piece of a volume that may be more than zeros")
            .params(PIECE_PARAMS)
            .returns_schema(schema::of::<VmPiece>),
        Route::new(Method::POST, "/vms/import", "FleetVmImport", place)
            .summary(
                "Chooses a server and makes a VM there that waits for the content of its disks",
            )
            .success(StatusCode::ACCEPTED)
            .params(PLACE_PARAMS)
            .body_limit(IMPORT_LIMIT_BYTES)
            .fenced()
            .errors(&[503])
            .returns_schema(schema::of::<VmPlaced>),
        route(Method::GET, "/servers/:server_uuid/vms/:uuid/import", "VmImportState", state)
            .summary("Up to where the content of a VM that is being imported is there for good")
            .returns_schema(schema::of::<VmImport>),
        route(Method::PUT, "/servers/:server_uuid/vms/:uuid/import", "VmImportWrite", write)
            .summary("Writes a piece of a disk of a VM that is being imported, of at most 512 KiB")
            .params(WRITE_PARAMS)
            .streams_body()
            .unaudited()
            .errors(&[413, 503])
            .returns_schema(schema::of::<VmImport>),
        starts(Route::new(
            Method::POST,
            "/servers/:server_uuid/vms/:uuid/import",
            "VmImportEnd",
            |request| start_task(request, "machine_import_end"),
        ))
        .summary("Starts a task that makes an imported VM an ordinary one, or gives it up")
        .params(END_PARAMS),
    ]
}

fn route<F, Fut>(
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
        .server(ServerRule::Exists)
        .vm()
        .running()
        .fenced()
}

async fn export(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &["snapshot_name"])?;
    answer::<VmExport>(&request, "machine_export", params).await
}

async fn read(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &["snapshot_name", "disk", "offset"])?;
    answer::<VmPiece>(&request, "machine_export_read", params).await
}

async fn place(request: Request) -> Result<Response, ApiError> {
    let vm = request.object("vm").unwrap_or_default();
    let import = json!({
        "export": request.param("export"), "volumes": request.param("volumes"),
    });
    let server = request.text("server_uuid").and_then(|server| server.parse().ok());
    let Request { app, caller, .. } = request;
    Response::json(app.placement.import(server, vm, import, &caller).await?)
}

async fn state(request: Request) -> Result<Response, ApiError> {
    let params = about(&request, &[])?;
    answer::<VmImport>(&request, "machine_import_state", params).await
}

async fn write(mut request: Request) -> Result<Response, ApiError> {
    let body = request.take_body()?;
    let piece = request.shell.bodies.read(&request.headers, body, MAX_PIECE_BYTES).await?;
    let mut params = about(&request, &["volume", "offset", "sha256", "durable", "boot"])?;
    params.set("data", BASE64_STANDARD.encode(&piece.bytes));
    answer::<VmImport>(&request, "machine_import_write", params).await
}

/// The VM and these parameters.
fn about(request: &Request, names: &[&str]) -> Result<Object, ApiError> {
    let mut params = pick(request, names);
    params.set("uuid", json!(request.vm()?));
    Ok(params)
}

async fn answer<T: DeserializeOwned + serde::Serialize>(
    request: &Request,
    task: &'static str,
    params: Object,
) -> Result<Response, ApiError> {
    let vm = request.vm()?;
    let ask = Ask::new(task, params, ANSWER_SECONDS);
    let answer: Value = ask.query(request).await.map_err(|error| in_cnapi_s_words(error, vm))?;
    let answer = T::deserialize(answer).map_err(|_| AppError::Answer(NOT_UNDERSTOOD))?;
    Response::json(answer)
}
