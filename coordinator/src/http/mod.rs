//! The HTTP shell over [`App`](crate::app::App): it translates, the application decides.
//!
//! Each resource has a file that exports its `routes()`; [`table`] lists them. A new endpoint is a
//! [`route::Route`] in such a list and a handler beside it, see `docs/adding-an-endpoint.md`.

mod accept;
mod agent_ws;
mod allocate;
mod app_error;
mod ask;
mod audit;
mod body;
mod boot;
mod compressed;
mod conn;
mod dispatch;
mod docker;
mod error;
mod event_stream;
mod events;
mod execute;
mod fair;
mod filters;
mod fleet_metrics;
mod fleet_vms;
mod gate;
mod guest;
mod images;
mod info;
mod jobs;
mod lag;
mod local;
mod logs;
mod matcher;
mod metrics;
mod node_images;
mod node_tasks;
mod openapi;
mod origin;
mod orphans;
mod packages;
mod params;
mod ping;
mod places;
mod request;
mod response;
mod route;
mod rule;
mod schema;
mod screenshot;
mod server;
mod servers;
mod snapshots;
mod stream;
mod tasks;
#[cfg(test)]
mod tests;
mod tickets;
mod transfer;
mod upgrade;
mod vm_usage;
mod vms;
mod watched;
mod why;
mod zfs;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use body::Bodies;
use bytes::Bytes;
pub use error::ValidationStatus;
use gate::Gate;
use jiff::Timestamp;
pub use local::LocalApi;
use matcher::first_segment;
use muster_shared::telemetry::LogControl;
use origin::Names;
use places::Shares;
use route::Route;
pub(crate) use server::{Server, ServerSettings, bind, hostname};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;

/// Image uploads at a time.
const MAX_UPLOADS: usize = 8;
/// Of them, those of one client.
const MAX_UPLOADS_OF_CLIENT: usize = 4;
/// Requests of one client that wait for a task or a ticket.
const MAX_WAITS_OF_CLIENT: usize = 4_096;
/// Event streams of one client: half of all.
const MAX_EVENT_STREAMS_OF_CLIENT: usize = 128;
/// Changes at a time. Those whose clients went away hold no connection, so the limit of
/// connections does not bound them.
const MAX_CHANGES: usize = 4_096;

/// Every route of the API, by resource.
fn table() -> Vec<Route> {
    let resources = [
        ping::routes,
        info::routes,
        metrics::routes,
        images::routes,
        packages::routes,
        servers::routes,
        events::routes,
        event_stream::routes,
        tasks::routes,
        vms::routes,
        snapshots::routes,
        docker::routes,
        execute::routes,
        guest::routes,
        node_images::routes,
        node_tasks::routes,
        orphans::routes,
        logs::routes,
        zfs::routes,
        fleet_vms::routes,
        screenshot::routes,
        transfer::routes,
        vm_usage::routes,
        agent_ws::routes,
        allocate::routes,
        boot::routes,
        jobs::routes,
        why::routes,
        tickets::routes,
    ];
    resources.iter().flat_map(|routes| routes()).collect()
}

/// Settings of the API.
#[derive(Clone, Debug, Default)]
pub struct ApiConfig {
    /// What a failed validation is answered with.
    pub validation_status: ValidationStatus,
    /// The machine's name, sent as `x-server-name`.
    pub hostname: String,
    /// What `/loglevel` changes.
    pub log: Option<Arc<LogControl>>,
    /// The names under which the API may be asked.
    pub(crate) names: Names,
    /// Where the store is, if it is on this machine.
    pub(crate) store_dir: Option<PathBuf>,
}

/// The HTTP API over an application.
pub(crate) struct Shell {
    app: Arc<App>,
    config: ApiConfig,
    /// What the preconditions ask.
    gate: Arc<dyn Gate>,
    /// Grouped by first path segment; each group becomes one warp filter.
    groups: Vec<Group>,
    /// When the process started.
    started: Timestamp,
    /// Every connection, until it becomes a websocket, and every upload.
    tracker: TaskTracker,
    /// Every websocket.
    sockets: TaskTracker,
    /// Uploads of images at a time; each holds two parts in memory.
    uploads: Arc<Semaphore>,
    /// Changes at a time.
    changes: Arc<Semaphore>,
    /// Bodies of requests under way.
    bodies: Bodies,
    /// Requests that wait for something, uploads and event streams, of each client.
    waits: Shares,
    uploads_of: Shares,
    event_streams: Shares,
    /// The OpenAPI document, once somebody asked for it.
    openapi: OnceLock<Bytes>,
    /// The listeners stop: streams without an end are ended.
    leaving: CancellationToken,
    /// Requests that still wait get a 503.
    hurry: CancellationToken,
    /// Connections are dropped.
    cut_off: CancellationToken,
    /// Websockets are dropped.
    kill: CancellationToken,
}

/// Routes with the same first path segment.
struct Group {
    segment: &'static str,
    routes: Vec<Route>,
}

impl fmt::Debug for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shell").field("app", &self.app).finish_non_exhaustive()
    }
}

impl Shell {
    /// The API with all its routes.
    pub(crate) fn new(app: Arc<App>, config: ApiConfig) -> Arc<Self> {
        let gate = Arc::clone(&app) as Arc<dyn Gate>;
        Self::with_routes(app, config, gate, table())
    }

    /// The route of a name `METHOD /pattern`.
    #[cfg(test)]
    fn route_named(&self, name: &str) -> Option<&Route> {
        let mut routes = self.groups.iter().flat_map(|group| &group.routes);
        routes.find(|route| format!("{} {}", route.method, route.pattern) == name)
    }

    fn with_routes(
        app: Arc<App>,
        config: ApiConfig,
        gate: Arc<dyn Gate>,
        routes: Vec<Route>,
    ) -> Arc<Self> {
        let mut groups: Vec<Group> = Vec::new();
        for route in routes {
            let segment = first_segment(route.pattern);
            match groups.iter_mut().find(|group| group.segment == segment) {
                Some(group) => group.routes.push(route),
                None => groups.push(Group { segment, routes: vec![route] }),
            }
        }
        let started = app.parts().clock.wall();
        Arc::new(Self {
            app,
            config,
            gate,
            groups,
            started,
            tracker: TaskTracker::new(),
            sockets: TaskTracker::new(),
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
            changes: Arc::new(Semaphore::new(MAX_CHANGES)),
            bodies: Bodies::default(),
            waits: Shares::default(),
            uploads_of: Shares::default(),
            event_streams: Shares::default(),
            openapi: OnceLock::new(),
            leaving: CancellationToken::new(),
            hurry: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            kill: CancellationToken::new(),
        })
    }
}
