//! The whole document, of this machine and of one that answers nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::{SharedClock, SystemClock};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{LinuxFacts, SysinfoConfig};
use crate::drivers::cluster::Cluster;
use crate::drivers::compute::sim::{SimCompute, SimGuests};
use crate::drivers::faults::Faults;
use crate::drivers::network::UserNetworks;
use crate::drivers::storage::{FileStorage, FileStorageConfig};
use crate::host::{EthernetListener, FakeExec, SharedExec, SystemExec};
use crate::report::feed::{Feed as _, PoolAge, SysinfoDocument};
use crate::report::lldp::frame;
use crate::report::sim::SimFacts;
use crate::report::{Facts, Reporter, ReporterParts, Zpools, setup};
use crate::vms::sim::SimVmRecords;
use crate::vms::{Node, VmTable};

const SERVER: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";

struct Bench {
    folder: tempfile::TempDir,
    clock: SharedClock,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: Arc::new(SystemClock::new()) }
    }

    fn compute(&self) -> Arc<SimCompute> {
        let guests = SimGuests::default();
        Arc::new(SimCompute::new(guests, Arc::clone(&self.clock), Faults::none()))
    }

    fn zpools(&self) -> Arc<Zpools> {
        Arc::new(Zpools::none(Arc::clone(&self.clock)))
    }

    fn facts(&self, exec: SharedExec, change: impl FnOnce(&mut SysinfoConfig)) -> LinuxFacts {
        let data_dir = self.folder.path().to_owned();
        let mut config = SysinfoConfig::new(SERVER.parse().unwrap(), uuid::Uuid::nil(), data_dir);
        change(&mut config);
        let networks = Arc::new(UserNetworks::restricted());
        let (clock, zpools) = (Arc::clone(&self.clock), self.zpools());
        LinuxFacts::new(config, exec, self.compute(), networks, zpools, clock)
    }

    async fn reporter(&self, facts: Arc<dyn Facts>) -> Reporter {
        self.reporter_of_pool_in(self.folder.path(), facts).await
    }

    async fn reporter_of_pool_in(&self, pool: &Path, facts: Arc<dyn Facts>) -> Reporter {
        let config = FileStorageConfig {
            storage_dir: pool.to_owned(),
            data_dir: self.folder.path().to_owned(),
            server_uuid: SERVER.parse().unwrap(),
            cluster: Cluster::unknown(),
            pool: "zones".to_owned(),
        };
        let storage = FileStorage::open(config, Arc::new(SystemExec::new())).await.unwrap();
        let records = Arc::new(SimVmRecords::default());
        Reporter::new(ReporterParts {
            clock: Arc::clone(&self.clock),
            facts,
            vms: Arc::new(VmTable::new(records, Arc::clone(&self.clock), Node::default())),
            compute: self.compute(),
            storage: Arc::new(storage),
            networks: Arc::new(UserNetworks::restricted()),
            zpools: self.zpools(),
        })
    }
}

/// The validity filter of the allocator (sdc-designation hard-filter-invalid-servers.js), over a
/// server record as the coordinator makes it of sysinfo and status.
fn invalid_because(server: &Value) -> Option<String> {
    let integer = |name: &str| server[name].as_i64();
    if server["uuid"].as_str().is_none_or(|uuid| uuid.len() != 36) {
        return Some("uuid".to_owned());
    }
    for (name, least) in [
        ("memory_available_bytes", 0),
        ("memory_total_bytes", 1),
        ("disk_pool_size_bytes", 1),
        ("disk_pool_alloc_bytes", 0),
        ("disk_system_used_bytes", 0),
        ("disk_installed_images_used_bytes", 0),
        ("disk_cores_quota_used_bytes", 0),
        ("disk_zone_quota_bytes", 0),
        ("disk_kvm_quota_bytes", 0),
        ("disk_kvm_zvol_volsize_bytes", 0),
    ] {
        if integer(name).is_none_or(|value| value < least) {
            return Some(name.to_owned());
        }
    }
    if server["setup"] != true {
        return Some("setup".to_owned());
    }
    let sysinfo = &server["sysinfo"];
    if sysinfo["Live Image"].as_str().is_none_or(str::is_empty) {
        return Some("Live Image".to_owned());
    }
    let interfaces = sysinfo["Network Interfaces"].as_object();
    let Some(interfaces) = interfaces.filter(|interfaces| !interfaces.is_empty()) else {
        return Some("Network Interfaces".to_owned());
    };
    for (name, interface) in interfaces {
        let status = interface["Link Status"].as_str();
        let names = interface["NIC Names"].as_array();
        if !status.is_some_and(|status| ["up", "down", "unknown"].contains(&status))
            || !names.is_some_and(|names| names.iter().all(Value::is_string))
        {
            return Some(name.clone());
        }
    }
    None
}

/// The server record, by the rules of sdc-cnapi lib/models/server.js.
async fn server_record(reporter: &Reporter) -> Value {
    let sysinfo = reporter.sysinfo_within(Duration::ZERO).await;
    let sample = reporter.sample(PoolAge::Fresh).await.unwrap();
    let report = serde_json::to_value(sample.figures).unwrap();
    let mut server = Map::new();
    server.insert("uuid".to_owned(), sysinfo.sysinfo["UUID"].clone());
    server.insert("setup".to_owned(), json!(sysinfo.sysinfo["Setup"] == "true"));
    server.insert("memory_total_bytes".to_owned(), report["meminfo"]["total_bytes"].clone());
    let available = report["meminfo"]["availrmem_bytes"].clone();
    server.insert("memory_available_bytes".to_owned(), available);
    for (name, value) in report["diskinfo"].as_object().unwrap() {
        server.insert(format!("disk_{name}"), value.clone());
    }
    server.insert("sysinfo".to_owned(), Value::Object(sysinfo.sysinfo.clone()));
    Value::Object(server)
}

#[tokio::test]
async fn the_allocator_accepts_this_machine_with_storage_file() {
    let bench = Bench::new();
    let facts = Arc::new(bench.facts(Arc::new(SystemExec::new()), |_| ()));
    let reporter = bench.reporter(facts).await;
    let before_setup = server_record(&reporter).await;
    assert_eq!(invalid_because(&before_setup).as_deref(), Some("setup"));
    setup::complete_by_itself(bench.folder.path(), Timestamp::UNIX_EPOCH).await.unwrap();
    let server = server_record(&reporter).await;
    assert_eq!(invalid_because(&server), None, "{server:#}");
    let degraded = server["sysinfo"]["Muster"]["degraded"].as_array().unwrap();
    // Whoever runs the tests may not have the right to listen.
    let others = degraded.iter().filter(|it| !it.to_string().contains("CAP_NET_RAW"));
    assert_eq!(others.count(), 0, "{degraded:?}");
}

#[tokio::test]
async fn a_pool_that_can_not_be_used_is_named_in_sysinfo_until_it_is_back() {
    let (bench, pool) = (Bench::new(), tempfile::tempdir().unwrap());
    let facts = Arc::new(bench.facts(Arc::new(SystemExec::new()), |_| ()));
    let reporter = Arc::new(bench.reporter_of_pool_in(pool.path(), facts).await);
    let cancelled = CancellationToken::new();
    let running = tokio::spawn({
        let (reporter, cancelled) = (Arc::clone(&reporter), cancelled.clone());
        async move { reporter.run(cancelled).await }
    });
    let mut documents = reporter.sysinfo();
    // As if its file system were mounted elsewhere.
    let (marker, aside) = (pool.path().join("muster-pool.json"), pool.path().join("aside"));
    for (from, to, is_named) in [(&marker, &aside, true), (&aside, &marker, false)] {
        std::fs::rename(from, to).unwrap();
        reporter.sample(PoolAge::Fresh).await.unwrap();
        let named = |document: &Arc<SysinfoDocument>| {
            document.sysinfo.get("Muster").map(|block| block["degraded"].to_string())
        };
        let told = documents.wait_for(|document| {
            named(document).is_some_and(|degraded| degraded.contains("zones") == is_named)
        });
        told.await.unwrap();
    }
    cancelled.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn the_allocator_accepts_a_simulated_host() {
    let bench = Bench::new();
    let boot = Timestamp::from_second(1_700_000_000).unwrap();
    let facts = SimFacts::new(SERVER.parse().unwrap(), 300, boot, "boot");
    let server = server_record(&bench.reporter(Arc::new(facts)).await).await;
    assert_eq!(invalid_because(&server), None, "{server:#}");
}

#[tokio::test]
async fn types_are_those_of_smartos() {
    let bench = Bench::new();
    let facts = bench.facts(Arc::new(SystemExec::new()), |_| ());
    let document = facts.sysinfo().await;
    for name in ["Boot Time", "MiB of Memory", "Setup", "SDC Version", "Live Image", "Hostname"] {
        assert!(document[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    for name in ["CPU Total Cores", "CPU Online Count", "CPU Count", "CPU Core Count"] {
        assert!(document[name].as_u64().is_some_and(|count| count > 0), "{name}");
    }
    for name in ["VM Capable", "Bhyve Capable", "HVM API"] {
        assert!(document[name].is_boolean(), "{name}");
    }
    for name in ["Boot Parameters", "Disks", "Psrinfo", "Link Aggregations", "Muster"] {
        assert!(document[name].is_object(), "{name}");
    }
    assert_eq!(document["SDC Agents"][0], json!({ "name": "cn-agent", "version": "2.14.0" }));
    assert!(document["MiB of Memory"].as_str().unwrap().parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn a_host_that_tells_nothing_still_has_a_document() {
    let bench = Bench::new();
    let root = bench.folder.path().join("empty");
    let facts = bench.facts(Arc::new(FakeExec::default()), |config| config.root = root);
    let document = facts.sysinfo().await;
    assert_eq!(
        document["Muster"]["degraded"],
        json!(["system", "cpu", "memory", "network", "disks"])
    );
    assert_eq!(document["UUID"], SERVER);
    assert_eq!(document["Hostname"], "localhost");
    assert_eq!(document["Live Image"], muster_shared::platform::BUILT);
    assert_eq!(document["Network Interfaces"], json!({}));
    assert_eq!(document["CPU Online Count"], 1);
    facts.figures().await.unwrap_err();
}

#[tokio::test]
async fn the_document_is_written_for_local_tools() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let path = bench.folder.path().join("sysinfo.json");
    let target = path.clone();
    let facts = bench.facts(Arc::new(SystemExec::new()), |config| {
        config.publish_to = Some(target);
    });
    let document = facts.sysinfo().await;
    let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, Value::Object(document));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn devices_of_guests_do_not_change_the_fingerprint() {
    let bench = Bench::new();
    let root = bench.folder.path().join("root");
    let facts = bench.facts(Arc::new(FakeExec::default()), |config| config.root = root.clone());
    let add = |device: &str| std::fs::create_dir_all(root.join("sys").join(device)).unwrap();
    add("class/net/eth0");
    let before = facts.fingerprint().await;
    for device in ["class/net/tap7", "class/net/veth1a", "block/zd16", "block/loop0"] {
        add(device);
        assert_eq!(facts.fingerprint().await, before, "{device}");
    }
    // What an agent made says so.
    add("class/net/mt-one");
    assert_ne!(facts.fingerprint().await, before);
    let alias = root.join("sys/class/net/mt-one/ifalias");
    std::fs::write(alias, format!("muster server={SERVER} nic=02:00:00:00:00:01\n")).unwrap();
    assert_eq!(facts.fingerprint().await, before);
    add("block/nvme1n1");
    assert_ne!(facts.fingerprint().await, before);
}

#[track_caller]
fn ip(words: &str) {
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn an_interface_tells_its_neighbour_and_what_went_wrong() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        println!("SKIPPED: no right to make a network namespace");
        return;
    }
    ip("link add cable0 type veth peer name far0");
    ip("link set cable0 up");
    ip("link set far0 up");
    let bench = Bench::new();
    let root = bench.folder.path().join("root");
    let facts = bench.facts(Arc::new(SystemExec::new()), |config| config.root = root.clone());
    let tell = |name: &str, text: &str| {
        let file = root.join("sys/class/net/cable0").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    tell("operstate", "up\n");
    tell("speed", "25000\n");
    tell("statistics/rx_errors", "3\n");
    let shown = facts.sysinfo().await["Network Interfaces"]["cable0"].clone();
    assert_eq!(shown["Speed Mb"], 25_000, "{shown:#}");
    let counters = json!({ "rx_errors": 3, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0 });
    assert_eq!((&shown["Counters"], shown.get("LLDP Neighbor")), (&counters, None));
    let (alone, before) = (facts.fingerprint().await, facts.sysinfo().await);
    let index = nix::net::if_::if_nametoindex("far0").unwrap();
    let far = EthernetListener::open(index, frame::ETHERTYPE, frame::GROUP).unwrap();
    let name = frame::tests::tlv(5, b"leaf-1");
    let said = [frame::tests::begin("7", 120), name, vec![0, 0]].concat();
    far.send(frame::GROUP, frame::ETHERTYPE, &said).unwrap();
    assert_ne!(facts.fingerprint().await, alone, "it is looked at anew");
    let document = facts.sysinfo().await;
    let neighbour = &document["Network Interfaces"]["cable0"]["LLDP Neighbor"];
    let expected = json!({
        "Chassis ID": "02:00:00:00:00:09", "Port ID": "7", "System Name": "leaf-1",
    });
    assert_eq!(*neighbour, expected);
    assert_ne!(crate::report::hash(&document), crate::report::hash(&before));
    // The document changes with a counter, and is not sent for it.
    tell("statistics/tx_dropped", "9\n");
    let counted = facts.sysinfo().await;
    assert_ne!(counted, document);
    assert_eq!(crate::report::hash(&counted), crate::report::hash(&document));
    let now = facts.interfaces().await;
    let cable = now.iter().find(|interface| interface.name == "cable0").unwrap();
    assert_eq!((cable.up, cable.speed_mb, cable.counters.tx_dropped), (true, Some(25_000), 9));
    assert_eq!(cable.neighbour.as_ref().unwrap().system_name.as_deref(), Some("leaf-1"));
}

#[tokio::test]
async fn units_are_found_where_packages_put_them() {
    let bench = Bench::new();
    let root = bench.folder.path().to_owned();
    let units = root.join("usr/lib/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::write(units.join("other-agent.service"), "").unwrap();
    let facts = bench.facts(Arc::new(SystemExec::new()), |config| config.root = root);
    assert!(facts.has_service("other-agent").await);
    for name in ["another", "../system/other-agent", ""] {
        assert!(!facts.has_service(name).await, "{name}");
    }
}

#[tokio::test]
async fn the_fingerprint_follows_the_setup_record() {
    let bench = Bench::new();
    let facts = bench.facts(Arc::new(SystemExec::new()), |_| ());
    let before = facts.fingerprint().await;
    assert_eq!(before, facts.fingerprint().await);
    setup::complete_by_itself(bench.folder.path(), Timestamp::UNIX_EPOCH).await.unwrap();
    assert_ne!(before, facts.fingerprint().await);
}
