//! The application: everything the coordinator does, without any HTTP.
//!
//! [`App::start`] reads what is stored, then the jobs of `background` run until
//! [`App::shutdown`]. Agents come in through [`App::agents`], requests through the methods of the
//! files here, one per resource.

mod agent_calls;
mod allocate;
pub mod boot;
mod caller;
mod cluster;
mod config;
pub(crate) mod dataset_url;
mod error;
pub mod events;
mod expected;
pub mod fields;
pub mod figures;
pub mod fleet;
mod fleet_feed;
mod incoming;
pub mod jobs;
pub(crate) mod keys;
mod place;
mod placing;
pub mod platforms;
mod posted;
pub(crate) mod recovery;
mod roster;
pub(crate) mod server_update;
mod servers;
mod status;
pub mod tasks;
#[cfg(test)]
pub(crate) mod tests;
pub mod tickets;
mod vm_request;
mod vms;
mod why;

pub mod image_manifest;
pub mod images;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use muster_shared::ids::ServerUuid;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;
use uuid::Uuid;

pub use allocate::{Ask, Decided};
pub use caller::Caller;
pub use config::{AllocationConfig, AppConfig, BootSettings, Parts};
pub use error::AppError;
pub use expected::Expected;
pub use place::Placed;
pub use servers::ServerFilter;
pub use vms::VmFilter;

use crate::agents::{Agents, AgentsParts, Incoming, Reason};
use crate::background;
use crate::metrics::{Metrics, StaticLabels};
use crate::store::{Counted, Feed, Follow, LeaseId, StoreError};
use fleet::Fleet;
use placing::Placement;
use roster::Roster;
use tasks::Table;
use tickets::Tickets;

/// What the preconditions of an endpoint ask about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerGate {
    /// Its stored status is exactly `running`.
    pub running: bool,
}

/// What the application counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) status_writes: Counter,
    pub(crate) tasks_created: Counter,
    pub(crate) tasks_ended: Counter,
    pub(crate) status_reports: Counter,
    pub(crate) store_commits: Counter,
}

/// The application.
pub struct App {
    pub(crate) parts: Parts,
    pub(crate) config: AppConfig,
    pub(crate) metrics: Metrics,
    pub(crate) counters: Counters,
    /// What feeds the indices in memory.
    pub(crate) feed: Feed,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) roster: Arc<Roster>,
    /// A VM record may have to be written.
    pub(crate) vms_wake: Notify,
    pub(crate) lease: Mutex<LeaseId>,
    pub(crate) agents: Arc<Agents>,
    pub(crate) tasks: Arc<Table>,
    pub(crate) jobs: jobs::Jobs,
    pub(crate) events: events::Events,
    pub(crate) tickets: Tickets,
    pub(crate) placing: Arc<Placement>,
    pub(crate) decisions: allocate::Decisions,
    pub(crate) tracker: TaskTracker,
    pub(crate) cancel: CancellationToken,
    pub(crate) failed: CancellationToken,
    cluster: OnceLock<Uuid>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({})", self.parts.instance)
    }
}

impl App {
    /// Builds the application; nothing is read and nothing runs yet.
    #[must_use]
    pub fn new(config: AppConfig, mut parts: Parts) -> Arc<Self> {
        let metrics = Metrics::new(&StaticLabels {
            datacenter: config.datacenter.clone(),
            instance: parts.instance.clone(),
            server: config.hostname.clone(),
        });
        let counters = Counters::default();
        for (name, help, counter) in [
            ("status_writes", "Writes of a server's status", &counters.status_writes),
            ("tasks_created", "Tasks made", &counters.tasks_created),
            ("tasks_ended", "Tasks ended", &counters.tasks_ended),
            ("status_reports", "Status reports taken over", &counters.status_reports),
            ("store_commits", "Commits to the store", &counters.store_commits),
        ] {
            metrics.register(name, help, counter.clone());
        }
        parts.store = Arc::new(Counted::new(parts.store, counters.store_commits.clone()));
        let feed = Feed::new(Arc::clone(&parts.store));
        let damaged = feed.damaged().count.clone();
        metrics.register("damaged_records", "Records of the store that can't be read", damaged);
        let clock = || Arc::clone(&parts.clock);
        let fleet = Arc::new(Fleet::new(clock()));
        let (instance, of_fleet) = (&parts.instance, Arc::clone(&fleet));
        let placing = Placement::new(&config.allocation, instance, of_fleet, clock());
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let agents = AgentsParts {
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            tracker: tracker.clone(),
            cancel: cancel.clone(),
            instance: parts.instance.clone(),
            advertised_urls: config.advertised_urls.clone(),
            hello_timeout: config.hello_timeout,
            stream_timeout: config.stream_timeout,
        };
        let app = Arc::new_cyclic(|app: &Weak<Self>| Self {
            roster: Arc::new(Roster::new(config.roster, Arc::clone(&parts.clock))),
            agents: Arc::new(Agents::new(app.clone() as Weak<dyn Incoming>, agents)),
            metrics,
            counters,
            feed,
            fleet,
            vms_wake: Notify::new(),
            lease: Mutex::new(LeaseId(0)),
            tasks: Arc::new(Table::new(Arc::clone(&parts.clock))),
            jobs: jobs::Jobs::default(),
            events: events::Events::default(),
            tickets: Tickets::new(),
            placing: Arc::new(placing),
            decisions: allocate::Decisions::default(),
            tracker,
            cancel,
            failed: CancellationToken::new(),
            cluster: OnceLock::new(),
            parts,
            config,
        });
        for (name, help, reason) in [
            ("agents_duplicate", "Agents turned away as second ones", Reason::Duplicate),
            ("agents_foreign", "Agents turned away as another cluster's", Reason::Foreign),
        ] {
            app.metrics.register(name, help, app.agents.turned_away_total(reason).clone());
        }
        app
    }

    /// Builds the application, reads what is stored and starts its jobs.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Corrupt`]; nothing runs then.
    pub async fn start(config: AppConfig, parts: Parts) -> Result<Arc<Self>, AppError> {
        let app = Self::new(config, parts);
        app.run().await?;
        Ok(app)
    }

    /// Reads what is stored and starts the jobs of an application made by [`App::new`].
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Corrupt`]; nothing runs then.
    pub async fn run(self: &Arc<Self>) -> Result<(), AppError> {
        self.load_cluster().await?;
        self.placer_enrol().await?;
        // In this order each commit is shown: who is told that a task has ended finds its VM.
        self.feed.add(Arc::clone(&self.fleet) as Arc<dyn Follow>);
        self.feed.add(Arc::clone(&self.roster) as Arc<dyn Follow>);
        self.feed.add(self.tickets.follower());
        self.feed.add(Arc::clone(&self.placing) as Arc<dyn Follow>);
        self.feed.add(Arc::clone(&self.tasks) as Arc<dyn Follow>);
        self.feed.load().await?;
        self.load_history().await?;
        self.boot_found().await?;
        background::join(self).await?;
        background::start(self);
        tracing::info!(
            servers = self.fleet.registered().len(),
            vms = self.fleet.vm_count(),
            open_tasks = self.tasks.len(),
            "application started"
        );
        Ok(())
    }

    /// Stops everything: agents are told to come back, jobs end. What is not stored is lost, and
    /// is nothing that was acknowledged.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        let lease = *self.lease.lock();
        if let Err(error) = self.parts.store.revoke(lease).await {
            tracing::debug!(%error, "the lease runs out by itself");
        }
    }

    /// Runs work that must come to its end whatever becomes of who asked for it;
    /// [`App::shutdown`] waits for it.
    pub(crate) fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tracker.spawn(work.in_current_span())
    }

    /// Returns when a job has ended on its own, after which the process must end.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
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

    /// The connected agents.
    pub fn agents(&self) -> &Arc<Agents> {
        &self.agents
    }

    /// What the preconditions S and R need to know; `None` when there is no such server.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn server_gate(&self, server: ServerUuid) -> Result<Option<ServerGate>, StoreError> {
        let gate = self.fleet.with(server, |entry| {
            let running = entry.stored_status() == "running";
            entry.record.as_ref().map(|_| ServerGate { running })
        });
        Ok(gate.flatten())
    }
}
