//! The agent's configuration. Every key is documented from here; see `docs/configuration.md`.

mod guests;
mod images;
mod sessions;
mod zfs;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use muster_shared::config::{
    Check, ListenAddress, Problems, Ways, check_exposure, check_url, check_urls,
};
use muster_shared::ids::ServerUuid;
use muster_shared::telemetry::LogConfig;
use muster_shared::tls::Identity;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::drivers::compute::qemu::MAX_RUN_DIR_BYTES;
use crate::drivers::host::HostActions;
use crate::drivers::storage::DEFAULT_POOL;
use crate::report::identity::{self, ByteOrder};
use crate::report::sysinfo::CN_AGENT_VERSION;
use crate::tasks::HANDLERS;
use crate::tasks::registry::Registry;

pub use self::guests::{ComputeConfig, NetworkConfig};
pub use self::images::{ImagesConfig, ImagesGcConfig};
pub use self::sessions::SessionsConfig;
pub use self::zfs::ZfsSection;

/// Environment variables that are configuration start with this.
pub const ENVIRONMENT_PREFIX: &str = "MUSTER_AGENT__";

/// The reference agent's port.
const DEFAULT_LISTEN: &str = "127.0.0.1:5309";
/// Where the packaged unit keeps everything.
const DEFAULT_DATA_DIR: &str = "/var/lib/muster-agent";
/// Where the packaged unit keeps sockets.
const DEFAULT_RUN_DIR: &str = "/run/muster";
/// No task of this version needs longer.
const DEFAULT_TASK_TIMEOUT_S: u64 = 3600;
/// Pools of one server, the first one among them; each is asked at every status report.
const MAX_POOLS: usize = 16;
/// Longest name of a pool.
const MAX_POOL_CHARS: usize = 64;
/// Longest name prefix that still leaves room in an interface's 15 bytes.
const MAX_INSTANCE_BYTES: usize = 8;

/// The agent of a compute node: owns its VMs, disks and images, and does what coordinators ask.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Config {
    /// Where the local HTTP is served, besides the unix socket `agent.sock` in the run folder:
    /// `IP:PORT` (port 0: any free one).
    #[schema(value_type = String)]
    pub listen: ListenAddress,
    /// Folder for everything that is stored. Only one agent may use it at a time.
    #[schema(value_type = String)]
    pub data_dir: PathBuf,
    /// Folder of disks and images, on a file system of its own where there is one. A copy of each
    /// VM's record lies there too: an agent whose data folder is lost has its VMs back from it.
    /// Unset: the data folder.
    #[schema(value_type = Option<String>)]
    pub storage_dir: Option<PathBuf>,
    /// Folder of sockets; at most 54 bytes, because a socket's path has at most 107. Unset: for the
    /// packaged data folder `/run/muster`, else a folder under `/tmp` named after the data folder.
    #[schema(value_type = Option<String>)]
    pub run_dir: Option<PathBuf>,
    /// The server's UUID. Unset: the firmware's, or one made at the first start.
    #[schema(value_type = Option<String>)]
    pub server_uuid: Option<ServerUuid>,
    /// Order of the bytes of the firmware's UUID: `linux` or `smartos`. Also
    /// `server_uuid_byte_order`.
    #[schema(value_type = String)]
    pub uuid_byte_order: ByteOrder,
    /// Prefix of the names of everything host-wide (scopes, bridges, taps), so that several agents
    /// can share a host.
    pub instance: String,
    /// Name of the datacentre, for sysinfo.
    pub datacenter_name: Option<String>,
    /// DNS domain of the datacentre, for sysinfo.
    pub dns_domain: Option<String>,
    /// Number of the headnode, for sysinfo.
    pub headnode_id: Option<u64>,
    /// Tag of the network that agents and coordinators use.
    pub admin_nic_tag: String,
    /// Address in that network. Unset: the one from which the first coordinator is reached.
    #[schema(value_type = Option<String>)]
    pub admin_ip: Option<IpAddr>,
    /// Name of the pool in the storage folder, or of the one of ZFS, where disks go that name no other.
    pub pool: String,
    /// More pools for disks, by name. A VM or one of its disks asks for one as `zpool`; images stay
    /// in the first.
    pub pools: BTreeMap<String, PoolConfig>,
    /// Where disks are kept.
    pub storage: StorageKind,
    /// Time limit for any task, s.
    pub task_timeout_s: u64,
    /// Queues of tasks, by the names of `GET /queues`.
    pub queues: BTreeMap<String, QueueConfig>,
    /// What clients written for Triton look at.
    pub compat: CompatConfig,
    /// Coordinators.
    pub coordinator: CoordinatorConfig,
    /// Working for Triton's CNAPI.
    pub legacy: LegacyConfig,
    /// Setting up the node.
    pub setup: SetupConfig,
    /// Running VMs.
    pub compute: ComputeConfig,
    /// Networks of VMs.
    pub network: NetworkConfig,
    /// Images.
    pub images: ImagesConfig,
    /// Ports to containers.
    pub sessions: SessionsConfig,
    /// ZFS, where the node has it.
    pub zfs: ZfsSection,
    /// Changes of the host itself.
    pub host: HostConfig,
    /// Who may do what.
    pub security: SecurityConfig,
    /// Logging.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.parse().expect("the default address is well-formed"),
            data_dir: PathBuf::from(DEFAULT_DATA_DIR),
            storage_dir: None,
            run_dir: None,
            server_uuid: None,
            uuid_byte_order: ByteOrder::default(),
            instance: "muster".to_owned(),
            datacenter_name: None,
            dns_domain: None,
            headnode_id: None,
            admin_nic_tag: "admin".to_owned(),
            admin_ip: None,
            pool: DEFAULT_POOL.to_owned(),
            pools: BTreeMap::new(),
            storage: StorageKind::default(),
            task_timeout_s: DEFAULT_TASK_TIMEOUT_S,
            queues: BTreeMap::new(),
            compat: CompatConfig::default(),
            coordinator: CoordinatorConfig::default(),
            legacy: LegacyConfig::default(),
            setup: SetupConfig::default(),
            compute: ComputeConfig::default(),
            network: NetworkConfig::default(),
            images: ImagesConfig::default(),
            sessions: SessionsConfig::default(),
            zfs: ZfsSection::default(),
            host: HostConfig::default(),
            security: SecurityConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// Where disks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// qcow2 files in the data folder.
    #[default]
    File,
    /// Volumes in the ZFS pool that `pool` names; only images lie in the data folder, while they are
    /// fetched.
    Zfs,
}

/// A pool beside the first one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolConfig {
    /// Its folder, on a file system of its own; must be there when the agent starts, so that no disk
    /// is made under the place where one is to be mounted. None with storage `zfs`.
    #[schema(value_type = String)]
    pub dir: PathBuf,
}

/// A queue of tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueConfig {
    /// Maximum number of tasks that run at the same time. Unset: the queue's own limit.
    pub max_concurrent: Option<usize>,
}

/// What clients written for Triton look at.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompatConfig {
    /// Version of `cn-agent` in the list of agents; clients ask for at least 2.13.0.
    pub cn_agent_version: String,
}

impl Default for CompatConfig {
    fn default() -> Self {
        Self { cn_agent_version: CN_AGENT_VERSION.to_owned() }
    }
}

/// Coordinators.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CoordinatorConfig {
    /// Their URLs (`ws://…`, `wss://…`); the path `/agent` is added when there is none. Names are
    /// resolved anew for every connection.
    pub urls: Vec<String>,
    /// File with a bearer token to send to them (for a proxy that asks for one), readable only by
    /// its owner and group.
    #[schema(value_type = Option<String>)]
    pub token_file: Option<PathBuf>,
    /// PEM file: the CA of their certificates. Unset: the CAs that the machine trusts.
    #[schema(value_type = Option<String>)]
    pub ca: Option<PathBuf>,
    /// PEM file: this agent's certificate.
    #[schema(value_type = Option<String>)]
    pub certificate: Option<PathBuf>,
    /// PEM file with its key, readable only by its owner and group.
    #[schema(value_type = Option<String>)]
    pub key: Option<PathBuf>,
}

impl CoordinatorConfig {
    /// Certificate and key, if both are set.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let (certificate, key) = (self.certificate.clone()?, self.key.clone()?);
        Some(Identity { certificate, key })
    }
}

/// Working for Triton's CNAPI, which takes reports by POST and calls its agents back.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LegacyConfig {
    /// Where this agent registers and reports by HTTP: `http://…` or `https://…`. Unset: nowhere.
    pub cnapi_url: Option<String>,
    /// `IP:PORT` at which that CNAPI calls this agent, by plain HTTP without any password. Unset:
    /// nowhere.
    #[schema(value_type = Option<String>)]
    pub listen: Option<ListenAddress>,
    /// Networks from which `legacy.listen` is served, e.g. `["10.99.99.0/24"]`: whoever calls from
    /// there may do anything to this node's VMs.
    #[schema(value_type = Vec<String>)]
    pub networks: Vec<IpNet>,
}

impl Check for LegacyConfig {
    fn check(&self, problems: &mut Problems) {
        if let Some(Err(problem)) =
            self.cnapi_url.as_deref().map(|url| check_url(url, ["http", "https"]))
        {
            problems.add("cnapi_url", problem);
        }
        if matches!(self.listen, Some(ListenAddress::Unix(_))) {
            problems
                .add("listen", "must be an address and port, because a CNAPI is another machine");
        }
        let who = self.listen.is_none() || !self.networks.is_empty();
        problems.require(who, "networks", "is needed together with legacy.listen");
    }
}

/// Setting up the node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SetupConfig {
    /// Completes the setup record at the first start, so that VMs can be placed here. With
    /// storage `file` there is nothing else to set up.
    pub auto: bool,
}

impl Default for SetupConfig {
    fn default() -> Self {
        Self { auto: true }
    }
}

/// Changes of the host itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HostConfig {
    /// `refuse`, `sim` (recorded, with success) or `real` (needs the marker file
    /// `/etc/muster/host-actions`).
    #[schema(value_type = String)]
    pub actions: HostActions,
}

/// Who may do what.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SecurityConfig {
    /// Networks whose addresses the local HTTP may listen on, e.g. `["10.0.0.0/8"]`.
    #[schema(value_type = Vec<String>)]
    pub allow_plaintext: Vec<IpNet>,
    /// Networks whose addresses VMs may publish ports on beside loopback
    /// (`internal_metadata["muster:hostfwd"]`), e.g. `["10.0.0.0/8"]`; `0.0.0.0/0`: also all
    /// addresses at once.
    #[schema(value_type = Vec<String>)]
    pub publish_on: Vec<IpNet>,
    /// Lets coordinators run scripts as root (`command_execute`); `host.actions` must allow it too.
    /// Also `allow_command_execute`.
    pub allow_command_execute: bool,
}

impl Check for Config {
    fn check(&self, problems: &mut Problems) {
        if let Err(error) =
            check_exposure(&self.listen, Ways::Loopback, &self.security.allow_plaintext)
        {
            problems.add("listen", error.to_string());
        }
        if matches!(self.listen, ListenAddress::Unix(_)) {
            problems
                .add("listen", "must be an address and port; the unix socket is in the run folder");
        }
        let usable = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let fits = (1..=MAX_INSTANCE_BYTES).contains(&self.instance.len())
            && self.instance.chars().all(usable);
        problems.require(fits, "instance", "must be 1 to 8 characters of a-z and 0-9");
        problems.require(self.task_timeout_s >= 60, "task_timeout_s", "must be at least 60");
        let run_dir_bytes = self.run_folder().as_os_str().len();
        problems.require(
            run_dir_bytes <= MAX_RUN_DIR_BYTES,
            "run_dir",
            format!("{run_dir_bytes} bytes, at most {MAX_RUN_DIR_BYTES}: sockets need short paths"),
        );
        problems.require(
            !self.server_uuid.is_some_and(|uuid| identity::is_dummy(uuid.0)),
            "server_uuid",
            "is a placeholder that many machines share",
        );
        self.check_queues(problems);
        self.check_pools(problems);
        let version: Vec<_> = self.compat.cn_agent_version.split('.').collect();
        let numbers = version.len() == 3 && version.iter().all(|part| part.parse::<u32>().is_ok());
        problems.require(
            numbers,
            "compat.cn_agent_version",
            "must be three numbers, such as 2.14.0",
        );
        problems.within("coordinator", |problems| self.coordinator.check(problems));
        problems.within("legacy", |problems| self.legacy.check(problems));
        problems.within("compute", |problems| self.compute.check(problems));
        problems.within("images", |problems| self.images.check(problems));
        problems.within("sessions", |problems| self.sessions.check(problems));
        problems.within("zfs", |problems| self.zfs.check(problems));
        problems.within("log", |problems| self.log.check(problems));
    }

    fn aliases() -> &'static [(&'static str, &'static str)] {
        &[
            ("allow_command_execute", "security.allow_command_execute"),
            ("server_uuid_byte_order", "uuid_byte_order"),
        ]
    }
}

impl Check for CoordinatorConfig {
    fn check(&self, problems: &mut Problems) {
        check_urls(problems, "urls", &self.urls, ["ws", "wss"]);
        let pair = self.certificate.is_some() == self.key.is_some();
        problems.require(pair, "key", "is needed together with coordinator.certificate");
        for (key, path) in [("ca", &self.ca), ("certificate", &self.certificate)] {
            problems.readable(key, path.as_deref());
        }
        for (key, path) in [("token_file", &self.token_file), ("key", &self.key)] {
            problems.secret(key, path.as_deref());
        }
    }
}

impl Config {
    fn check_queues(&self, problems: &mut Problems) {
        let known = Registry::new(HANDLERS).queues();
        for (name, queue) in &self.queues {
            if !known.iter().any(|queue| queue.name == name) {
                let names: Vec<_> = known.iter().map(|queue| queue.name).collect();
                let text = format!("is not a queue; there are {}", names.join(", "));
                problems.add(&format!("queues.{name}"), text);
            }
            let key = format!("queues.{name}.max_concurrent");
            problems.require(queue.max_concurrent != Some(0), &key, "must be at least 1");
        }
    }

    fn check_pools(&self, problems: &mut Problems) {
        let form =
            format!("must be 1 to {MAX_POOL_CHARS} of a-z, A-Z, 0-9 and, but not first, _.:-");
        problems.require(is_pool_name(&self.pool), "pool", form.as_str());
        let mut folders = vec![self.storage_folder()];
        for (name, pool) in &self.pools {
            let key = format!("pools.{name}");
            problems.require(is_pool_name(name), &key, form.as_str());
            problems.require(*name != self.pool, &key, "is the name of the first pool");
            let key = format!("{key}.dir");
            if self.storage == StorageKind::Zfs {
                let none = pool.dir.as_os_str().is_empty();
                problems.require(none, &key, "must not be set: the pool is ZFS' own of this name");
                continue;
            }
            problems.require(
                pool.dir.is_absolute(),
                &key,
                "must be a path that begins with a slash",
            );
            let is_own = !folders.contains(&pool.dir.as_path());
            problems.require(is_own, &key, "is the folder of another pool");
            folders.push(&pool.dir);
        }
        problems.require(
            self.pools.len() < MAX_POOLS,
            "pools",
            format!("must be at most {MAX_POOLS}, with the first"),
        );
    }

    /// What is allowed and hardly meant, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.coordinator.urls.is_empty() && self.legacy.cnapi_url.is_none() {
            let text = "no coordinator is named: nobody will give this agent any work";
            warnings.push(format!("coordinator.urls = []: {text}"));
        }
        if self.security.allow_command_execute {
            let text = "coordinators may run commands as root on this node";
            warnings.push(format!("security.allow_command_execute = true: {text}"));
        }
        warnings
    }

    /// Limits of queues that differ from their own.
    #[must_use]
    pub fn queue_limits(&self) -> BTreeMap<String, usize> {
        let limit =
            |(name, queue): (&String, &QueueConfig)| Some((name.clone(), queue.max_concurrent?));
        self.queues.iter().filter_map(limit).collect()
    }

    /// The folder of sockets. Absolute: guests have another working directory.
    #[must_use]
    pub fn run_folder(&self) -> PathBuf {
        // Fails for an empty path, and where there is no working directory; then nothing is found.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match &self.run_dir {
            Some(run_dir) => absolute(run_dir),
            None if self.data_dir == Path::new(DEFAULT_DATA_DIR) => PathBuf::from(DEFAULT_RUN_DIR),
            None => {
                let name = Sha256::digest(absolute(&self.data_dir).as_os_str().as_encoded_bytes());
                PathBuf::from(format!("/tmp/muster-{}", hex::encode(&name[..6])))
            }
        }
    }

    /// The folder of disks and images.
    #[must_use]
    pub fn storage_folder(&self) -> &Path {
        self.storage_dir.as_deref().unwrap_or(&self.data_dir)
    }

    /// Longest run time of any task.
    #[must_use]
    pub fn task_ceiling(&self) -> Duration {
        Duration::from_secs(self.task_timeout_s)
    }
}

/// Whether a pool can be called so: as in ZFS.
fn is_pool_name(name: &str) -> bool {
    let behind = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= MAX_POOL_CHARS
        && name.chars().all(behind)
}

#[cfg(test)]
mod tests;
