//! The coordinator's configuration. Every key is documented from here; see `docs/configuration.md`.

mod allocation;
mod check;
pub mod sapi;
mod warnings;

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use muster_shared::config::ListenAddress;
use muster_shared::kv::Engine;
use muster_shared::telemetry::LogConfig;
use muster_shared::tls::{ClientAuth, Identity};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use allocation::{AllocationOrder, AllocatorConfig, ChangeDefaults, Dapi, HostOs};

use crate::app::HistoryLimits;
use crate::app::{AppConfig, BootSettings};
use crate::roster::Limits;

/// Environment variables that are configuration start with this.
pub const ENVIRONMENT_PREFIX: &str = "MUSTER_COORDINATOR__";

/// The address that the command line and the demo expect.
const DEFAULT_LISTEN: &str = "127.0.0.1:8480";
/// Where the packaged unit keeps everything.
const DEFAULT_DATA_DIR: &str = "/var/lib/muster-coordinator";
/// Name of the store's folder in the data folder.
const STORE: &str = "store";
/// Room for 10,000 agents and as many API clients as will come beside them.
const DEFAULT_CONNECTIONS: usize = 12_000;
/// A proxy that many clients stand behind, or one program that waits for thousands of tasks.
const DEFAULT_CONNECTIONS_PER_PEER: usize = 6_000;
/// Clients that need longer for their headers are broken or hostile.
const DEFAULT_HEAD_TIMEOUT_MS: u64 = 10_000;
/// Clients of the reference keep idle connections for an hour.
const MIN_IDLE_TIMEOUT_MS: u64 = 3_600_000;
/// systemd waits 90 s; guests and tasks do not depend on the coordinator.
const DEFAULT_DRAIN_MS: u64 = 5_000;
/// The default of the engines is 1 GiB.
const DEFAULT_CACHE_MIB: u64 = 64;

/// The coordinator: roster, waitlist, allocator and the CNAPI-compatible HTTP API.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Config {
    /// Where the API is served: `IP:PORT` (port 0: any free one) or `unix:/PATH`.
    #[schema(value_type = String)]
    pub listen: ListenAddress,
    /// Folder for everything that is stored. Only one coordinator may use it at a time.
    #[schema(value_type = String)]
    pub data_dir: PathBuf,
    /// Name of the datacentre, in new server records and in metrics.
    pub datacenter: String,
    /// HTTP API.
    pub api: Api,
    /// TLS of the API and of the agents' websockets.
    pub tls: Tls,
    /// Who may do what.
    pub security: Security,
    /// Prometheus.
    pub metrics: MetricsConfig,
    /// Records.
    pub store: StoreConfig,
    /// Images and other large things.
    pub blobs: BlobsConfig,
    /// How it is noticed that a server is gone.
    pub roster: RosterConfig,
    /// Connections of agents.
    pub agents: AgentsConfig,
    /// Triton's agents, which are called instead of dialling.
    pub legacy_agents: LegacyAgentsConfig,
    /// What servers boot.
    pub boot: BootConfig,
    /// Tasks.
    pub tasks: TasksConfig,
    /// The placement policy, under the names of Triton's DAPI.
    pub dapi: Dapi,
    /// The allocator.
    pub allocator: AllocatorConfig,
    /// A single allocation.
    pub allocation: AllocationOrder,
    /// The image service that agents are pointed to.
    pub imgapi: ImgapiConfig,
    /// Logging.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.parse().expect("the default address is well-formed"),
            data_dir: PathBuf::from(DEFAULT_DATA_DIR),
            datacenter: "muster".to_owned(),
            api: Api::default(),
            tls: Tls::default(),
            security: Security::default(),
            metrics: MetricsConfig::default(),
            store: StoreConfig::default(),
            blobs: BlobsConfig::default(),
            roster: RosterConfig::default(),
            agents: AgentsConfig::default(),
            legacy_agents: LegacyAgentsConfig::default(),
            boot: BootConfig::default(),
            tasks: TasksConfig::default(),
            dapi: Dapi::default(),
            allocator: AllocatorConfig::default(),
            allocation: AllocationOrder::default(),
            imgapi: ImgapiConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// The HTTP API.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Api {
    /// Status of a failed validation: 409, or 500 for clients that expect that of Triton's CNAPI.
    pub validation_status: u16,
    /// Maximum number of connections, agents included; when all are taken, the one that has been
    /// idle longest is closed. An eighth is reserved for agents.
    pub connections: usize,
    /// Maximum number of connections from one address (for IPv6, one /64), not counting agents.
    pub connections_per_peer: usize,
    /// Names under which the API may be asked beside addresses, names without a dot, the machine's own name
    /// and those of `agents.advertised_urls`; `"*"`: any. Requests with another `Host` (without
    /// TLS) or of pages of other sites are refused: a browser that reaches the API must not become
    /// the tool of the pages that it shows.
    pub hosts: Vec<String>,
    /// Time limit for receiving the head of a request, ms.
    pub head_timeout_ms: u64,
    /// Time limit between two requests on a connection, ms.
    pub idle_timeout_ms: u64,
    /// How long requests may take to finish when the coordinator stops, ms.
    pub drain_ms: u64,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            validation_status: 409,
            connections: DEFAULT_CONNECTIONS,
            connections_per_peer: DEFAULT_CONNECTIONS_PER_PEER,
            hosts: Vec::new(),
            head_timeout_ms: DEFAULT_HEAD_TIMEOUT_MS,
            idle_timeout_ms: MIN_IDLE_TIMEOUT_MS,
            drain_ms: DEFAULT_DRAIN_MS,
        }
    }
}

/// TLS; plaintext unless both certificate and key are set.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Tls {
    /// PEM file: the certificate, followed by its intermediates.
    #[schema(value_type = Option<String>)]
    pub certificate: Option<PathBuf>,
    /// PEM file with the key, readable only by its owner and group.
    #[schema(value_type = Option<String>)]
    pub key: Option<PathBuf>,
    /// PEM file: the CA that client certificates are checked against.
    #[schema(value_type = Option<String>)]
    pub client_ca: Option<PathBuf>,
    /// Refuses clients without a certificate of `tls.client_ca`.
    pub client_required: bool,
}

impl Tls {
    /// Certificate and key, if TLS is configured.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let (certificate, key) = (self.certificate.clone()?, self.key.clone()?);
        Some(Identity { certificate, key })
    }

    /// What is asked of clients.
    #[must_use]
    pub fn client_auth(&self) -> ClientAuth {
        match &self.client_ca {
            None => ClientAuth::None,
            Some(ca) if self.client_required => ClientAuth::Required(ca.clone()),
            Some(ca) => ClientAuth::Optional(ca.clone()),
        }
    }
}

/// Who may do what.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Security {
    /// Networks on whose addresses plaintext may be served, e.g. `["10.0.0.0/8"]`.
    #[schema(value_type = Vec<String>)]
    pub allow_plaintext: Vec<IpNet>,
    /// Lets clients run commands on servers (`POST /servers/:uuid/execute`).
    pub allow_command_execute: bool,
}

/// Prometheus metrics; they are also at `/metrics` of the API.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MetricsConfig {
    /// Separate listen address for metrics: `IP:PORT` or `unix:/PATH`. Triton's CNAPI uses port 8881.
    #[schema(value_type = Option<String>)]
    pub listen: Option<ListenAddress>,
}

/// Records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StoreConfig {
    /// What keeps the records of the embedded store: `redb` or `sled`. A store of the other kind is
    /// converted at the start, and the old one kept beside it.
    pub engine: Engine,
    /// Page cache of the embedded store, MiB.
    pub cache_mib: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { engine: Engine::default(), cache_mib: DEFAULT_CACHE_MIB }
    }
}

/// Images and other large things.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BlobsConfig {
    /// `file:///FOLDER` or `s3://BUCKET/PREFIX` (credentials and endpoint from the usual `AWS_…`
    /// variables); unset: `blobs/` in the data folder.
    pub url: Option<String>,
}

/// How it is noticed that a server is gone. Times are measured on a monotonic clock.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RosterConfig {
    /// An agent's connection that is silent for this long is suspect, ms.
    pub suspect_ms: u64,
    /// An agent's connection that is silent for this long is lost, and its server `unknown`, ms.
    pub lost_ms: u64,
    /// An agent that sends heartbeats by POST is lost after this long, ms.
    pub post_ms: u64,
    /// After a start, servers that were `running` have this long to connect again, ms.
    pub startup_grace_ms: u64,
}

impl Default for RosterConfig {
    fn default() -> Self {
        Self { suspect_ms: 1_000, lost_ms: 2_000, post_ms: 11_000, startup_grace_ms: 30_000 }
    }
}

/// Connections of agents.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentsConfig {
    /// URLs (`ws://…`, `wss://…`) under which agents reach this coordinator; told to agents.
    pub advertised_urls: Vec<String>,
    /// Time limit for an agent's first message, ms.
    pub hello_timeout_ms: u64,
    /// Time limit for the second websocket of a console or another byte stream, ms.
    pub stream_timeout_ms: u64,
}

impl Default for AgentsConfig {
    fn default() -> Self {
        Self { advertised_urls: Vec::new(), hello_timeout_ms: 10_000, stream_timeout_ms: 10_000 }
    }
}

/// Triton's agents, which send heartbeats by POST and have no connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LegacyAgentsConfig {
    /// Networks in which such agents get their tasks, by plain HTTP at the address and port that
    /// their sysinfo names, e.g. `["10.99.99.0/24"]`. Whoever may POST a sysinfo chooses the
    /// address, so name only networks of compute nodes. Empty: none gets a task.
    #[schema(value_type = Vec<String>)]
    pub networks: Vec<IpNet>,
}

/// What servers boot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct BootConfig {
    /// Folder of platform images: `NAME/platform/…`, as on a head node's USB key (`/usbkey/os`).
    #[schema(value_type = Option<String>)]
    pub platforms_dir: Option<PathBuf>,
    /// Platforms beside those of the folder: `NAME`, `NAME:linux` or `NAME:smartos`, where a name
    /// that is to be the newest is a time like `20260101T000000Z`. Without these and without a
    /// folder there is one platform: what the coordinator's host runs.
    pub platforms: Vec<String>,
    /// `smt_enabled` in the boot parameters of new servers, unless the default ones have it.
    pub smt_enabled: bool,
    /// Message broker of old agents; set, boot parameters get `rabbitmq`. Only needed in a fleet
    /// with nodes that run the reference's agents.
    pub amqp_host: Option<String>,
    /// Port of the message broker.
    pub amqp_port: u16,
    /// User at the message broker.
    pub amqp_user: String,
    /// Password at the message broker.
    pub amqp_password: String,
}

impl Default for BootConfig {
    fn default() -> Self {
        Self {
            platforms_dir: None,
            platforms: Vec::new(),
            smt_enabled: true,
            amqp_host: None,
            amqp_port: 5672,
            amqp_user: "guest".to_owned(),
            amqp_password: "guest".to_owned(),
        }
    }
}

impl BootConfig {
    fn settings(&self) -> BootSettings {
        let Self { amqp_host, amqp_port, amqp_user, amqp_password, .. } = self;
        let broker = |host: &String| format!("{amqp_user}:{amqp_password}:{host}:{amqp_port}");
        BootSettings { smt_enabled: self.smt_enabled, rabbitmq: amqp_host.as_ref().map(broker) }
    }
}

/// Tasks.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TasksConfig {
    /// A task that no agent has accepted for this long fails, ms.
    pub accept_timeout_ms: u64,
    /// Maximum number of unfinished tasks per server; more are refused with 503.
    pub max_open: usize,
    /// How long finished tasks are kept, days.
    pub retention_days: u64,
    /// Maximum number of finished tasks kept; the oldest are deleted first.
    pub retention_count: u64,
    /// Maximum size of finished tasks in the store, MiB.
    pub retention_mib: u64,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self {
            accept_timeout_ms: 300_000,
            max_open: 256,
            retention_days: 30,
            retention_count: 500_000,
            retention_mib: 1024,
        }
    }
}

/// The image service that agents are pointed to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ImgapiConfig {
    /// `http://…` or `https://…`: new VMs are told to fetch their image here (`dataset_url`).
    /// Unset: they are told nothing; Muster's own agents do not need it.
    pub url: Option<String>,
}

impl Config {
    /// The part of the configuration that the application needs.
    #[must_use]
    pub fn app(&self, hostname: String) -> AppConfig {
        let ms = Duration::from_millis;
        let Self { roster, agents, boot, tasks, .. } = self;
        AppConfig {
            datacenter: self.datacenter.clone(),
            hostname,
            roster: Limits {
                suspect: ms(roster.suspect_ms),
                lost: ms(roster.lost_ms),
                post: ms(roster.post_ms),
                startup_grace: ms(roster.startup_grace_ms),
                ..Limits::default()
            },
            advertised_urls: agents.advertised_urls.clone(),
            task_accept_timeout: ms(tasks.accept_timeout_ms),
            max_open_tasks: tasks.max_open,
            task_retention: Duration::from_hours(tasks.retention_days.saturating_mul(24)),
            task_history: HistoryLimits {
                count: tasks.retention_count,
                bytes: tasks.retention_mib << 20,
            },
            hello_timeout: ms(agents.hello_timeout_ms),
            stream_timeout: ms(agents.stream_timeout_ms),
            legacy_networks: self.legacy_agents.networks.clone(),
            imgapi_url: self.imgapi.url.as_deref().and_then(|url| url.parse().ok()),
            allow_command_execute: self.security.allow_command_execute,
            // Checked when the configuration was read.
            platforms: boot.platforms.iter().filter_map(|text| text.parse().ok()).collect(),
            platforms_dir: boot.platforms_dir.clone(),
            boot: boot.settings(),
            allocation: allocation::app(&self.dapi, &self.allocator, &self.allocation),
            ..AppConfig::default()
        }
    }

    /// Folder of the embedded store.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.data_dir.join(STORE)
    }

    /// How long requests may take to end when the coordinator stops.
    #[must_use]
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.api.drain_ms)
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::config::Sources;

    use super::*;

    #[track_caller]
    fn problems(settings: &[&str]) -> String {
        match Sources::new(ENVIRONMENT_PREFIX).set(settings.iter().copied()).load::<Config>() {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn defaults_are_fine_and_every_problem_is_reported() {
        assert_eq!(problems(&[]), "");
        let text = problems(&[
            "listen=0.0.0.0:80",
            "api.validation_status=400",
            "tls.client_required=true",
            "roster.lost_ms=10",
            "blobs.url=ftp://x/",
            "roster.startup_grace=5",
            "dapi.allocationDescription=[\"pipe\", [\"or\", \"identity\", \"nope\"]]",
        ]);
        for part in [
            "security.allow_plaintext",
            "api.validation_status",
            "tls.client_required",
            "roster.lost_ms",
            "blobs.url",
            "roster.startup_grace_ms",
            "dapi.allocationDescription: Bad expression given: Unrecognized algorithm: nope",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().display();
        let tls = [format!("tls.certificate={file}"), format!("tls.key={file}")];
        assert_eq!(problems(&["listen=0.0.0.0:80", &tls[0], &tls[1]]), "");
        let text = problems(&["tls.certificate=/nope/c", "tls.key=/nope/k"]);
        assert!(text.contains("tls.certificate: cannot read /nope/c"), "{text}");
        assert!(text.contains("tls.key: cannot read /nope/k"), "{text}");
        assert_eq!(
            problems(&["listen=0.0.0.0:80", "security.allow_plaintext=[\"0.0.0.0/0\"]"]),
            ""
        );
    }
}
