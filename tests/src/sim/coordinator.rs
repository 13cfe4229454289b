//! The coordinator's machine: its disk, its blobs and its wall clock outlive its process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_coordinator::app::{App, AppConfig, Parts};
use muster_coordinator::http::{ApiConfig, LocalApi};
use muster_coordinator::planted::Planted;
use muster_coordinator::store::{KvStore, SharedStore};
use muster_shared::clock::SharedClock;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::error_chain::Chain;
use muster_shared::kv::MemKv;
use muster_shared::link::Connection;
use muster_shared::threads::SameRuntime;
use object_store::memory::InMemory;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::TaskTracker;

use super::clock::WallClock;
use super::invariants::Witness;
use super::kv::{Owner, SeenKv};
use super::net::Net;
use super::node::{Life, Program, disk};
use super::plant::Plant;
use super::store::{MoodyStore, StoreMood};

/// How long a coordinator that is stopped waits for requests.
const DRAIN: Duration = Duration::from_secs(2);

/// What a coordinator's process offers once it has started.
#[derive(Clone, Debug)]
pub struct Served {
    /// The application.
    pub app: Arc<App>,
    /// Its API.
    pub api: LocalApi,
}

/// What a process is started with.
struct Start {
    kv: SeenKv,
    seed: u64,
    clock: SharedClock,
    blobs: Arc<InMemory>,
    mood: StoreMood,
    config: AppConfig,
    plant: Option<Plant>,
}

/// The coordinator's machine.
pub struct CoordinatorNode {
    /// Its store's map.
    pub kv: Arc<MemKv>,
    /// How its store is.
    pub mood: StoreMood,
    /// Its wall clock.
    pub wall: WallClock,
    /// What its process is configured with.
    pub config: AppConfig,
    /// What is wrong with it.
    pub plant: Option<Plant>,
    blobs: Arc<InMemory>,
    witness: Witness,
    seed: u64,
    lives: u64,
    life: Option<Life<Served>>,
    /// Requests under way in this life.
    requests: TaskTracker,
    stopping: Option<JoinHandle<()>>,
}

impl fmt::Debug for CoordinatorNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoordinatorNode").field("lives", &self.lives).finish_non_exhaustive()
    }
}

impl CoordinatorNode {
    /// A machine on which nothing runs yet.
    #[must_use]
    pub fn new(seed: u64, witness: Witness) -> Self {
        Self {
            kv: disk(seed),
            mood: StoreMood::default(),
            wall: WallClock::default(),
            config: AppConfig::default(),
            plant: None,
            blobs: Arc::default(),
            witness,
            seed,
            lives: 0,
            life: None,
            requests: TaskTracker::new(),
            stopping: None,
        }
    }

    /// Starts the process.
    pub fn start(&mut self, net: &Net, now: Duration) {
        self.lives += 1;
        let life = Life::new();
        let inside = life.runtime.enter();
        let planted = Planted::new(self.plant.and_then(Plant::defect));
        let start = Start {
            kv: SeenKv::new(self.kv.clone(), Owner::Coordinator, self.witness.clone())
                .planted(self.plant),
            seed: self.seed ^ (self.lives << 32),
            clock: Arc::new(self.wall.process(now)),
            blobs: self.blobs.clone(),
            mood: self.mood.clone(),
            config: AppConfig { planted, ..self.config.clone() },
            plant: self.plant,
        };
        drop(inside);
        life.runtime.spawn(run(start, life.program.clone(), net.listen()));
        self.life = Some(life);
        self.witness.coordinator_started();
    }

    /// The process is told to stop: it takes no more requests, lets those under way end, and then
    /// stops the application. Does nothing if it has not started yet.
    pub fn stop(&mut self) {
        let (Some(life), Some(served)) = (&self.life, self.served()) else { return };
        self.requests.close();
        let requests = self.requests.clone();
        self.stopping = Some(life.runtime.spawn(async move {
            // Those that take longer are cut off.
            drop(tokio::time::timeout(DRAIN, requests.wait()).await);
            served.app.shutdown().await;
        }));
    }

    /// Whether it was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether it did all that it does before it ends.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stopping.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// The process dies, and what was not synced with it.
    pub fn crash(&mut self, net: &Net, entropy: &SeededEntropy) {
        net.unlisten();
        self.stopping = None;
        self.requests = TaskTracker::new();
        self.life = None;
        self.kv = Arc::new(self.kv.crash(entropy));
        self.witness.coordinator_died(&self.kv.durable());
    }

    /// Whether the process runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.life.is_some()
    }

    /// What it offers, once it has started and until it is told to stop.
    #[must_use]
    pub fn served(&self) -> Option<Served> {
        if self.is_stopping() {
            return None;
        }
        let program = self.life.as_ref()?.program.lock();
        program.as_ref().and_then(|served| served.as_ref().ok().cloned())
    }

    /// Whether the application says that its process must end.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let Some(life) = &self.life else { return false };
        match &*life.program.lock() {
            None => false,
            Some(Ok(served)) => served.app.failed().now_or_never().is_some(),
            Some(Err(_)) => true,
        }
    }

    /// Runs a request; it dies with the process.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(life) = &self.life {
            // Its end is told by what it writes.
            drop(life.runtime.spawn(self.requests.track_future(work)));
        }
    }

    /// Runs something beside the application, to be ended from outside.
    pub fn spawn_abortable(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        self.life.as_ref().map(|life| life.runtime.spawn(work).abort_handle())
    }

    /// The process gets no time for so long.
    pub fn pause(&mut self, time: Duration) {
        if let Some(life) = &mut self.life {
            life.pause(time);
        }
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.life.as_ref().is_some_and(Life::is_paused)
    }

    /// Time in which this process was not paused.
    #[must_use]
    pub fn ran(&self) -> Duration {
        self.life.as_ref().map_or(Duration::ZERO, |life| life.ran)
    }

    /// Lets time pass.
    pub fn step(&mut self, time: Duration) {
        if let Some(life) = &mut self.life {
            life.step(time);
        }
    }
}

async fn run(start: Start, program: Program<Served>, mut connections: mpsc::Receiver<Connection>) {
    match start_app(start).await {
        Err(error) => *program.lock() = Some(Err(error)),
        Ok(app) => {
            let api = LocalApi::new(app.clone(), ApiConfig::default());
            *program.lock() = Some(Ok(Served { app: app.clone(), api }));
            while let Some(connection) = connections.recv().await {
                app.agents().accept(connection);
            }
        }
    }
}

async fn start_app(start: Start) -> Result<Arc<App>, String> {
    let Start { kv, seed, clock, blobs, mood, config, plant } = start;
    let entropy = SeededEntropy::new(seed);
    let store = KvStore::open(Arc::new(kv), clock.clone(), &TaskTracker::new()).await;
    let store: SharedStore = Arc::new(store.map_err(|e| Chain(&e).to_string())?);
    let parts = Parts {
        clock,
        store: Arc::new(MoodyStore::new(store, mood, entropy.u64()).planted(plant)),
        entropy: Arc::new(entropy),
        threads: Arc::new(SameRuntime),
        blobs,
        instance: "sim".to_owned(),
    };
    muster_coordinator::start(config, parts).await.map_err(|e| Chain(&e).to_string())
}
