//! The API's listeners together: start, and an end in three steps.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::config::ListenAddress;
use muster_shared::telemetry::LogControl;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use warp::Filter as _;

use super::conn::{ConnLimits, Listener, Serving, accept_loop};
use super::origin::Names;
use super::places::PlaceLimits;
use super::watched::Timeouts;
use super::{ApiConfig, Shell, ValidationStatus, filters, lag, metrics};
use crate::StartError;
use crate::app::App;
use crate::config::Config;

/// After the drain's deadline requests get a 503; this long for those answers to be sent.
const HURRY: Duration = Duration::from_secs(1);
/// Connections of the metrics listener.
const METRICS_CONNECTIONS: usize = 64;

/// Binds an address.
///
/// # Errors
/// [`StartError::Bind`].
pub(crate) async fn bind(address: &ListenAddress) -> Result<Bound, StartError> {
    let failed = |source| StartError::Bind { address: address.clone(), source };
    let listener = Listener::bind(address).await.map_err(failed)?;
    let address = listener.address().map_err(failed)?;
    Ok(Bound { listener, address })
}

/// A listener and the address that it got.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: Listener,
    address: ListenAddress,
}

/// What the listeners are served with.
pub(crate) struct ServerSettings {
    api: ApiConfig,
    tls: Option<Arc<ServerConfig>>,
    limits: ConnLimits,
    drain: Duration,
}

impl ServerSettings {
    /// The settings that a configuration asks for.
    pub(crate) fn new(
        config: &Config,
        tls: Option<Arc<ServerConfig>>,
        log: Option<LogControl>,
    ) -> Self {
        let validation_status = match config.api.validation_status {
            500 => ValidationStatus::Reference,
            _ => ValidationStatus::Conflict,
        };
        let timeouts = Timeouts {
            head: Duration::from_millis(config.api.head_timeout_ms),
            idle: Duration::from_millis(config.api.idle_timeout_ms),
        };
        let connections =
            PlaceLimits { all: config.api.connections, of_peer: config.api.connections_per_peer };
        let hostname = hostname();
        let names = names(config, &hostname, tls.is_some());
        let log = log.map(Arc::new);
        let store_dir = Some(config.store_dir());
        Self {
            api: ApiConfig { validation_status, hostname, log, names, store_dir },
            tls,
            limits: ConnLimits { connections, timeouts },
            drain: config.drain(),
        }
    }
}

/// The names under which the API may be asked: those of `api.hosts`, those that agents are told,
/// and the machine's own.
fn names(config: &Config, hostname: &str, tls: bool) -> Names {
    let urls = config.agents.advertised_urls.iter().filter_map(|url| url.parse::<Url>().ok());
    let advertised: Vec<String> =
        urls.filter_map(|url| url.host_str().map(str::to_owned)).collect();
    let configured = config.api.hosts.iter().map(String::as_str);
    let all = configured.chain(advertised.iter().map(String::as_str)).chain([hostname]);
    Names::new(all, tls)
}

/// The machine's name.
pub(crate) fn hostname() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The running listeners.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where the API is.
    pub(crate) address: ListenAddress,
    /// Where the metrics are, beside the API.
    pub(crate) metrics_address: Option<ListenAddress>,
    shell: Arc<Shell>,
    stop: CancellationToken,
    acceptors: TaskTracker,
    drain: Duration,
}

impl Server {
    /// Serves the API on one listener and the metrics on another.
    pub(crate) fn start(
        app: Arc<App>,
        settings: ServerSettings,
        api: Bound,
        metrics_bound: Option<Bound>,
    ) -> Self {
        Self::start_shell(|config| Shell::new(app, config), settings, api, metrics_bound)
    }

    /// As [`Self::start`], with a shell of the caller's making.
    pub(super) fn start_shell(
        shell: impl FnOnce(ApiConfig) -> Arc<Shell>,
        settings: ServerSettings,
        api: Bound,
        metrics_bound: Option<Bound>,
    ) -> Self {
        let shell = shell(settings.api);
        let stop = CancellationToken::new();
        let acceptors = TaskTracker::new();
        let mut serving = Serving {
            filter: filters::filters(&shell),
            tls: settings.tls.map(TlsAcceptor::from),
            limits: settings.limits,
            stop: stop.clone(),
            kill: shell.cut_off.clone(),
            tracker: shell.tracker.clone(),
        };
        acceptors.spawn(accept_loop(api.listener, serving.clone()));
        acceptors.spawn(lag::watch(Arc::clone(&shell.app), stop.clone()));
        let metrics_address = metrics_bound.map(|bound| {
            serving.filter = metrics::filter(&shell).boxed();
            serving.tls = None;
            let all = METRICS_CONNECTIONS;
            serving.limits.connections = PlaceLimits { all, of_peer: all };
            acceptors.spawn(accept_loop(bound.listener, serving));
            bound.address
        });
        acceptors.close();
        Self {
            address: api.address,
            metrics_address,
            shell,
            stop,
            acceptors,
            drain: settings.drain,
        }
    }

    /// Work that ends with the server's connections.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Known to the tracker, which is what waits for it.
        drop(self.shell.tracker.spawn(work));
    }

    /// Stops accepting and lets requests end; after the deadline those that wait get a 503, and
    /// what is left a moment later is cut off. Websockets go on. Returns how many connections
    /// were cut off.
    pub(crate) async fn drain(&self) -> usize {
        self.stop.cancel();
        self.shell.leaving.cancel();
        self.acceptors.wait().await;
        let tracker = &self.shell.tracker;
        tracker.close();
        if tokio::time::timeout(self.drain, tracker.wait()).await.is_ok() {
            return 0;
        }
        self.shell.hurry.cancel();
        if tokio::time::timeout(HURRY, tracker.wait()).await.is_ok() {
            return 0;
        }
        let left = tracker.len();
        self.shell.cut_off.cancel();
        tracker.wait().await;
        left
    }

    /// Waits a moment for websockets to end, whose owners have been told to, and cuts off the
    /// rest. Returns how many those were.
    pub(crate) async fn close_sockets(&self) -> usize {
        let sockets = &self.shell.sockets;
        sockets.close();
        if tokio::time::timeout(HURRY, sockets.wait()).await.is_ok() {
            return 0;
        }
        let left = sockets.len();
        self.shell.kill.cancel();
        sockets.wait().await;
        left
    }
}
