//! The Muster coordinator: roster, waitlist, allocator and the CNAPI-compatible HTTP API.
//!
//! [`Coordinator::start`] is what `main` and tests use; [`app::App`] alone, without HTTP, is what
//! the simulation uses.
#![forbid(unsafe_code)]

pub use muster_alloc as alloc;

pub mod agents;
pub mod app;
mod background;
pub mod blobs;
mod budget;
pub mod config;
pub mod http;
pub mod metrics;
pub mod planted;
pub mod roster;
pub mod store;

use std::io;
use std::sync::Arc;

use muster_shared::config::ListenAddress;
use muster_shared::error_chain::Chain;
use muster_shared::platform;
use muster_shared::telemetry::LogControl;
use muster_shared::tls::{self, TlsError};

use crate::app::{App, AppConfig, AppError, Parts};
use crate::config::Config;
use crate::http::{Server, ServerSettings};

/// An application, running, without its HTTP API.
///
/// # Errors
/// [`AppError::Store`], [`AppError::Corrupt`]; nothing runs then.
pub async fn start(config: AppConfig, parts: Parts) -> Result<Arc<App>, AppError> {
    let app = App::new(config, parts);
    background::run(&app).await?;
    Ok(app)
}

/// Starts coordinators.
#[derive(Debug)]
pub struct Coordinator;

/// A coordinator can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What is stored can't be read.
    #[error("start the application")]
    App(#[source] AppError),
    /// The TLS files can't be used; a fault of the configuration.
    #[error("set up TLS")]
    Tls(#[source] TlsError),
    /// A listener can't be bound.
    #[error("listen on {address}")]
    Bind {
        /// Where.
        address: ListenAddress,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A running coordinator.
#[derive(Debug)]
pub struct Running {
    /// Where the API is served; port 0 has become a real one.
    pub address: ListenAddress,
    /// Where metrics are served, if they have a listener of their own.
    pub metrics_address: Option<ListenAddress>,
    /// The application.
    pub app: Arc<App>,
    server: Server,
}

impl Coordinator {
    /// Builds the application and serves its API. `log` is what `/loglevel` changes.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub async fn start(
        config: &Config,
        parts: Parts,
        log: Option<LogControl>,
    ) -> Result<Running, StartError> {
        tls::install_provider();
        let acceptor = match config.tls.identity() {
            Some(identity) => {
                let server = tls::server(&identity, &config.tls.client_auth());
                Some(server.map_err(StartError::Tls)?)
            }
            None => None,
        };
        let api = http::bind(&config.listen).await?;
        let metrics = match &config.metrics.listen {
            Some(listen) => Some(http::bind(listen).await?),
            None => None,
        };
        let host_platform = Some(platform::of_this_host());
        let app = AppConfig { host_platform, ..config.app(http::hostname()) };
        let app = start(app, parts).await.map_err(StartError::App)?;
        let settings = ServerSettings::new(config, acceptor, log);
        let server = Server::start(Arc::clone(&app), settings, api, metrics);
        server.spawn(sweep(Arc::clone(&app)));
        Ok(Running {
            address: server.address.clone(),
            metrics_address: server.metrics_address.clone(),
            app,
            server,
        })
    }
}

impl Running {
    /// Stops accepting and lets requests end until the configured deadline, then stops the
    /// application and closes the websockets. Returns how many connections were cut off.
    pub async fn stop(self) -> usize {
        let requests = self.server.drain().await;
        self.app.shutdown().await;
        requests + self.server.close_sockets().await
    }
}

/// Removes what interrupted uploads left; a failure only means that it stays for now.
async fn sweep(app: Arc<App>) {
    match app.images.sweep().await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed files without an image"),
        Err(error) => tracing::warn!(error = %Chain(&error), "cannot look for stray files"),
    }
}
