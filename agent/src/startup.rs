//! Building a real agent: identity, lock, drivers, journal.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::config::ListenAddress;
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::folders::{check_own, make_private};
use muster_shared::ids::ServerUuid;
use muster_shared::link::Dialer;
use muster_shared::link::websocket::WebsocketDialer;
use muster_shared::telemetry::LogRing;
use muster_shared::threads::OsThreads;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use url::Url;

use crate::config::{Config, StorageKind};
use crate::drivers::builder::{BUILDS, Builder, BuilderConfig};
use crate::drivers::cluster::Cluster;
use crate::drivers::compute::Router;
use crate::drivers::compute::oci::{Oci, OciConfig};
use crate::drivers::compute::qemu::{Qemu, QemuConfig, isolation};
use crate::drivers::coordinators::DialedCoordinators;
use crate::drivers::host::{self, Host};
use crate::drivers::images;
use crate::drivers::network::links::NetlinkLinks;
use crate::drivers::network::{BridgedConfig, BridgedNetworks, PublishOn, UserNetworks};
use crate::drivers::node::{Document, FileDocuments};
use crate::drivers::settings::FileSettings;
use crate::drivers::storage::DISKS;
use crate::drivers::zfs::{CommandZfs, Delegated, ZfsConfig};
use crate::guest_agent::GuestAgents;
use crate::host::{Presence, SharedExec, SystemExec, procfs};
use crate::node::Drivers;
use crate::node::bridges::Bridges;
use crate::report::sysinfo::{LinuxFacts, SysinfoConfig};
use crate::report::{Reporter, ReporterParts, Zpools, identity, setup};
use crate::sessions::Sessions;
use crate::tasks::registry::{Faults, KillAt, Registry};
use crate::tasks::{HANDLERS, folder};
use crate::vms::copies::CopiedRecords;
use crate::vms::files::FileVmRecords;
use crate::vms::{Node, VmTable};
use crate::{AgentConfig, AgentParts};

mod storage;

/// Variable that names the step at which a test wants the agent to die.
const FAULT_VARIABLE: &str = "MUSTER_FAULT";

/// The folders of an agent, made if need be, with the lock on them.
#[derive(Debug)]
pub struct Folders {
    /// What is stored.
    pub data: PathBuf,
    /// Disks and images; may be the same.
    pub storage: PathBuf,
    /// Disks of the further pools, by name.
    pub pools: Vec<(String, PathBuf)>,
    /// Sockets.
    pub run: PathBuf,
    _locks: Vec<Flock<File>>,
}

/// Lies in each folder that one agent at a time may use.
pub(crate) const LOCK_FILE: &str = "agent.lock";
/// The folder of the VM records in the data folder.
pub(crate) const VMS: &str = "vms";

impl Folders {
    /// Makes and locks them; the kernel frees the lock when the process ends.
    ///
    /// # Errors
    /// A folder can't be made, or another agent uses it.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let (data, run) = (config.data_dir.clone(), config.run_folder());
        let storage = config.storage_folder().to_owned();
        for folder in [&data, &storage, &run] {
            make_private(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        // Who can write there can pass for a guest, or have files overwritten through links.
        for (what, folder) in [("run", &run), ("data", &data), ("storage", &storage)] {
            let checked = check_own(folder);
            checked.with_context(|| format!("use the {what} folder {}", folder.display()))?;
        }
        let found =
            |path: PathBuf| path.canonicalize().with_context(|| format!("find {}", path.display()));
        let (data, storage) = (found(data)?, found(storage)?);
        check_moved(&data, &storage)?;
        let fresh = !data.join(LOCK_FILE).exists();
        let mut locks = vec![lock(&data)?];
        if storage != data {
            locks.push(lock(&storage)?);
        }
        let mut pools = Vec::new();
        let of_files = config.pools.iter().filter(|_| config.storage == StorageKind::File);
        for (name, pool) in of_files {
            let dir = pool.dir.canonicalize().and_then(|dir| check_own(&dir).map(|()| dir));
            let using = || format!("use pool {name} in {}", pool.dir.display());
            let dir = dir.with_context(using)?;
            // Two names of one folder are found here as well.
            locks.push(lock(&dir).with_context(using)?);
            pools.push((name.clone(), dir));
        }
        let folders = Self { data, storage, pools, run, _locks: locks };
        if fresh {
            folders.restore()?;
        }
        Ok(folders)
    }

    /// What of the data folder must stay where it is while the agent runs; there once [`open`] is
    /// done.
    ///
    /// # Errors
    /// Something of it is not there.
    pub fn presence(&self) -> anyhow::Result<Presence> {
        Presence::of(&self.data, &[LOCK_FILE, folder::NAME, VMS])
            .with_context(|| format!("look at {}", self.data.display()))
    }

    /// Where copies of the files lie that say whose node this is. A copy beside the original
    /// would be lost with it.
    pub(crate) fn copies(&self) -> Option<PathBuf> {
        (self.storage != self.data).then(|| self.storage.join("node"))
    }

    /// A data folder that was lost: the node stays what it was. Whoever only removes one of the
    /// files, to make it another node, gets what was asked for.
    fn restore(&self) -> anyhow::Result<()> {
        let Some(copies) = self.copies() else { return Ok(()) };
        for name in [identity::FILE_NAME, Document::Cluster.file_name()] {
            let (from, to) = (copies.join(name), self.data.join(name));
            if !from.exists() || to.exists() {
                continue;
            }
            tracing::warn!(from = %from.display(), "the data folder is new: this file is restored");
            std::fs::copy(&from, &to).with_context(|| format!("restore {}", to.display()))?;
        }
        Ok(())
    }
}

/// Refuses a storage folder of its own as long as disks lie in the data folder: they would not be
/// found, and their VMs would look as if they had none.
fn check_moved(data: &Path, storage: &Path) -> anyhow::Result<()> {
    let disks = data.join(DISKS);
    let left = disks.read_dir().is_ok_and(|mut disks| disks.next().is_some());
    anyhow::ensure!(
        storage == data || !left,
        "storage_dir is {}, and there are disks in {}: stop the guests, move the folders vols, \
         images and records from {} to {}, and start the agent again",
        storage.display(),
        disks.display(),
        data.display(),
        storage.display(),
    );
    Ok(())
}

fn lock(folder: &Path) -> anyhow::Result<Flock<File>> {
    let path = folder.join(LOCK_FILE);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => anyhow::anyhow!("another agent uses {}", folder.display()),
        errno => anyhow::anyhow!("lock {}: {}", path.display(), errno.desc()),
    })
}

/// The parts of a real agent.
///
/// # Errors
/// The host lacks something without which nothing works.
pub async fn open(
    config: &Config,
    folders: &Folders,
    listen: &ListenAddress,
    log: Arc<LogRing>,
) -> anyhow::Result<(AgentConfig, AgentParts)> {
    let clock: SharedClock = Arc::new(SystemClock::new());
    let entropy: SharedEntropy = Arc::new(SeededEntropy::from_os());
    // First, so that a bad configuration changes nothing.
    let credentials = credentials(config)?;
    let dialer: Arc<dyn Dialer> = Arc::new(dialer(&credentials, entropy.clone())?);
    let boot_id = procfs::boot_id().context("read the boot id")?;
    let server_uuid = server_uuid(config, folders).await?;
    if let Some(copies) = folders.copies() {
        identity::keep(server_uuid, &copies).await.context("keep a copy of the server's UUID")?;
    }
    if config.setup.auto {
        setup::complete_by_itself(&folders.data, clock.wall()).await.context("set up the node")?;
    }
    let agent = AgentConfig {
        server_uuid,
        boot_id,
        instance_id: log.instance(),
        coordinators: urls(&config.coordinator.urls),
        task_ceiling: config.task_ceiling(),
        image_gc: config.images.gc.policy(),
    };
    let threads = Arc::new(OsThreads);
    let kv = folder::open(&folders.data, clock.wall(), threads.as_ref()).await?;
    let own = Own { config, folders, listen, agent: &agent, credentials, dialer: &dialer, log };
    let drivers = drivers(own, clock.clone(), entropy.clone()).await?;
    let parts = AgentParts {
        dialer,
        feed: drivers.report.clone(),
        registry: Registry::new(HANDLERS).with_limits(config.queue_limits()),
        faults: fault()?,
        kv,
        drivers,
        threads,
        clock,
        entropy,
    };
    Ok((agent, parts))
}

/// What this agent is, for its drivers.
struct Own<'a> {
    config: &'a Config,
    folders: &'a Folders,
    listen: &'a ListenAddress,
    agent: &'a AgentConfig,
    credentials: Credentials,
    dialer: &'a Arc<dyn Dialer>,
    log: Arc<LogRing>,
}

async fn drivers(
    own: Own<'_>,
    clock: SharedClock,
    entropy: SharedEntropy,
) -> anyhow::Result<Arc<Drivers>> {
    let Own { config, folders, listen, agent, credentials, dialer, log } = own;
    let exec: SharedExec = Arc::new(SystemExec::new());
    let documents = Arc::new(FileDocuments::new(folders.data.clone(), folders.copies()));
    documents.copy().await.context("copy cluster.json beside the disks")?;
    let cluster = Cluster::open(documents.clone()).await.context("read cluster.json")?;
    let cluster = Arc::new(cluster);
    let qemu = QemuConfig {
        binary: config.compute.qemu.clone(),
        data_dir: folders.data.clone(),
        run_dir: folders.run.clone(),
        accel: config.compute.accel,
        prefix: config.instance.clone(),
        server_uuid: agent.server_uuid,
        cluster: cluster.clone(),
        cgroup_parent: config.compute.cgroup_parent.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let qemu = Qemu::open(qemu, exec.clone(), clock.clone()).await;
    let qemu = Arc::new(qemu.context("open the compute driver")?);
    let oci = OciConfig {
        runtime: config.compute.oci_runtime.clone(),
        monitor: std::env::current_exe().context("find the agent's own program")?,
        data_dir: folders.data.clone(),
        run_dir: folders.run.clone(),
        prefix: config.instance.clone(),
        server_uuid: agent.server_uuid,
        cluster: cluster.clone(),
        cgroup_parent: config.compute.cgroup_parent.clone(),
        user_ids: config.compute.user_ids(),
    };
    let oci = Oci::open(oci, exec.clone(), clock.clone()).await;
    let oci = Arc::new(oci.context("open the driver of containers")?);
    let compute = Arc::new(Router::new(qemu, vec![oci]));
    let (wanted, uids) = (config.compute.user_network, isolation::guest_uids());
    let networks = UserNetworks::open(wanted, &config.instance, uids, exec.clone()).await;
    let publish_on = PublishOn(config.security.publish_on.clone());
    let user = Arc::new(networks.publish_on(publish_on));
    let bridged = BridgedConfig {
        server_uuid: agent.server_uuid,
        cluster: cluster.clone(),
        user_tags: config.network.user_tags.clone(),
        server_tags: config.network.server_tags.clone(),
        prefix: config.instance.clone(),
        data_dir: folders.data.clone(),
        run_dir: folders.run.clone(),
        exec: exec.clone(),
    };
    let networks = Arc::new(BridgedNetworks::open(bridged, Arc::new(NetlinkLinks), user).await);
    let zfs = zfs(config, &exec).await;
    let parts = storage::Parts {
        config,
        folders,
        agent,
        cluster: &cluster,
        exec: &exec,
        zfs: &zfs.zfs,
        clock: &clock,
        entropy: &entropy,
    };
    let storage = parts.storage().await?;
    let token = credentials.token.as_deref();
    let credentials = images::Credentials::new(&agent.coordinators, credentials.tls, token)
        .context("use the token of coordinator.token_file")?;
    let images = parts.images(&storage, credentials).await?;
    let records = FileVmRecords::open(folders.data.join(VMS)).context("open the VM records")?;
    let node = Node {
        boot_id: agent.boot_id.clone(),
        server_uuid: Some(agent.server_uuid),
        datacenter_name: config.datacenter_name.clone(),
    };
    let server_uuid = agent.server_uuid;
    let records =
        CopiedRecords::new(Arc::new(records), storage.clone(), server_uuid, cluster.clone());
    let vms = Arc::new(VmTable::new(Arc::new(records), clock.clone(), node));
    let zpools = Arc::new(Zpools::new(zfs.zfs.clone(), clock.clone()));
    let facts = LinuxFacts::new(
        sysinfo(config, folders, listen, agent),
        exec.clone(),
        compute.clone(),
        networks.clone(),
        zpools.clone(),
        clock.clone(),
    );
    let report = Arc::new(Reporter::new(ReporterParts {
        clock: clock.clone(),
        facts: Arc::new(facts),
        vms: vms.clone(),
        compute: compute.clone(),
        storage: storage.clone(),
        networks: networks.clone(),
        zpools,
    }));
    let cnapi = config.legacy.cnapi_url.as_deref().and_then(|url| url.parse().ok());
    let coordinators = DialedCoordinators::new(dialer.clone(), agent.coordinators.clone(), cnapi);
    let coordinators = Arc::new(coordinators);
    let builder = BuilderConfig {
        folder: folders.storage.join(BUILDS),
        prefix: config.instance.clone(),
        cgroup_parent: config.compute.cgroup_parent.clone(),
    };
    let builder = Builder::open(builder, exec.clone()).await;
    Ok(Arc::new(Drivers {
        builder: Arc::new(builder.context("open the folder of builds")?),
        sessions: Arc::new(Sessions::new(
            config.sessions.listen_ip,
            config.sessions.auth,
            entropy.clone(),
        )),
        guest_agents: Arc::new(GuestAgents::new(compute.clone(), entropy.clone())),
        compute,
        networks,
        storage,
        images,
        host: host_driver(config, folders, exec, server_uuid),
        bridges: Bridges::default(),
        coordinators,
        settings: Arc::new(FileSettings::new(&folders.data)),
        node: documents,
        cluster,
        vms,
        report,
        zfs,
        log,
        clock,
        entropy,
    }))
}

async fn server_uuid(config: &Config, folders: &Folders) -> anyhow::Result<ServerUuid> {
    let sources =
        identity::Sources { configured: config.server_uuid, byte_order: config.uuid_byte_order };
    let determined = identity::determine(&sources, &folders.data, Path::new("/")).await;
    determined.context("find out which server this is")
}

/// The host as it is at boot, before there is an agent.
///
/// # Errors
/// Nothing tells which server it is.
pub async fn early_host(config: &Config, folders: &Folders) -> anyhow::Result<Arc<dyn Host>> {
    let server = server_uuid(config, folders).await?;
    Ok(host_driver(config, folders, Arc::new(SystemExec::new()), server))
}

fn host_driver(
    config: &Config,
    folders: &Folders,
    exec: SharedExec,
    server: ServerUuid,
) -> Arc<dyn Host> {
    let wiring = host::Wiring { wires: Arc::new(NetlinkLinks), server };
    let allow_execute = config.security.allow_command_execute;
    host::open(config.host.actions, allow_execute, exec, &folders.run, wiring)
}

/// The node's ZFS, if it has any.
async fn zfs(config: &Config, exec: &SharedExec) -> Delegated {
    let found = ZfsConfig { helper: config.zfs.helper(), ..ZfsConfig::default() };
    let zfs = Arc::new(CommandZfs::open(&found, exec.clone()).await);
    let pools = std::iter::once(&config.pool).chain(config.pools.keys());
    Delegated { zfs, roots: config.zfs.delegated(pools) }
}

fn sysinfo(
    config: &Config,
    folders: &Folders,
    listen: &ListenAddress,
    agent: &AgentConfig,
) -> SysinfoConfig {
    let defaults = SysinfoConfig::new(agent.server_uuid, agent.instance_id, folders.data.clone());
    let (agent_port, agent_ip) = match listen {
        ListenAddress::Tcp(address) => {
            let outside = !address.ip().is_loopback() && !address.ip().is_unspecified();
            (address.port(), outside.then_some(address.ip()))
        }
        ListenAddress::Unix(_) => (defaults.agent_port, None),
    };
    SysinfoConfig {
        publish_to: Some(folders.run.join("sysinfo.json")),
        storage: match config.storage {
            StorageKind::File => "file",
            StorageKind::Zfs => "zfs",
        },
        pool: config.pool.clone(),
        datacenter_name: config.datacenter_name.clone(),
        dns_domain: config.dns_domain.clone(),
        headnode_id: config.headnode_id,
        cn_agent_version: config.compat.cn_agent_version.clone(),
        admin_nic_tag: config.admin_nic_tag.clone(),
        admin_ip: config.admin_ip,
        agent_port,
        agent_ip,
        coordinators: urls(&config.coordinator.urls),
        ..defaults
    }
}

/// Parses URLs that the configuration's check has seen already.
fn urls(texts: &[String]) -> Vec<Url> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// How the agent shows itself to its coordinators, and knows them.
struct Credentials {
    tls: Option<Arc<rustls::ClientConfig>>,
    token: Option<String>,
}

fn credentials(config: &Config) -> anyhow::Result<Credentials> {
    let coordinator = &config.coordinator;
    let identity = coordinator.identity();
    let tls = if coordinator.ca.is_some() || identity.is_some() {
        let tls = muster_shared::tls::client(coordinator.ca.as_deref(), identity.as_ref());
        Some(tls.context("use coordinator.ca, coordinator.certificate, coordinator.key")?)
    } else {
        None
    };
    let read = |path: &PathBuf| {
        let token = std::fs::read_to_string(path);
        token.with_context(|| format!("read {}", path.display()))
    };
    let token = coordinator.token_file.as_ref().map(read).transpose()?;
    Ok(Credentials { tls, token: token.map(|token| token.trim().to_owned()) })
}

fn dialer(credentials: &Credentials, entropy: SharedEntropy) -> anyhow::Result<WebsocketDialer> {
    let dialer = WebsocketDialer::new(entropy, credentials.tls.clone());
    match &credentials.token {
        None => Ok(dialer),
        Some(token) => dialer.with_bearer(token).context("use the token of coordinator.token_file"),
    }
}

fn fault() -> anyhow::Result<Option<Arc<dyn Faults>>> {
    let Ok(text) = std::env::var(FAULT_VARIABLE) else { return Ok(None) };
    let fault: KillAt = text.parse()?;
    tracing::warn!(?fault, "this agent will kill itself, as {FAULT_VARIABLE} asks");
    Ok(Some(Arc::new(fault)))
}
