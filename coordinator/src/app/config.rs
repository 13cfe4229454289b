//! What the services are told at their start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::threads::SharedThreads;
use object_store::ObjectStore;
use serde_json::json;

use super::platform::RegisteredPlatform;
use crate::alloc::{self, HostOs, RatioPolicy, Ratios};
use crate::planted::Planted;
use crate::roster::Limits;
use crate::store::SharedStore;

/// Settings of the application.
#[derive(Clone, Debug)]
pub struct AppConfig {
    /// Value of `datacenter` in new server records.
    pub datacenter: String,
    /// The machine's name, a label of the metrics.
    pub hostname: String,
    /// Periods of the roster.
    pub roster: Limits,
    /// How long a coordinator that died stays a member.
    pub lease_ttl: Duration,
    /// URLs under which agents reach this coordinator; sent to them in the welcome.
    pub advertised_urls: Vec<String>,
    /// A task that no agent ever took ends after this long.
    pub task_accept_timeout: Duration,
    /// Open tasks a server may have; more are refused with 503.
    pub max_open_tasks: usize,
    /// Ended tasks are deleted after this long.
    pub task_retention: Duration,
    /// The oldest ended tasks are deleted while more than this is kept.
    pub task_history: HistoryLimits,
    /// Longest wait for the agent's hello.
    pub hello_timeout: Duration,
    /// Longest wait for the second websocket of a byte stream.
    pub stream_timeout: Duration,
    /// Networks in which agents that POST are called for their tasks.
    pub legacy_networks: Vec<IpNet>,
    /// The IMGAPI from which agents are told to fetch images; none: nothing is told.
    pub imgapi_url: Option<url::Url>,
    /// Whether `POST /servers/:uuid/execute` is allowed.
    pub allow_command_execute: bool,
    /// Platforms beside those of the folder.
    pub platforms: Vec<RegisteredPlatform>,
    /// Folder of platform images.
    pub platforms_dir: Option<PathBuf>,
    /// What this coordinator's host runs: the only platform when none are configured.
    pub host_platform: Option<String>,
    /// What boot parameters get beside what is stored.
    pub boot: BootSettings,
    /// How the allocator decides.
    pub allocation: AllocationConfig,
    /// What is wrong with it; nothing but in a test.
    pub planted: Planted,
}

/// What is kept of ended tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// At most so many tasks.
    pub count: u64,
    /// At most so many bytes of records.
    pub bytes: u64,
}

/// How the allocator decides.
#[derive(Clone, Debug)]
pub struct AllocationConfig {
    /// The policy of `POST /allocate`.
    pub policy: Arc<alloc::Config>,
    /// The policy for VMs that this coordinator creates itself.
    pub placing: Arc<alloc::Config>,
    /// How long room is kept for a VM that was allocated.
    pub reservation_ttl: Duration,
    /// In which order servers are looked at.
    pub order: alloc::Order,
    /// Decisions that are kept.
    pub history: usize,
}

impl AllocationConfig {
    /// The overprovision ratios with which capacity is computed; no server has its own.
    #[must_use]
    pub fn ratios(&self) -> Ratios {
        match self.policy.ratio_policy() {
            RatioPolicy::Forced(ratios) => ratios,
            RatioPolicy::Own => Ratios::DEFAULT,
        }
    }
}

impl Default for AllocationConfig {
    fn default() -> Self {
        let placing = alloc::Config::new(&alloc::create_expression(), &json!({}), HostOs::Any);
        Self {
            policy: Arc::new(alloc::Config::reference_default(HostOs::Any)),
            placing: Arc::new(placing.expect("the built-in expression is valid")),
            reservation_ttl: Duration::from_secs(60),
            order: alloc::Order::Shuffled,
            history: 1000,
        }
    }
}

/// What boot parameters get beside what is stored.
#[derive(Clone, Debug)]
pub struct BootSettings {
    /// `smt_enabled` of new servers, unless the default record says otherwise.
    pub smt_enabled: bool,
    /// `rabbitmq` as `user:password:host:port`, in a fleet with nodes that need it.
    pub rabbitmq: Option<String>,
}

impl Default for BootSettings {
    fn default() -> Self {
        Self { smt_enabled: true, rabbitmq: None }
    }
}

impl Default for AppConfig {
    fn default() -> Self {
        Self {
            datacenter: "muster".to_owned(),
            hostname: String::new(),
            roster: Limits::default(),
            lease_ttl: Duration::from_secs(10),
            advertised_urls: Vec::new(),
            task_accept_timeout: Duration::from_secs(300),
            max_open_tasks: 256,
            task_retention: Duration::from_hours(30 * 24),
            task_history: HistoryLimits { count: 500_000, bytes: 1 << 30 },
            hello_timeout: Duration::from_secs(10),
            stream_timeout: Duration::from_secs(10),
            legacy_networks: Vec::new(),
            imgapi_url: None,
            allow_command_execute: false,
            platforms: Vec::new(),
            platforms_dir: None,
            host_platform: None,
            boot: BootSettings::default(),
            allocation: AllocationConfig::default(),
            planted: Planted::default(),
        }
    }
}

/// The doors to the outside, real or simulated.
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
    /// Things too large for a record.
    pub blobs: Arc<dyn ObjectStore>,
    /// This coordinator's name among its peers; the same after a restart.
    pub instance: String,
}
