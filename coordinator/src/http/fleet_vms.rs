//! `/vms`: VMs of the whole fleet, wherever they are.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use muster_shared::api::vm::{FleetVm, VmPlaced};
use muster_shared::ids::VmUuid;
use muster_shared::wire::StreamKind;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use crate::app::{AppError, VmFilter};

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType];
const LIST_PARAMS: &[Param] = &[
    Param::new("state", TEXT, "Only in this state"),
    Param::new("owner_uuid", TEXT, "Only of this owner"),
    Param::new("alias", TEXT, "Only of this name"),
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Only on this server"),
    Param::new("brand", TEXT, "Only of this brand"),
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("offset", &[Rule::Optional, Rule::Int], "Skip this many").schema(schema::offset),
    Param::new("marker", &[Rule::Optional, Rule::Uuid], "After this VM"),
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/vms", "FleetVmList", list)
            .summary("VMs of all servers in uuid order; tag.NAME=VALUE selects by tag")
            .params(LIST_PARAMS)
            .reply_headers(&[("x-next-marker", "`marker` of the next page, if there is one")])
            .returns_schema(schema::array_of::<FleetVm>),
        Route::new(Method::POST, "/vms", "FleetVmCreate", create)
            .summary("Chooses a server and creates a VM there, in one durable operation")
            .success(StatusCode::ACCEPTED)
            .payload(schema::vm_place)
            .fenced()
            .errors(&[503])
            .returns_schema(schema::of::<VmPlaced>),
        Route::new(Method::GET, "/vms/:uuid", "FleetVmGet", get)
            .summary("One VM, even while its server is offline")
            .vm()
            .versioned()
            .returns_schema(schema::of::<FleetVm>),
        Route::new(Method::GET, "/vms/:uuid/console", "FleetVmConsole", console)
            .summary(
                "The VM's serial console: binary frames both ways, first what it printed lately; \
                 text frames tell people what happened to it",
            )
            .vm()
            .websocket(),
        Route::new(Method::GET, "/vms/:uuid/display", "FleetVmDisplay", display)
            .summary("The VM's VNC display: binary frames both ways")
            .vm()
            .websocket(),
    ]
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let text = |name: &str| request.text(name).map(str::to_owned);
    let number = |name: &str| request.text(name).and_then(|text| text.parse::<usize>().ok());
    if request.param("offset").is_some() && number("offset").is_none() {
        return Err(ApiError::invalid("offset", "must be 0 or more"));
    }
    let tags: BTreeMap<_, _> = request
        .params
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("tag.")?, value.as_str()?)))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let filter = VmFilter {
        state: text("state"),
        owner: text("owner_uuid"),
        alias: text("alias"),
        server: request.text("server_uuid").and_then(|text| text.parse().ok()),
        brand: text("brand"),
        tags,
        limit: request.limit()?,
        offset: number("offset").unwrap_or(0),
        marker: request.text("marker").and_then(|text| text.parse::<VmUuid>().ok()),
    };
    let limit = filter.limit.unwrap_or(1_000);
    let vms = request.app.fleet.vm_list(&filter);
    let full = vms.len() == limit;
    let last = vms.last().filter(|_| full);
    let next = last.and_then(|last| HeaderValue::try_from(last.vm.uuid.to_string()).ok());
    let answer = Response::list(vms)?;
    Ok(match next {
        Some(next) => answer.header(HeaderName::from_static("x-next-marker"), next),
        None => answer,
    })
}

async fn create(request: Request) -> Result<Response, ApiError> {
    Response::json(request.app.placement.create(&request.params, &request.caller).await?)
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let vm = request.vm()?;
    let version = request.app.fleet.vm_version(vm).ok_or(AppError::VmNotFound(vm))?;
    Ok(Response::json(request.app.fleet.vm_get(vm)?)?.etag(version))
}

async fn console(request: Request) -> Result<Response, ApiError> {
    stream(request, StreamKind::Console).await
}

async fn display(request: Request) -> Result<Response, ApiError> {
    stream(request, StreamKind::Vnc).await
}

/// The agent's end first: a client whose VM has no stream gets an HTTP error, not a websocket
/// that closes.
async fn stream(request: Request, kind: StreamKind) -> Result<Response, ApiError> {
    request.check_websocket(None)?;
    let agent = request.app.nodes.stream(request.vm()?, kind).await?;
    let app = std::sync::Arc::clone(&request.app);
    request.into_websocket(None, move |client| async move { app.nodes.pipe(client, agent).await })
}
