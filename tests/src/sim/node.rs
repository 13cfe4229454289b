//! Simulated nodes: each has a runtime, a paused clock and a disk of its own. A crash drops the
//! runtime; what is on the disk stays, as far as it was synced.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use muster_agent::drivers::builder::Builder;
use muster_agent::drivers::cluster::Cluster;
use muster_agent::drivers::compute::sim::{SimCompute, SimGuests};
use muster_agent::drivers::coordinators::SimCoordinators;
use muster_agent::drivers::faults::Faults;
use muster_agent::drivers::host::sim::{HostLog, SimHost};
use muster_agent::drivers::images::sim::{SimImages, SimRepository};
use muster_agent::drivers::network::sim::{SimHolders, SimNetworks};
use muster_agent::drivers::node::SimDocuments;
use muster_agent::drivers::settings::sim::SimSettings;
use muster_agent::drivers::storage::sim::{SimPool, SimStorage};
use muster_agent::drivers::zfs::Delegated;
use muster_agent::drivers::zfs::sim::{SimPools, SimZfs};
use muster_agent::guest_agent::GuestAgents;
use muster_agent::node::Drivers;
use muster_agent::node::bridges::Bridges;
use muster_agent::report::sim::SimFacts;
use muster_agent::report::{Reporter, ReporterParts, Zpools};
use muster_agent::sessions::Sessions;
use muster_agent::tasks::HANDLERS;
use muster_agent::tasks::image_gc::Policy;
use muster_agent::tasks::registry::{self, Registry};
use muster_agent::vms::copies::CopiedRecords;
use muster_agent::vms::sim::SimVmRecords;
use muster_agent::vms::{Node, VmTable};
use muster_agent::{Agent, AgentConfig, AgentParts, Running, TASK_CEILING};
use muster_shared::clock::SharedClock;
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::kv::{MemKv, MemOptions};
use muster_shared::telemetry::LogRing;
use muster_shared::threads::SameRuntime;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::clock::WallClock;
use super::invariants::Witness;
use super::kv::{Owner, SeenKv};
use super::net::Net;
use super::origin;
use super::plant::Plant;

/// Longest time a commit takes to become durable.
const SYNC: Duration = Duration::from_millis(30);
/// Longest time a call of a simulated driver takes, before and after its effect.
const DRIVER_DELAY: Duration = Duration::from_millis(60);
/// How long an agent that is stopped waits for its tasks.
const PATIENCE: Duration = Duration::from_secs(1);
const COORDINATOR_URL: &str = "ws://coordinator:8480/agent";

/// The ZFS pool of a host that has one.
pub const ZFS_POOL: &str = "zones";

/// What a host is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Its cores.
    pub cpus: u32,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Longest time that a driver takes before and after each effect.
    pub delay: Duration,
}

impl Default for Hardware {
    fn default() -> Self {
        Self { cpus: 8, memory_mib: 32 * 1024, delay: DRIVER_DELAY }
    }
}

/// One life of a process.
pub(super) struct Life<T> {
    pub(super) runtime: Runtime,
    pub(super) program: Program<T>,
    /// Time in which it was not paused.
    pub(super) ran: Duration,
    /// How long it gets no time yet.
    pause: Duration,
    /// Time that has passed without it.
    missed: Duration,
}

/// A process: not there yet, running, or unable to start.
pub(super) type Program<T> = Arc<Mutex<Option<Result<T, String>>>>;

impl<T> Life<T> {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O takes nothing that could be missing");
        let (ran, pause, missed) = Default::default();
        Self { runtime, program: Arc::default(), ran, pause, missed }
    }

    pub(super) fn pause(&mut self, time: Duration) {
        self.pause = self.pause.max(time);
    }

    pub(super) fn is_paused(&self) -> bool {
        !self.pause.is_zero()
    }

    /// Lets time pass. After a pause the clock has moved on, so every timer is late.
    pub(super) fn step(&mut self, time: Duration) {
        if self.is_paused() {
            self.pause = self.pause.saturating_sub(time);
            self.missed += time;
            return;
        }
        let missed = std::mem::take(&mut self.missed);
        self.ran += time;
        self.runtime.block_on(async {
            if !missed.is_zero() {
                tokio::time::advance(missed).await;
            }
            tokio::time::sleep(time).await;
        });
    }
}

pub(super) fn disk(seed: u64) -> Arc<MemKv> {
    let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
    Arc::new(MemKv::new(MemOptions { sync: SYNC, entropy: Some(entropy) }))
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
    /// VMs with NICs on the host.
    pub networks: SimHolders,
    /// Its VM records.
    pub records: SimVmRecords,
    /// What was done to the host.
    pub log: HostLog,
    /// Its settings.
    pub settings: SimSettings,
    /// Its ZFS pools; none unless a test gives it some before it starts.
    pub zfs: Option<SimPools>,
    documents: SimDocuments,
    /// Faults of its drivers.
    pub faults: Faults,
    /// Its journal's map.
    pub kv: Arc<MemKv>,
    /// Its wall clock.
    pub wall: WallClock,
    /// What is wrong with it.
    pub plant: Option<Plant>,
    /// What the registry is asked at each step.
    pub steps: Option<Arc<dyn registry::Faults>>,
    hardware: Hardware,
    witness: Witness,
    repository: SimRepository,
    seed: u64,
    boots: u64,
    booted_at: Duration,
    lives: u64,
    life: Option<Life<Arc<Running>>>,
    stopping: Option<JoinHandle<()>>,
}

impl fmt::Debug for AgentNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentNode").field("number", &self.number).finish_non_exhaustive()
    }
}

impl AgentNode {
    /// A node on which nothing runs yet; it can install what `repository` has.
    #[must_use]
    pub fn new(
        number: usize,
        seed: u64,
        hardware: Hardware,
        repository: SimRepository,
        witness: Witness,
    ) -> Self {
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed ^ 1));
        let faults = Faults::with_delays(entropy, hardware.delay);
        let id = 0x1000 + u128::try_from(number).expect("a few nodes");
        Self {
            number,
            server: uuid::Uuid::from_u128(id).into(),
            guests: SimGuests::default(),
            pool: SimPool::default(),
            networks: SimHolders::default(),
            records: SimVmRecords::new(faults.clone()),
            log: HostLog::default(),
            settings: SimSettings::new(faults.clone()),
            zfs: None,
            documents: SimDocuments::default(),
            faults,
            kv: disk(seed ^ 2),
            wall: WallClock::default(),
            plant: None,
            steps: None,
            hardware,
            witness,
            repository,
            seed,
            boots: 1,
            booted_at: Duration::ZERO,
            lives: 0,
            life: None,
            stopping: None,
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
            *program.lock() = Some(running.map(Arc::new).map_err(|e| Chain(&e).to_string()));
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
        let clock: SharedClock = Arc::new(self.wall.process(now));
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
        let faults = || self.faults.clone();
        let node = Node { boot_id: boot_id.clone(), ..Node::default() };
        let compute = Arc::new(SimCompute::new(self.guests.clone(), clock.clone(), faults()));
        let storage = Arc::new(SimStorage::new(self.pool.clone(), faults()));
        let documents = Arc::new(self.documents.clone());
        let cluster = Cluster::open(documents.clone()).now_or_never();
        let cluster = Arc::new(cluster.expect("they are in memory").expect("it was written so"));
        let records = Arc::new(self.records.clone());
        let records = CopiedRecords::new(records, storage.clone(), self.server, cluster.clone());
        let vms = Arc::new(VmTable::new(Arc::new(records), clock.clone(), node));
        let number = u16::try_from(self.number).expect("a few nodes");
        let booted: Timestamp = origin().checked_add(self.booted_at).expect("runs are short");
        let facts = SimFacts::new(self.server, number, booted, &boot_id);
        let networks = Arc::new(SimNetworks::new(self.networks.clone(), faults()));
        let report = Arc::new(Reporter::new(ReporterParts {
            clock: clock.clone(),
            facts: Arc::new(facts.with_size(self.hardware.cpus, self.hardware.memory_mib)),
            vms: vms.clone(),
            compute: compute.clone(),
            storage: storage.clone(),
            networks: networks.clone(),
            zpools: Arc::new(Zpools::none(clock.clone())),
        }));
        let repository = self.repository.clone();
        let images = SimImages::new(self.pool.clone(), repository, clock.clone(), faults());
        let log = Arc::new(LogRing::new(self.server.0, clock.clone()));
        let drivers = Arc::new(Drivers {
            builder: Arc::new(Builder::none("this is no real node")),
            sessions: Arc::new(Sessions::new(
                std::net::Ipv4Addr::LOCALHOST.into(),
                true,
                entropy.clone(),
            )),
            guest_agents: Arc::new(GuestAgents::new(compute.clone(), entropy.clone())),
            clock: clock.clone(),
            entropy: entropy.clone(),
            compute,
            networks,
            storage,
            images: Arc::new(images),
            node: documents,
            cluster,
            host: Arc::new(SimHost::new(self.log.clone(), faults())),
            bridges: Bridges::default(),
            coordinators: Arc::new(SimCoordinators(faults())),
            settings: Arc::new(self.settings.clone()),
            vms,
            report: report.clone(),
            log,
            zfs: self.delegated(),
        });
        let parts = AgentParts {
            clock,
            entropy,
            threads: Arc::new(SameRuntime),
            kv: Arc::new(
                SeenKv::new(self.kv.clone(), Owner::Agent(self.number), self.witness.clone())
                    .planted(self.plant),
            ),
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
            image_gc: Some(Policy::default()),
        };
        (config, parts, report)
    }

    /// ZFS, where it has any.
    fn delegated(&self) -> Delegated {
        let Some(pools) = &self.zfs else { return Delegated::none() };
        let zfs = Arc::new(SimZfs::new(pools.clone(), self.faults.clone()));
        Delegated { zfs, roots: vec![ZFS_POOL.parse().expect("a constant name")] }
    }

    /// The agent is told to stop. Does nothing if it has not started yet.
    pub fn stop(&mut self) {
        let Some(life) = &self.life else { return };
        if let Some(Ok(running)) = &*life.program.lock() {
            let running = Arc::clone(running);
            let stopping = life.runtime.spawn(async move { running.shut_down(PATIENCE).await });
            self.stopping.get_or_insert(stopping);
        }
    }

    /// Whether it was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether it did all that an agent does before it ends.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stopping.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Loses a VM's record, and with it the VM: the copy is another server's.
    pub fn orphan(&self, vm: VmUuid) {
        self.records.lose(vm);
        let copies = self.pool.copies();
        let copy = copies.get(&vm).and_then(|copy| serde_json::from_slice::<Value>(copy).ok());
        if let Some(mut copy) = copy {
            copy["server_uuid"] = json!(uuid::Uuid::nil());
            self.pool.set_copy(vm, copy.to_string().into_bytes());
        }
    }

    /// The agent dies; guests go on.
    pub fn crash(&mut self, entropy: &SeededEntropy) {
        self.stopping = None;
        self.life = None;
        self.kv = Arc::new(self.kv.crash(entropy));
        self.witness.agent_died(self.number, &self.kv.durable());
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

    /// The memory of the host, MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        self.hardware.memory_mib
    }

    /// The process gets no time for so long.
    pub fn pause(&mut self, time: Duration) {
        if let Some(life) = &mut self.life {
            life.pause(time);
        }
    }

    /// Lets time pass.
    pub fn step(&mut self, time: Duration) {
        if let Some(life) = &mut self.life {
            life.step(time);
        }
    }
}
