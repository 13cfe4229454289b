//! How groups read the host.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::ids::ServerUuid;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

use super::Keys;
use crate::drivers::compute::Compute;
use crate::drivers::network::Networks;
use crate::drivers::storage::DEFAULT_POOL;
use crate::drivers::{DriverError, files};
use crate::host::{Command, SharedExec};
use crate::report::lldp::Neighbours;
use crate::report::{Zpools, aside, setup};

/// Longest run time of a helper program; a group has five seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);

/// What sysinfo says that the host itself doesn't know.
#[derive(Clone, Debug)]
pub struct SysinfoConfig {
    /// This server.
    pub server_uuid: ServerUuid,
    /// Changes with every start of the agent.
    pub agent_instance_id: Uuid,
    /// Holds the setup record.
    pub data_dir: PathBuf,
    /// Where the document is written for local tools (mode 0600); nowhere without.
    pub publish_to: Option<PathBuf>,
    /// Where `/proc`, `/sys` and `/etc` lie: `/` except in tests.
    pub root: PathBuf,
    /// Pool of the agent's disks; `Zpool`, if it is one of ZFS.
    pub pool: String,
    /// Storage driver, for `Muster.storage`.
    pub storage: &'static str,
    /// `Datacenter Name`.
    pub datacenter_name: Option<String>,
    /// `DNS Domain`.
    pub dns_domain: Option<String>,
    /// `Headnode ID`.
    pub headnode_id: Option<u64>,
    /// Version of `cn-agent` in the agents list.
    pub cn_agent_version: String,
    /// `Admin NIC Tag`, e.g. `admin`.
    pub admin_nic_tag: String,
    /// `Admin IP`; found by itself without.
    pub admin_ip: Option<IpAddr>,
    /// `CN Agent Port`.
    pub agent_port: u16,
    /// `CN Agent IP`, when the agent serves HTTP on another address than the admin one.
    pub agent_ip: Option<IpAddr>,
    /// The route to the first of these shows the admin address.
    pub coordinators: Vec<Url>,
}

impl SysinfoConfig {
    /// The defaults for a server.
    #[must_use]
    pub fn new(server_uuid: ServerUuid, agent_instance_id: Uuid, data_dir: PathBuf) -> Self {
        Self {
            server_uuid,
            agent_instance_id,
            data_dir,
            publish_to: None,
            root: PathBuf::from("/"),
            pool: DEFAULT_POOL.to_owned(),
            storage: "file",
            datacenter_name: None,
            dns_domain: None,
            headnode_id: None,
            cn_agent_version: super::CN_AGENT_VERSION.to_owned(),
            admin_nic_tag: "admin".to_owned(),
            admin_ip: None,
            agent_port: 5309,
            agent_ip: None,
            coordinators: Vec::new(),
        }
    }
}

/// The facts of the Linux host that the agent runs on.
#[derive(Debug)]
pub struct LinuxFacts {
    pub(super) probe: Probe,
}

impl LinuxFacts {
    /// Reads through files and `exec`.
    #[must_use]
    pub fn new(
        config: SysinfoConfig,
        exec: SharedExec,
        compute: Arc<dyn Compute>,
        networks: Arc<dyn Networks>,
        zpools: Arc<Zpools>,
        clock: SharedClock,
    ) -> Self {
        let (neighbours, shown) = (Neighbours::new(clock), Mutex::default());
        Self { probe: Probe { config, exec, compute, networks, zpools, neighbours, shown } }
    }
}

/// What a group reads from.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) config: SysinfoConfig,
    pub(super) exec: SharedExec,
    pub(super) compute: Arc<dyn Compute>,
    pub(super) networks: Arc<dyn Networks>,
    pub(super) zpools: Arc<Zpools>,
    pub(super) neighbours: Neighbours,
    /// The interfaces of the last document.
    pub(super) shown: Mutex<Vec<String>>,
}

impl Probe {
    /// `journal` as long as a damaged one lies in the data folder.
    pub(super) fn journal_problem(&self) -> Option<String> {
        let aside = aside(&self.config.data_dir);
        aside.is_ok_and(|found| !found.is_empty()).then(|| "journal".to_owned())
    }

    /// A small file, trimmed; `None` when it is missing, unreadable or empty.
    pub(super) async fn text(&self, name: &str) -> Option<String> {
        self.text_of(&self.config.root.join(name)).await
    }

    /// As [`Self::text`], of any file.
    pub(super) async fn text_of(&self, path: &Path) -> Option<String> {
        let content = tokio::fs::read(path).await.ok()?;
        let text = String::from_utf8_lossy(&content).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// A file that every Linux host has.
    pub(super) async fn needed(&self, name: &str) -> Result<String, DriverError> {
        let path = self.config.root.join(name);
        tokio::fs::read_to_string(&path).await.map_err(|e| files::failed("read", &path, e))
    }

    /// The names in a folder, sorted; none when it is missing.
    pub(super) async fn names(&self, folder: &str) -> Vec<String> {
        let paths = files::list(&self.config.root.join(folder)).await.unwrap_or_default();
        let names = paths.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        names.collect()
    }

    /// Whether a file or folder is there.
    pub(super) async fn exists(&self, name: &str) -> bool {
        tokio::fs::symlink_metadata(self.config.root.join(name)).await.is_ok()
    }

    /// The JSON that a program prints.
    pub(super) async fn json(&self, argv: &[&str]) -> Result<Value, DriverError> {
        let program = argv.first().copied().unwrap_or_default();
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            DriverError::failed(format!("run {}", argv.join(" ")), source)
        };
        let command = Command::new(argv.iter().copied(), COMMAND_TIMEOUT);
        let ran = self.exec.run(&command, &CancellationToken::new()).await;
        let output =
            ran.and_then(|output| output.checked(program)).map_err(|e| failed(e.into()))?;
        serde_json::from_slice(&output.stdout).map_err(|e| failed(e.into()))
    }

    /// Whether the setup record is complete.
    pub(super) async fn setup_complete(&self) -> bool {
        match setup::read(&self.config.data_dir).await {
            Ok(setup) => setup.is_some_and(|setup| setup.complete),
            Err(error) => {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::warn!(error, "the setup record can't be read");
                false
            }
        }
    }

    /// Writes the document for local tools.
    pub(super) async fn publish(&self, document: &Keys) -> Result<(), DriverError> {
        let Some(path) = &self.config.publish_to else { return Ok(()) };
        let temporary = files::temporary(path);
        let content = serde_json::to_vec(document).expect("a document has only string keys");
        let write = async {
            let mut options = tokio::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&temporary).await?;
            file.write_all(&content).await?;
            file.flush().await
        };
        write.await.map_err(|e| files::failed("write", path, e))?;
        // Volatile: nothing has to survive a power cut here.
        tokio::fs::rename(&temporary, path).await.map_err(|e| files::failed("write", path, e))
    }
}
