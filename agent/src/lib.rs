//! The Muster agent: runs VMs, storage and images on one compute node.
//!
//! [`Agent::start`] builds the whole agent from its parts, in `main` from real ones, in tests and
//! simulations from others.

pub mod config;
pub mod consoles;
pub mod debug_http;
pub mod disk_layout;
pub mod drivers;
pub mod early_command;
mod failure;
pub mod guest_agent;
pub mod host;
pub mod legacy;
pub mod link;
pub mod metadata;
pub mod node;
pub mod report;
pub mod sessions;
pub mod shutdown_command;
pub mod startup;
pub mod sysinfo_command;
pub mod tasks;
pub mod vm_record;
pub mod vms;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::ServerUuid;
use muster_shared::kv::SharedKv;
use muster_shared::link::Dialer;
use muster_shared::threads::SharedThreads;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use crate::consoles::{Consoles, NodePorts};
use crate::link::{LinkParts, Links};
use crate::metadata::MetadataServer;
use crate::node::SharedDrivers;
use crate::report::feed::Feed;
use crate::tasks::image_gc::Policy;
use crate::tasks::journal::JournalError;
use crate::tasks::registry::{Faults, Registry};
use crate::tasks::{Engine, EngineParts};

/// Longest run time of any task unless configured otherwise.
pub const TASK_CEILING: Duration = Duration::from_secs(3600);

/// What an agent is made of.
#[derive(Debug)]
pub struct AgentParts {
    /// Time.
    pub clock: SharedClock,
    /// Randomness.
    pub entropy: SharedEntropy,
    /// Threads, for the links.
    pub threads: SharedThreads,
    /// Where the task journal is.
    pub kv: SharedKv,
    /// Opens connections to coordinators.
    pub dialer: Arc<dyn Dialer>,
    /// The node; its VM table is loaded by [`Agent::start`].
    pub drivers: SharedDrivers,
    /// Looks at the node for reports.
    pub feed: Arc<dyn Feed>,
    /// The task kinds, normally of [`tasks::HANDLERS`].
    pub registry: Registry,
    /// For tests that end the agent at a step of a task.
    pub faults: Option<Arc<dyn Faults>>,
}

/// Who the agent is and whom it serves.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The server it speaks for.
    pub server_uuid: ServerUuid,
    /// Changes with every boot of the host.
    pub boot_id: String,
    /// Changes with every start of the agent.
    pub instance_id: Uuid,
    /// Coordinators to connect to.
    pub coordinators: Vec<Url>,
    /// Longest run time of any task.
    pub task_ceiling: Duration,
    /// When images that nobody needs go; never without.
    pub image_gc: Option<Policy>,
}

/// The agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The task journal can't be read.
    #[error("open the task journal")]
    Journal(#[source] JournalError),
    /// The VM records can't be read.
    #[error("read the VM records")]
    Vms(#[source] drivers::DriverError),
}

/// Starts agents.
#[derive(Debug)]
pub struct Agent;

impl Agent {
    /// Reads the journal and the VM records, lets unfinished tasks go on, then connects to the
    /// coordinators: local work never waits for them.
    ///
    /// # Errors
    /// [`StartError`]: what is on disk can't be read.
    pub async fn start(config: AgentConfig, parts: AgentParts) -> Result<Running, StartError> {
        let instance_id = config.instance_id;
        let engine = Engine::open(EngineParts {
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            kv: parts.kv.clone(),
            drivers: parts.drivers.clone(),
            registry: parts.registry,
            boot_id: config.boot_id.clone(),
            instance_id,
            ceiling: config.task_ceiling,
            faults: parts.faults,
        })
        .await
        .map_err(StartError::Journal)?;
        node::startup::find(&parts.drivers).await.map_err(StartError::Vms)?;
        // Before tasks and guests: what an earlier life of the agent tried out is taken back, and
        // what a reboot took away is there again.
        node::bridges::mend(&parts.drivers).await;
        engine.recover().await;
        engine.wake().await;
        if let Some(policy) = config.image_gc {
            engine.keep_room_for_images(policy);
        }
        let (background, stop) = (TaskTracker::new(), CancellationToken::new());
        let report = parts.drivers.report.clone();
        // Complete or not, there is a document before anybody asks for it.
        report.sysinfo_within(Duration::MAX).await;
        let reporting = stop.clone();
        background.spawn(async move { report.run(reporting).await });
        let (clearing, left) = (stop.clone(), parts.drivers.clone());
        background.spawn(async move {
            clearing.run_until_cancelled(node::builds::clear(left)).await;
        });
        let metadata = MetadataServer::new(parts.drivers.clone(), background.clone(), stop.clone());
        background.spawn(metadata.run());
        let works_on = engine.clone();
        let looks = guest_agent::Looks {
            agents: parts.drivers.guest_agents.clone(),
            vms: parts.drivers.vms.clone(),
            is_busy: Box::new(move |vm| works_on.works_on(vm)),
        };
        background.spawn(looks.run(stop.clone()));
        let ports = NodePorts { drivers: parts.drivers.clone(), engine: engine.clone() };
        let consoles = Consoles::new(Arc::new(ports), background.clone(), stop.clone());
        let consoles = Arc::new(consoles);
        let shown: std::sync::Weak<dyn sessions::attach::Consoles> = Arc::downgrade(&consoles) as _;
        parts.drivers.sessions.look_through(shown);
        let links = Links::start(
            LinkParts {
                clock: parts.clock,
                entropy: parts.entropy,
                threads: parts.threads,
                dialer: parts.dialer,
                engine: engine.clone(),
                feed: parts.feed.clone(),
                drivers: parts.drivers.clone(),
                consoles: consoles.clone(),
                server_uuid: config.server_uuid,
                boot_id: config.boot_id,
                instance_id,
                next_session: AtomicU64::new(0),
            },
            &config.coordinators,
        );
        Ok(Running {
            engine,
            links,
            feed: parts.feed,
            drivers: parts.drivers,
            consoles,
            kv: parts.kv,
            server_uuid: config.server_uuid,
            instance_id,
            background,
            stop,
        })
    }
}

/// An agent that runs. Dropping it does not stop it; see [`Running::shut_down`].
#[derive(Debug)]
pub struct Running {
    /// Runs tasks.
    pub engine: Arc<Engine>,
    /// Connections to coordinators.
    pub links: Arc<Links>,
    /// Looks at the node.
    pub feed: Arc<dyn Feed>,
    /// The node.
    pub drivers: SharedDrivers,
    /// The guests' serial consoles.
    pub consoles: Arc<Consoles>,
    kv: SharedKv,
    /// The server it speaks for.
    pub server_uuid: ServerUuid,
    /// This start of the agent.
    pub instance_id: Uuid,
    background: TaskTracker,
    stop: CancellationToken,
}

impl Running {
    /// Cancelled when the agent can't go on (its journal failed) and its process must end.
    #[must_use]
    pub fn broken(&self) -> CancellationToken {
        self.engine.broken()
    }

    /// The data folder is gone, and the journal with it: takes no more tasks and says why.
    pub fn lose_data(&self, what: &str) {
        let why = format!("the data folder is lost ({what}): the agent starts again");
        self.drivers.report.set_data_remark(why.clone());
        self.engine.lose_journal(why);
    }

    /// Whether the engine and every link move.
    #[must_use]
    pub fn is_alive(&self, limit: Duration) -> bool {
        self.links.are_alive(limit) && !self.engine.broken().is_cancelled()
    }

    /// Stops in order: no new tasks, up to `patience` for those that run (the others go on from
    /// their journaled step after the next start), then the connections. Guests are not touched.
    pub async fn shut_down(&self, patience: Duration) {
        const CLOSE: Duration = Duration::from_secs(2);
        self.engine.shut_down(patience).await;
        self.links.shut_down(CLOSE).await;
        self.stop.cancel();
        self.background.close();
        if tokio::time::timeout(CLOSE, self.background.wait()).await.is_err() {
            tracing::warn!("a look at the host was cut off");
        }
        self.kv.close().await;
    }
}
