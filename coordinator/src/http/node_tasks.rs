//! What is done to a server's own software and settings: agents, NIC tags, recovery
//! configuration, and the task that does nothing.

use http::Method;
use muster_shared::api::task::TaskStarted;

use super::ask::pick;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use super::servers::start_task;
use crate::app::RecoveryRequest;

const UNINSTALL: &[Param] =
    &[Param::new("agents", &[Rule::ArrayType], "Their names").checked(schema::texts)];
const NICS: &[Param] =
    &[Param::new("nics", &[Rule::ArrayType], "The server's interfaces and their tags")
        .checked(schema::nic_tags)];
const NOP: &[Param] = &[
    Param::new("sleep", &[], "Seconds to wait").checked(schema::sleep_seconds),
    Param::new("error", &[], "The task fails with this text").checked(schema::long_text),
];
const INSTALL: &[Param] = &[
    Param::new("image_uuid", &[], "The agent's image").checked(schema::exact_uuid),
    Param::new("package_name", &[], "Its name; passed on").checked(schema::text),
    Param::new("package_file", &[], "Its file; passed on").checked(schema::text),
];
// What is wrong with these is refused with 412, in the reference's order.
const RECOVERY: &[Param] = &[
    Param::new("action", &[], "`stage` or `activate`; needed").schema(schema::long_text),
    Param::new("recovery_uuid", &[], "The configuration; needed").schema(schema::long_text),
    Param::new("pivtoken", &[], "GUID of the server's token, hex; needed")
        .schema(schema::long_text),
    Param::new("template", &[], "Needed with `stage`").schema(schema::long_text),
    Param::new("token", &[], "Needed with `stage`").schema(schema::long_text),
];

/// Since this version `cn-agent` knows how to uninstall.
const UNINSTALLS_SINCE: (u64, u64, u64) = (2, 8, 0);

pub(super) fn routes() -> Vec<Route> {
    let start = |pattern, operation, task| {
        route(Route::new(Method::POST, pattern, operation, move |r: Request| start_task(r, task)))
    };
    vec![
        start("/servers/:server_uuid/nop", "DoNop", "nop").params(NOP),
        start("/servers/:server_uuid/install-agent", "ServerInstallAgent", "agent_install")
            .params(INSTALL),
        start("/servers/:server_uuid/nics/update", "UpdateNicTask", "server_update_nics")
            .params(NICS),
        route(Route::new(
            Method::POST,
            "/servers/:server_uuid/uninstall-agents",
            "ServerUninstallAgents",
            uninstall,
        ))
        .params(UNINSTALL)
        .errors(&[412]),
        route(Route::new(
            Method::POST,
            "/servers/:server_uuid/recovery-config",
            "ServerRecoveryConfig",
            recovery,
        ))
        .params(RECOVERY)
        .errors(&[412]),
    ]
}

fn route(route: Route) -> Route {
    route
        .summary("Starts a task on the server")
        .server(ServerRule::Exists)
        .running()
        .fenced()
        .returns_schema(schema::of::<TaskStarted>)
}

async fn uninstall(request: Request) -> Result<Response, ApiError> {
    request.app.fleet.require_cn_agent(request.server()?, "agents_uninstall", UNINSTALLS_SINCE)?;
    start_task(request, "agents_uninstall").await
}

async fn recovery(request: Request) -> Result<Response, ApiError> {
    let server = request.server()?;
    let text = |name: &str| request.text(name).filter(|text| !text.is_empty());
    request.app.fleet.recovery_check(
        server,
        &RecoveryRequest {
            action: text("action"),
            recovery_uuid: text("recovery_uuid"),
            pivtoken: text("pivtoken"),
            template: text("template"),
            token: text("token"),
        },
    )?;
    let members = ["action", "recovery_uuid", "pivtoken", "template", "token"];
    let params = pick(&request, &members);
    let id = request.app.tasks.create(server, "recovery_config", params, &request.caller).await?;
    Response::json(TaskStarted { id })
}
