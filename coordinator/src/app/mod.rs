//! The application: everything the coordinator does, without any HTTP. Each service is a module
//! here that owns its state and is given what it uses when it is made; this file only puts them
//! together.

mod age;
mod boot;
mod caller;
mod cluster;
mod config;
mod context;
pub(crate) mod dataset_url;
mod decisions;
mod error;
pub mod events;
mod expected;
pub mod fields;
pub mod fleet;
mod history;
pub mod image_manifest;
pub mod images;
mod incoming;
pub mod jobs;
pub(crate) mod keys;
mod monitoring;
mod nodes;
mod packages;
mod placement;
pub mod platform;
mod platforms;
mod posted;
mod records;
mod recovery;
mod reports;
mod roster;
mod server_update;
mod server_view;
mod servers;
pub mod tasks;
#[cfg(test)]
pub(crate) mod tests;
pub mod tickets;
mod usage;
mod vm_request;
mod vms;
mod why;

use std::fmt;
use std::sync::{Arc, Weak};

pub use boot::{Boot, BootChange, BootOwner, Mode};
pub use caller::Caller;
pub use config::{AllocationConfig, AppConfig, BootSettings, HistoryLimits, Parts};
pub use context::Context;
pub use decisions::Decisions;
pub(crate) use decisions::HistoryStep;
pub use error::AppError;
pub use expected::Expected;
pub use monitoring::FleetCounts;
pub use placement::{Ask, Decided, Placement};
pub use platform::RegisteredPlatform;
pub use recovery::RecoveryRequest;
pub(crate) use server_update::ServerUpdate;
pub use servers::{ServerFilter, Servers};
pub use usage::UsageFilter;
pub use vms::VmFilter;

use crate::agents::{Agents, AgentsParts, Incoming, Reason};
use crate::metrics::Metrics;
use crate::store::Follow;
use dataset_url::Datasets;
use events::Events;
use fleet::Fleet;
use images::Images;
use incoming::FromAgents;
use jobs::Jobs;
use monitoring::Monitoring;
use nodes::Nodes;
use packages::Packages;
use platforms::PlatformCatalog;
use reports::Reports;
use roster::Roster;
use tasks::{AtEnd, Tasks};
use tickets::Tickets;
use usage::VmUsages;
use why::Why;

/// The services.
pub struct App {
    pub(crate) ctx: Arc<Context>,
    pub(crate) agents: Arc<Agents>,
    pub(crate) boot: Arc<Boot>,
    pub(crate) datasets: Datasets,
    pub(crate) decisions: Arc<Decisions>,
    pub(crate) events: Arc<Events>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) images: Arc<Images>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) monitoring: Monitoring,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) packages: Arc<Packages>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) platforms: Arc<PlatformCatalog>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) servers: Servers,
    /// Tasks.
    pub tasks: Arc<Tasks>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) usage: VmUsages,
    pub(crate) why: Why,
    /// Agents hold it weakly.
    _from_agents: Arc<FromAgents>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({})", self.ctx.parts.instance)
    }
}

impl App {
    /// Puts the services together; nothing is read and nothing runs yet.
    #[must_use]
    pub fn new(config: AppConfig, parts: Parts) -> Arc<Self> {
        let ctx = Context::new(config, parts);
        let c = || Arc::clone(&ctx);
        let agents = Arc::new(Agents::new(agents_parts(&ctx)));
        let fleet = Arc::new(Fleet::new(c()));
        let roster = Arc::new(Roster::new(c()));
        let tickets = Arc::new(Tickets::new(c()));
        let tasks = Arc::new(Tasks::new(c(), agents.clone(), tickets.clone()));
        let decisions = Arc::new(Decisions::new(c()));
        let packages = Arc::new(Packages::new(c()));
        let placement = Placement::new(
            c(),
            agents.clone(),
            fleet.clone(),
            tickets.clone(),
            tasks.clone(),
            decisions.clone(),
            packages.clone(),
        );
        tasks.at_end(Arc::downgrade(&placement) as Weak<dyn AtEnd>);
        let nodes = Arc::new(Nodes::new(
            c(),
            agents.clone(),
            fleet.clone(),
            tasks.clone(),
            tickets.clone(),
        ));
        let platforms = Arc::new(PlatformCatalog::new(c(), fleet.clone()));
        let boot = Arc::new(Boot::new(c(), fleet.clone(), platforms.clone()));
        let images = Arc::new(Images::new(c()));
        let datasets = Datasets::new(c(), fleet.clone(), images.clone());
        let events = Arc::new(Events::new(c(), tasks.clone()));
        let reports = Reports::new(
            c(),
            agents.clone(),
            fleet.clone(),
            roster.clone(),
            boot.clone(),
            events.clone(),
        );
        let reports = Arc::new(reports);
        let jobs = Arc::new(Jobs::new(
            c(),
            agents.clone(),
            fleet.clone(),
            nodes.clone(),
            reports.clone(),
            tasks.clone(),
            tickets.clone(),
        ));
        let servers = Servers {
            ctx: c(),
            fleet: fleet.clone(),
            roster: roster.clone(),
            placement: placement.clone(),
            boot: boot.clone(),
            platforms: platforms.clone(),
            tasks: tasks.clone(),
            tickets: tickets.clone(),
            nodes: nodes.clone(),
        };
        let why = Why {
            ctx: c(),
            agents: agents.clone(),
            fleet: fleet.clone(),
            roster: roster.clone(),
            tasks: tasks.clone(),
            tickets: tickets.clone(),
        };
        let monitoring =
            Monitoring { fleet: fleet.clone(), placement: placement.clone(), tasks: tasks.clone() };
        let usage = VmUsages::new(c(), agents.clone(), fleet.clone());
        let from_agents = Arc::new(FromAgents {
            ctx: c(),
            fleet: fleet.clone(),
            roster: roster.clone(),
            tasks: tasks.clone(),
            events: events.clone(),
            reports: reports.clone(),
        });
        agents.give_to(Arc::downgrade(&from_agents) as Weak<dyn Incoming>);
        for (name, help, reason) in [
            ("agents_duplicate", "Agents turned away as second ones", Reason::Duplicate),
            ("agents_foreign", "Agents turned away as another cluster's", Reason::Foreign),
        ] {
            ctx.metrics.register(name, help, agents.turned_away_total(reason).clone());
        }
        Arc::new(Self {
            ctx,
            agents,
            boot,
            datasets,
            decisions,
            events,
            fleet,
            images,
            jobs,
            monitoring,
            nodes,
            packages,
            placement,
            platforms,
            reports,
            roster,
            servers,
            tasks,
            tickets,
            usage,
            why,
            _from_agents: from_agents,
        })
    }

    /// Reads what is stored; from then on the store's feed keeps memory in step.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Corrupt`].
    pub async fn load(&self) -> Result<(), AppError> {
        self.ctx.load_cluster().await?;
        self.placement.enrol().await?;
        let feed = &self.ctx.feed;
        // In this order each commit is shown: who is told that a task has ended finds its VM.
        feed.add(Arc::clone(&self.fleet) as Arc<dyn Follow>);
        feed.add(Arc::clone(&self.roster) as Arc<dyn Follow>);
        feed.add(self.tickets.follower());
        let planted = &self.ctx.config.planted;
        feed.add(planted.follower(self.placement.follower()));
        feed.add(Arc::clone(&self.decisions) as Arc<dyn Follow>);
        feed.add(planted.follower(self.tasks.follower()));
        feed.load().await?;
        // Before anybody is served: the first decision would wait for all of it.
        while self.placement.take_over() {
            tokio::task::yield_now().await;
        }
        self.boot.found().await?;
        tracing::info!(
            servers = self.fleet.registered().len(),
            vms = self.fleet.vm_count(),
            open_tasks = self.tasks.table.len(),
            "application loaded"
        );
        Ok(())
    }

    /// Stops everything: agents are told to come back, jobs end. What is not stored is lost, and
    /// is nothing that was acknowledged.
    pub async fn shutdown(&self) {
        self.ctx.cancel.cancel();
        self.ctx.tracker.close();
        self.ctx.tracker.wait().await;
        self.decisions.flush().await;
        self.ctx.stopped.cancel();
        let lease = *self.ctx.lease.lock();
        if let Err(error) = self.ctx.parts.store.revoke(lease).await {
            tracing::debug!(%error, "the lease runs out by itself");
        }
    }

    /// Returns when a background job has ended on its own, after which the process must end.
    pub async fn failed(&self) {
        self.ctx.failed.cancelled().await;
    }

    /// Whether it is about to end because a part of it failed.
    pub fn has_failed(&self) -> bool {
        self.ctx.failed.is_cancelled()
    }

    /// The doors.
    pub fn parts(&self) -> &Parts {
        &self.ctx.parts
    }

    /// The settings.
    pub fn config(&self) -> &AppConfig {
        &self.ctx.config
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.ctx.metrics
    }

    /// The connected agents.
    pub fn agents(&self) -> &Arc<Agents> {
        &self.agents
    }
}

fn agents_parts(ctx: &Context) -> AgentsParts {
    AgentsParts {
        clock: ctx.parts.clock.clone(),
        entropy: ctx.parts.entropy.clone(),
        tracker: ctx.tracker.clone(),
        cancel: ctx.cancel.clone(),
        instance: ctx.parts.instance.clone(),
        advertised_urls: ctx.config.advertised_urls.clone(),
        hello_timeout: ctx.config.hello_timeout,
        planted: ctx.config.planted.clone(),
        stream_timeout: ctx.config.stream_timeout,
    }
}
