//! The task kinds about VMs with a real hypervisor, real disks and the tiny guest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::telemetry::LogRing;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::machine_tests::{NoEvents, NoSubtasks, create_params, params, run, uuid};
use super::{Params, TaskContext, TaskFailure};
use crate::drivers::builder::Builder;
use crate::drivers::cluster::Cluster;
use crate::drivers::compute::qemu::probe::Choice;
use crate::drivers::compute::qemu::{Qemu, QemuConfig};
use crate::drivers::coordinators::SimCoordinators;
use crate::drivers::faults::Faults;
use crate::drivers::host::refuse::RefuseHost;
use crate::drivers::images::sim::{SimImages, SimRepository};
use crate::drivers::network::UserNetworks;
use crate::drivers::node::{NodeDocuments, SimDocuments};
use crate::drivers::settings::FileSettings;
use crate::drivers::storage::sim::{SimImage, SimPool};
use crate::drivers::storage::{FileStorage, FileStorageConfig};
use crate::guest_agent::GuestAgents;
use crate::host::{SharedExec, SystemExec, procfs};
use crate::node::bridges::Bridges;
use crate::node::{Drivers, startup};
use crate::report::sim::SimFacts;
use crate::report::{Reporter, ReporterParts, Zpools};
use crate::sessions::Sessions;
use crate::vms::copies::CopiedRecords;
use crate::vms::files::FileVmRecords;
use crate::vms::{Node, VmTable};

/// A node in a folder; ends its guests when dropped, also after a failed assertion.
pub(super) struct RealNode {
    folder: tempfile::TempDir,
    pub(super) image: Value,
}

impl RealNode {
    pub(super) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mr").tempdir_in("/tmp").unwrap();
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest");
        let manifest = std::fs::read(guest.join("manifest.json"));
        let manifest = manifest.expect("run scripts/build-guest-image.sh first");
        let image: Value = serde_json::from_slice(&manifest).unwrap();
        let images = folder.path().join("images");
        std::fs::create_dir_all(&images).unwrap();
        let name = image["uuid"].as_str().unwrap();
        std::fs::copy(guest.join("muster-guest.qcow2"), images.join(format!("{name}.qcow2")))
            .unwrap();
        std::fs::write(images.join(format!("{name}.json")), &manifest).unwrap();
        Self { folder, image }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn agent(&self) -> Arc<Drivers> {
        self.agent_with(Arc::new(SystemExec::new())).await
    }

    /// An agent that runs programs through `exec`.
    pub(super) async fn agent_with(&self, exec: SharedExec) -> Arc<Drivers> {
        let clock: SharedClock = Arc::new(SystemClock::new());
        let documents: Arc<dyn NodeDocuments> = Arc::new(SimDocuments::default());
        let cluster = Arc::new(Cluster::open(documents.clone()).await.unwrap());
        let config = QemuConfig {
            binary: "qemu-system-x86_64".to_owned(),
            data_dir: self.folder.path().to_owned(),
            run_dir: self.path("run"),
            accel: Choice::Tcg,
            prefix: "muster-test".to_owned(),
            server_uuid: uuid::Uuid::nil().into(),
            cluster: cluster.clone(),
            cgroup_parent: String::new(),
            version: "0.0.0".to_owned(),
        };
        let compute = Arc::new(Qemu::open(config, exec.clone(), clock.clone()).await.unwrap());
        let config = FileStorageConfig {
            storage_dir: self.folder.path().to_owned(),
            data_dir: self.folder.path().to_owned(),
            server_uuid: uuid::Uuid::nil().into(),
            cluster: cluster.clone(),
            pool: "zones".to_owned(),
        };
        let storage = Arc::new(FileStorage::open(config, exec).await.unwrap());
        let image = SimImage { manifest: self.image.clone(), size_bytes: 32 << 20 };
        let (pool, repository) = (SimPool::default(), SimRepository::default());
        repository.publish(self.image["uuid"].as_str().unwrap().parse().unwrap(), image);
        let node = Node { boot_id: procfs::boot_id().unwrap(), ..Node::default() };
        let records = FileVmRecords::open(self.path("vms")).unwrap();
        let server = uuid::Uuid::nil().into();
        let records =
            CopiedRecords::new(Arc::new(records), storage.clone(), server, cluster.clone());
        let vms = Arc::new(VmTable::new(Arc::new(records), clock.clone(), node));
        let facts = SimFacts::new(uuid::Uuid::nil().into(), 1, jiff::Timestamp::UNIX_EPOCH, "b");
        let report = Arc::new(Reporter::new(ReporterParts {
            clock: clock.clone(),
            facts: Arc::new(facts),
            vms: vms.clone(),
            compute: compute.clone(),
            storage: storage.clone(),
            networks: Arc::new(UserNetworks::restricted()),
            zpools: Arc::new(Zpools::none(clock.clone())),
        }));
        let images = Arc::new(SimImages::new(pool, repository, clock.clone(), Faults::none()));
        let entropy = Arc::new(SeededEntropy::new(3));
        let host = Arc::new(RefuseHost);
        let settings = Arc::new(FileSettings::new(self.folder.path()));
        let node = documents;
        let log = Arc::new(LogRing::new(uuid::Uuid::nil(), clock.clone()));
        let drivers = Drivers {
            builder: Arc::new(Builder::none("this is no real node")),
            sessions: Arc::new(Sessions::new(
                std::net::Ipv4Addr::LOCALHOST.into(),
                true,
                entropy.clone(),
            )),
            guest_agents: Arc::new(GuestAgents::new(compute.clone(), entropy.clone())),
            log,
            clock,
            entropy,
            compute,
            networks: Arc::new(UserNetworks::restricted()),
            storage,
            images,
            host,
            bridges: Bridges::default(),
            coordinators: Arc::new(SimCoordinators::default()),
            settings,
            node,
            cluster,
            vms,
            report,
            zfs: crate::drivers::zfs::Delegated::none(),
        };
        startup::find(&drivers).await.unwrap();
        Arc::new(drivers)
    }

    async fn act(
        &self,
        drivers: &Arc<Drivers>,
        kind: &str,
        params: Params,
    ) -> Result<Value, TaskFailure> {
        let ctx = TaskContext {
            task_id: format!("{kind}-1").parse().unwrap(),
            params,
            origin: super::record::Origin::Coordinator,
            drivers: Arc::clone(drivers),
            started_at: drivers.clock.wall(),
            rebooted: false,
            resumed: false,
            cancelled: CancellationToken::new(),
            hurried: CancellationToken::new(),
            hurries: false,
            events: Arc::new(NoEvents),
            subtasks: Arc::new(NoSubtasks),
            result: parking_lot::Mutex::new(Value::Null),
            notes: parking_lot::Mutex::new(Value::Null),
        };
        run(&ctx, kind, false).await
    }

    /// Waits until the guest has said `times` times that it is up.
    async fn up(&self, times: usize) {
        let log = self.path("guests").join(uuid().to_string()).join("console.log");
        let up = async {
            loop {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                if text.matches("muster-guest up").count() >= times {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let came = tokio::time::timeout(Duration::from_secs(90), up).await;
        assert!(came.is_ok(), "not up {times} times: {:?}", std::fs::read_to_string(&log));
    }

    /// No process is left, and no file of any VM.
    pub(super) fn assert_empty(&self, case: &str) {
        assert!(self.guest_pids().is_empty(), "{case}: {:?}", self.guest_pids());
        for left in ["vms", "vols", "guests", "run/vm"] {
            let names: Vec<_> = std::fs::read_dir(self.path(left)).unwrap().collect();
            assert!(names.is_empty(), "{case}: {left}: {names:?}");
        }
    }

    pub(super) fn guest_pids(&self) -> Vec<u32> {
        let run_dir = self.path("run").display().to_string();
        let ours = |pid: &u32| {
            let argv = procfs::cmdline(*pid).unwrap().unwrap_or_default();
            argv.iter().any(|arg| arg.starts_with(&run_dir))
        };
        procfs::pids().unwrap().into_iter().filter(ours).collect()
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        for pid in self.guest_pids() {
            if let Ok(Some(process)) = crate::host::ProcessId::of(pid) {
                process.kill().unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_real_vm_lives_from_create_to_destroy() {
    let node = RealNode::new();
    let drivers = node.agent().await;
    let image = node.image["uuid"].clone();
    let create = create_params(json!({ "ram": 192, "disks": [{"image_uuid": image}] }));
    let made = node.act(&drivers, "machine_create", create).await.unwrap();
    assert_eq!(made["vm"]["state"], "running");
    node.up(1).await;

    // Another agent: the same guest goes on.
    drop(drivers);
    let drivers = node.agent().await;
    let loaded = node.act(&drivers, "machine_load", params(json!({}))).await.unwrap();
    assert_eq!((&loaded["pid"], &loaded["state"]), (&made["vm"]["pid"], &json!("running")));
    assert_eq!(loaded["last_modified"], made["vm"]["last_modified"]);

    let rebooted = node.act(&drivers, "machine_reboot", params(json!({}))).await.unwrap();
    assert_ne!(rebooted["vm"]["pid"], made["vm"]["pid"]);
    node.up(2).await;
    let info = params(json!({ "types": ["status", "vnc"] }));
    let info = node.act(&drivers, "machine_info", info).await.unwrap();
    assert_eq!(info["status"]["status"], "running");
    let stopped = node.act(&drivers, "machine_shutdown", params(json!({}))).await.unwrap();
    assert_eq!(stopped["vm"]["state"], "stopped");
    assert_eq!(stopped["vm"]["exit_status"], 0);
    node.act(&drivers, "machine_boot", params(json!({}))).await.unwrap();

    node.act(&drivers, "machine_destroy", params(json!({}))).await.unwrap();
    node.assert_empty("destroyed");
}

#[tokio::test]
async fn a_real_create_that_fails_at_boot_leaves_nothing() {
    let node = RealNode::new();
    let drivers = node.agent().await;
    let create = create_params(json!({
        "disks": [{"size": 1}], "cpu_type": "no-such-cpu",
    }));
    let failure = node.act(&drivers, "machine_create", create).await.unwrap_err();
    assert!(failure.message.contains("no-such-cpu"), "{failure}");
    node.assert_empty("failed");
}
