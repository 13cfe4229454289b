//! The application: everything the coordinator does, without any HTTP.

pub mod image_manifest;
pub mod images;

use std::fmt;
use std::sync::Arc;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::ServerUuid;
use muster_shared::threads::SharedThreads;
use object_store::ObjectStore;
use serde_json::Value;

use crate::metrics::{Metrics, StaticLabels};
use crate::store::{SharedStore, StoreError};

/// The doors of a coordinator.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Time.
    pub clock: SharedClock,
    /// Randomness.
    pub entropy: SharedEntropy,
    /// Threads.
    pub threads: SharedThreads,
    /// Records.
    pub store: SharedStore,
    /// Large things: images, task output.
    pub blobs: Arc<dyn ObjectStore>,
    /// This coordinator's id; unique among the coordinators of a store.
    pub instance: String,
}

/// Settings of the application.
#[derive(Clone, Debug, Default)]
pub struct AppConfig {
    /// Name of the datacentre.
    pub datacenter: String,
    /// The machine's name, a label of the metrics.
    pub hostname: String,
}

/// What the preconditions of an endpoint ask about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerGate {
    /// Its stored status is exactly `running`.
    pub running: bool,
}

/// The application.
pub struct App {
    parts: Parts,
    config: AppConfig,
    metrics: Metrics,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({})", self.parts.instance)
    }
}

impl App {
    /// Builds the application; nothing runs yet.
    #[must_use]
    pub fn new(config: AppConfig, parts: Parts) -> Arc<Self> {
        let metrics = Metrics::new(&StaticLabels {
            datacenter: config.datacenter.clone(),
            instance: parts.instance.clone(),
            server: config.hostname.clone(),
        });
        Arc::new(Self { parts, config, metrics })
    }

    /// The doors.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The settings.
    pub fn config(&self) -> &AppConfig {
        &self.config
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What the preconditions S and R need to know; `None` when there is no such server.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn server_gate(&self, server: ServerUuid) -> Result<Option<ServerGate>, StoreError> {
        let store = &self.parts.store;
        if store.get(&format!("server/{server}")).await?.is_none() {
            return Ok(None);
        }
        let roster = store.get(&format!("roster/{server}")).await?;
        let status = roster.and_then(|r| serde_json::from_slice::<Value>(&r.value).ok());
        Ok(Some(ServerGate { running: status.is_some_and(|s| s["status"] == "running") }))
    }
}
