//! Simulated nodes: a coordinator and agents, each with a runtime, a paused clock and a disk of
//! its own. A crash drops the runtime; what is on the disk stays, as far as it was synced.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use muster_agent::drivers::Drivers;
use muster_agent::drivers::compute::sim::{SimCompute, SimGuests};
use muster_agent::drivers::faults::Faults;
use muster_agent::drivers::host::sim::{HostLog, SimHost};
use muster_agent::drivers::images::sim::{SimImages, SimRepository};
use muster_agent::drivers::node::SimDocuments;
use muster_agent::drivers::settings::sim::SimSettings;
use muster_agent::drivers::storage::sim::{SimPool, SimStorage};
use muster_agent::report::sim::SimFacts;
use muster_agent::report::{Reporter, ReporterParts};
use muster_agent::tasks::HANDLERS;
use muster_agent::tasks::registry::{self, Registry};
use muster_agent::vms::sim::SimVmRecords;
use muster_agent::vms::{Node, VmTable};
use muster_agent::{Agent, AgentConfig, AgentParts, Running, TASK_CEILING};
use muster_coordinator::app::{App, AppConfig, Parts};
use muster_coordinator::store::{KvStore, SharedStore};
use muster_shared::clock::{SharedClock, TokioClock};
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::error_chain::Chain;
use muster_shared::ids::ServerUuid;
use muster_shared::kv::{MemKv, MemOptions, SharedKv};
use muster_shared::link::Connection;
use muster_shared::threads::SameRuntime;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::net::Net;
use super::{TICK, origin};

/// Longest time a commit takes to become durable.
const SYNC: Duration = Duration::from_millis(30);
/// Longest time a call of a simulated driver takes, before and after its effect.
const DRIVER_DELAY: Duration = Duration::from_millis(60);
const COORDINATOR_URL: &str = "ws://coordinator:8480/agent";

/// One life of a process.
struct Life<T> {
    runtime: Runtime,
    program: Program<T>,
}

/// A process: not there yet, running, or unable to start.
type Program<T> = Arc<Mutex<Option<Result<T, String>>>>;

impl<T> Life<T> {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O takes nothing that could be missing");
        Self { runtime, program: Arc::default() }
    }
}

fn disk(seed: u64) -> Arc<MemKv> {
    let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
    Arc::new(MemKv::new(MemOptions { sync: SYNC, entropy: Some(entropy) }))
}

/// The wall clock of a process that starts at `now`; its monotonic clock starts at zero.
fn clock(now: Duration) -> SharedClock {
    Arc::new(TokioClock::new(origin().checked_add(now).expect("runs are short")))
}

/// The coordinator's machine.
pub struct CoordinatorNode {
    /// Its store's map.
    pub kv: Arc<MemKv>,
    seed: u64,
    lives: u64,
    life: Option<Life<Arc<App>>>,
}

impl fmt::Debug for CoordinatorNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoordinatorNode").field("lives", &self.lives).finish_non_exhaustive()
    }
}

impl CoordinatorNode {
    /// A machine on which nothing runs yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { kv: disk(seed), seed, lives: 0, life: None }
    }

    /// Starts the process.
    pub fn start(&mut self, net: &Net, now: Duration) {
        self.lives += 1;
        let life = Life::new();
        let seed = self.seed ^ (self.lives << 32);
        let kv: SharedKv = self.kv.clone();
        let (program, connections) = (life.program.clone(), net.listen());
        life.runtime.spawn(coordinator(kv, seed, now, program, connections));
        self.life = Some(life);
    }

    /// The process dies, and what was not synced with it.
    pub fn crash(&mut self, net: &Net, entropy: &SeededEntropy) {
        net.unlisten();
        self.life = None;
        self.kv = Arc::new(self.kv.crash(entropy));
    }

    /// Whether the process runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// The application, once it has started.
    #[must_use]
    pub fn app(&self) -> Option<Arc<App>> {
        let program = self.life.as_ref()?.program.lock();
        program.as_ref().and_then(|app| app.as_ref().ok().cloned())
    }

    /// Whether the application says that its process must end.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let Some(life) = &self.life else { return false };
        match &*life.program.lock() {
            None => false,
            Some(Ok(app)) => app.failed().now_or_never().is_some(),
            Some(Err(_)) => true,
        }
    }

    /// Runs something beside the application; it dies with the process.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(life) = &self.life {
            // Its end is told by what it writes.
            drop(life.runtime.spawn(work));
        }
    }

    /// One tick.
    pub fn step(&self) {
        if let Some(life) = &self.life {
            life.runtime.block_on(async { tokio::time::sleep(TICK).await });
        }
    }
}

async fn coordinator(
    kv: SharedKv,
    seed: u64,
    now: Duration,
    program: Program<Arc<App>>,
    mut connections: mpsc::Receiver<Connection>,
) {
    match start_app(kv, seed, now).await {
        Err(error) => *program.lock() = Some(Err(error)),
        Ok(app) => {
            *program.lock() = Some(Ok(app.clone()));
            while let Some(connection) = connections.recv().await {
                app.agents().accept(connection);
            }
        }
    }
}

async fn start_app(kv: SharedKv, seed: u64, now: Duration) -> Result<Arc<App>, String> {
    let clock = clock(now);
    let store = KvStore::open(kv, clock.clone(), &TaskTracker::new()).await;
    let store: SharedStore = Arc::new(store.map_err(|e| Chain(&e).to_string())?);
    let parts = Parts {
        clock,
        entropy: Arc::new(SeededEntropy::new(seed)),
        threads: Arc::new(SameRuntime),
        store,
        blobs: Arc::new(object_store::memory::InMemory::new()),
        instance: "sim".to_owned(),
    };
    let app = App::start(AppConfig::default(), parts).await;
    app.map_err(|e| Chain(&e).to_string())
}

/// A compute node: what outlives the agent, and the agent.
pub struct AgentNode {
    /// Which one.
    pub number: usize,
    /// Its server.
    pub server: ServerUuid,
    /// Its guests.
    pub guests: SimGuests,
    /// Its disks and images.
    pub pool: SimPool,
    /// Its VM records.
    pub records: SimVmRecords,
    /// What was done to the host.
    pub log: HostLog,
    /// Its settings.
    pub settings: SimSettings,
    documents: SimDocuments,
    /// Faults of its drivers.
    pub faults: Faults,
    /// Its journal's map.
    pub kv: Arc<MemKv>,
    /// What the registry is asked at each step.
    pub steps: Option<Arc<dyn registry::Faults>>,
    repository: SimRepository,
    seed: u64,
    boots: u64,
    booted_at: Duration,
    lives: u64,
    life: Option<Life<Running>>,
}

impl fmt::Debug for AgentNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentNode").field("number", &self.number).finish_non_exhaustive()
    }
}

impl AgentNode {
    /// A node on which nothing runs yet; it can install what `repository` has.
    #[must_use]
    pub fn new(number: usize, seed: u64, repository: SimRepository) -> Self {
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed ^ 1));
        let faults = Faults::with_delays(entropy, DRIVER_DELAY);
        let id = 0x1000 + u128::try_from(number).expect("a few nodes");
        Self {
            number,
            server: uuid::Uuid::from_u128(id).into(),
            guests: SimGuests::default(),
            pool: SimPool::default(),
            records: SimVmRecords::new(faults.clone()),
            log: HostLog::default(),
            settings: SimSettings::new(faults.clone()),
            documents: SimDocuments::default(),
            faults,
            kv: disk(seed ^ 2),
            steps: None,
            repository,
            seed,
            boots: 1,
            booted_at: Duration::ZERO,
            lives: 0,
            life: None,
        }
    }

    /// Starts the agent.
    pub fn start(&mut self, net: &Net, now: Duration) {
        self.lives += 1;
        let life = Life::new();
        let program = life.program.clone();
        let seed = self.seed ^ (self.lives << 32);
        // The clock reads the time of the runtime it is made in.
        let inside = life.runtime.enter();
        let (config, parts, report) = self.parts(seed, net, now);
        drop(inside);
        drop(life.runtime.spawn(async move { report.run(CancellationToken::new()).await }));
        drop(life.runtime.spawn(async move {
            let running = Agent::start(config, parts).await;
            *program.lock() = Some(running.map_err(|e| Chain(&e).to_string()));
        }));
        self.life = Some(life);
    }

    fn parts(
        &self,
        seed: u64,
        net: &Net,
        now: Duration,
    ) -> (AgentConfig, AgentParts, Arc<Reporter>) {
        let boot_id = format!("boot-{}-{}", self.number, self.boots);
        let clock = clock(now);
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
        let faults = || self.faults.clone();
        let node = Node { boot_id: boot_id.clone(), ..Node::default() };
        let vms = Arc::new(VmTable::new(Arc::new(self.records.clone()), clock.clone(), node));
        let compute = Arc::new(SimCompute::new(self.guests.clone(), clock.clone(), faults()));
        let storage = Arc::new(SimStorage::new(self.pool.clone(), faults()));
        let number = u16::try_from(self.number).expect("a few nodes");
        let booted: Timestamp = origin().checked_add(self.booted_at).expect("runs are short");
        let report = Arc::new(Reporter::new(ReporterParts {
            clock: clock.clone(),
            facts: Arc::new(SimFacts::new(self.server, number, booted, &boot_id)),
            vms: vms.clone(),
            compute: compute.clone(),
            storage: storage.clone(),
        }));
        let images = SimImages::new(self.pool.clone(), self.repository.clone(), faults());
        let drivers = Arc::new(Drivers {
            clock: clock.clone(),
            entropy: entropy.clone(),
            compute,
            storage,
            images: Arc::new(images),
            node: Arc::new(self.documents.clone()),
            host: Arc::new(SimHost::new(self.log.clone(), faults())),
            settings: Arc::new(self.settings.clone()),
            vms,
            report: report.clone(),
        });
        let parts = AgentParts {
            clock,
            entropy,
            threads: Arc::new(SameRuntime),
            kv: self.kv.clone(),
            dialer: net.dialer(self.number),
            drivers,
            feed: report.clone(),
            registry: Registry::new(HANDLERS),
            faults: self.steps.clone(),
        };
        let config = AgentConfig {
            server_uuid: self.server,
            boot_id,
            instance_id: parts.entropy.uuid(),
            coordinators: vec![COORDINATOR_URL.parse().expect("a constant URL")],
            task_ceiling: TASK_CEILING,
        };
        (config, parts, report)
    }

    /// The agent dies; guests go on.
    pub fn crash(&mut self, entropy: &SeededEntropy) {
        self.life = None;
        self.kv = Arc::new(self.kv.crash(entropy));
    }

    /// The host goes down: guests and agent die. It comes up with [`Self::start`].
    pub fn power_off(&mut self, entropy: &SeededEntropy, now: Duration) {
        self.crash(entropy);
        self.guests.reboot();
        self.boots += 1;
        self.booted_at = now;
    }

    /// Whether the agent runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// How often the host was switched off.
    #[must_use]
    pub fn reboots(&self) -> u64 {
        self.boots - 1
    }

    /// Whether the agent says that its process must end.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let Some(life) = &self.life else { return false };
        match &*life.program.lock() {
            None => false,
            Some(Ok(running)) => running.broken().is_cancelled(),
            Some(Err(_)) => true,
        }
    }

    /// One tick.
    pub fn step(&self) {
        if let Some(life) = &self.life {
            life.runtime.block_on(async { tokio::time::sleep(TICK).await });
        }
    }
}
