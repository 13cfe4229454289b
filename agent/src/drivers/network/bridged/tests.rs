//! On simulated links, and on the kernel's own in a network namespace of the test.

mod firewall;
mod frames;

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::drivers::faults::{Fault, Faults};
use crate::drivers::network::UserNetworks;
use crate::drivers::network::links::NetlinkLinks;
use crate::drivers::network::links::sim::SimLinks;
use crate::failure::TaskFailure;
use crate::host::{Command, FakeExec, SystemExec};
use crate::vms::sim::record;

const SERVER: Uuid = Uuid::from_u128(0x5e);

/// A node with these links.
struct Node {
    links: Arc<dyn Links>,
    data: tempfile::TempDir,
    exec: SharedExec,
    /// Tags whose guests reach the node's own addresses.
    server_tags: Vec<String>,
}

impl Node {
    /// With the host's own links and `nft`.
    fn real() -> Self {
        Self {
            links: Arc::new(NetlinkLinks),
            data: tempfile::tempdir().unwrap(),
            exec: Arc::new(SystemExec::new()),
            server_tags: Vec::new(),
        }
    }

    fn simulated(links: &SimLinks) -> Self {
        let exec = FakeExec::default();
        exec.prints(&["nft"], "");
        let (links, exec) = (Arc::new(links.clone()), Arc::new(exec));
        Self { links, data: tempfile::tempdir().unwrap(), exec, server_tags: Vec::new() }
    }

    async fn agent(&self) -> BridgedNetworks {
        self.agent_of(SERVER).await
    }

    async fn agent_of(&self, server: Uuid) -> BridgedNetworks {
        let config = BridgedConfig {
            server_uuid: server.into(),
            cluster: Cluster::unknown(),
            user_tags: vec!["private".to_owned()],
            server_tags: self.server_tags.clone(),
            prefix: "muster".to_owned(),
            data_dir: self.data.path().join(server.to_string()),
            run_dir: self.data.path().join("run"),
            exec: self.exec.clone(),
        };
        let user = Arc::new(UserNetworks::restricted());
        BridgedNetworks::open(config, self.links.clone(), user).await
    }
}

fn bridge(name: &str) -> Link {
    Link { name: name.to_owned(), is_bridge: true, mtu: 1500, up: true, ..Link::default() }
}

fn nics(vm: u128, nics: Value) -> (VmUuid, Vec<Nic>) {
    let mut vm = record(vm);
    vm.properties.insert("nics".to_owned(), nics);
    (vm.uuid, Nic::of(&vm.properties).unwrap())
}

fn tap(name: &str, mtu: u32) -> Backend {
    Backend::Tap { name: name.to_owned(), mtu }
}

/// What holds on every host with a bridge `mt-one`. `host` tells of its links.
async fn conforms(node: &Node) {
    let (links, networks) = (&node.links, node.agent().await);
    let (vm, nics) = nics(
        0xfeed_beef_u128 << 96,
        json!([
            { "mac": "02:00:00:00:00:01", "nic_tag": "one", "mtu": 1400 },
            { "mac": "02:00:00:00:00:02", "nic_tag": "private" },
            { "mac": "02:00:00:00:00:03", "nic_tag": "nowhere" },
            { "mac": "02:00:00:00:00:04", "nic_tag": "one" },
        ]),
    );
    let find =
        async |name: &str| links.list().await.unwrap().into_iter().find(|link| link.name == name);
    let made = networks.attach(vm, &nics).await.unwrap();
    let backends: Vec<Backend> = made.iter().map(|attached| attached.backend.clone()).collect();
    let user = Backend::User { restricted: true };
    let (first, last) = ("mtfeedbeef0", "mtfeedbeef3");
    assert_eq!(backends, [tap(first, 1400), user.clone(), user, tap(last, 1500)]);
    let one = find("mt-one").await.unwrap();
    for name in [first, last] {
        let link = find(name).await.unwrap();
        assert_eq!((link.bridge, link.mtu, link.up), (Some(one.index), 1500, true), "{link:?}");
    }
    let holders = networks.holders().await.unwrap();
    assert_eq!(holders, BTreeMap::from([(vm, vec![first.to_owned(), last.to_owned()])]));
    // Again, as the next agent does.
    let kept = find(first).await.unwrap();
    assert_eq!(node.agent().await.attach(vm, &nics).await.unwrap(), made);
    assert_eq!(find(first).await.unwrap(), kept);
    // Fewer.
    assert_eq!(networks.attach(vm, &nics[..2]).await.unwrap(), made[..2]);
    assert_eq!(find(last).await, None);
    // Another server's, and one of nobody.
    let other = node.agent_of(Uuid::from_u128(7 << 100)).await;
    assert!(other.holders().await.unwrap().is_empty());
    other.detach(vm).await.unwrap();
    assert_eq!(find(first).await.unwrap(), kept);
    let failure = TaskFailure::from(other.attach(vm, &nics[..1]).await.unwrap_err());
    assert!(failure.message.contains("network link mtfeedbeef0"), "{failure:?}");
    networks.detach(vm).await.unwrap();
    networks.detach(vm).await.unwrap();
    assert!(networks.holders().await.unwrap().is_empty() && find(first).await.is_none());
    assert!(find("mt-one").await.is_some() && networks.degraded().is_empty());
}

#[tokio::test]
async fn simulated_links_conform() {
    let links = SimLinks::default();
    for name in ["mt-one", "mt-private"] {
        links.add(bridge(name));
    }
    conforms(&Node::simulated(&links)).await;
}

#[track_caller]
fn ip(words: &str) {
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "ip {words}");
}

/// From here on this test's thread, and what it starts, has a network of its own.
fn enter_own_network() -> bool {
    match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(nix::errno::Errno::EPERM) => {
            println!("SKIPPED: no right to make a network namespace");
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    ip("link set lo up");
    true
}

#[tokio::test]
async fn the_kernels_links_conform() {
    if !enter_own_network() {
        return;
    }
    for name in ["mt-one", "mt-private"] {
        ip(&format!("link add {name} type bridge"));
        ip(&format!("link set {name} up"));
    }
    let node = Node::real();
    conforms(&node).await;
    assert_eq!(tables(&node).await, "");
}

async fn tables(node: &Node) -> String {
    let list = Command::new(["nft", "list", "tables"], Duration::from_secs(60));
    let output = node.exec.run(&list, &CancellationToken::new()).await.unwrap();
    String::from_utf8(output.checked("nft").unwrap().stdout).unwrap()
}

#[tokio::test]
async fn taps_go_back_into_a_bridge_that_was_made_anew() {
    if !enter_own_network() {
        return;
    }
    ip("link add mt-one type bridge");
    let node = Node::real();
    let (links, networks) = (&node.links, node.agent().await);
    let (vm, nics) = nics(1, json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "one" }]));
    networks.attach(vm, &nics).await.unwrap();
    ip("link del mt-one");
    networks.mend().await;
    assert_eq!(networks.degraded(), ["bridge mt-one is gone: its guests reach nothing"]);
    // A change of its VM leaves it to the guest that has it.
    networks.attach(vm, &nics).await.unwrap();
    assert_eq!(networks.holders().await.unwrap()[&vm], ["mt000000000"]);
    ip("link add mt-one mtu 1400 type bridge");
    networks.mend().await;
    assert!(networks.degraded().is_empty());
    let found = links.list().await.unwrap();
    let get = |name: &str| found.iter().find(|link| link.name == name).unwrap();
    let (tap, one) = (get("mt000000000"), get("mt-one"));
    assert_eq!((tap.bridge, tap.mtu, tap.up), (Some(one.index), one.mtu, true));
}

#[tokio::test]
async fn a_nic_is_in_its_vlan_alone() {
    let links = SimLinks::default();
    links.add(Link { default_vlan: Some(1), ..bridge("mt-one") });
    let node = Node::simulated(&links);
    let networks = node.agent().await;
    let in_vlan = |vlan: u16| {
        nics(1, json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "one", "vlan_id": vlan }]))
    };
    for vlan in [7, 8, 0] {
        let (vm, nics) = in_vlan(vlan);
        networks.attach(vm, &nics).await.unwrap();
        assert_eq!(links.vlan("mt000000000"), Some(vlan));
    }
    // A tap that lost its bridge goes back into its VLAN, also by the next agent.
    let (vm, nics) = in_vlan(7);
    networks.attach(vm, &nics).await.unwrap();
    links.take_away("mt-one");
    links.add(Link { default_vlan: Some(1), ..bridge("mt-one") });
    links.forget_vlans();
    node.agent().await;
    assert_eq!(links.vlan("mt000000000"), Some(7));
}

/// A bridge that carries several tags has their names, and each of them may come to be its first.
#[tokio::test]
async fn a_tag_may_be_a_further_name_of_a_bridge() {
    let links = SimLinks::default();
    let names =
        |name: &str, other: &str| Link { other_names: vec![other.to_owned()], ..bridge(name) };
    links.add(names("mt-admin", "mt-one"));
    let node = Node::simulated(&links);
    let networks = node.agent().await;
    let (vm, nics) = nics(1, json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "one" }]));
    let made = networks.attach(vm, &nics).await.unwrap();
    assert_eq!(made[0].backend, tap("mt000000000", 1500));
    let is_in = |name: &str| {
        let bridge = links.get(name).unwrap();
        links.get("mt000000000").unwrap().bridge == Some(bridge.index)
    };
    assert!(is_in("mt-admin"));
    links.take_away("mt-admin");
    links.add(names("mt-one", "mt-storage"));
    networks.mend().await;
    assert!(is_in("mt-one") && networks.degraded().is_empty());
    assert_eq!(networks.attach(vm, &nics).await.unwrap(), made);
}

#[tokio::test]
async fn a_bridge_is_lacking_unless_the_operator_has_made_it_with_the_interface() {
    let links = SimLinks::default();
    let mac = "02:00:00:00:00:a0";
    links.add(bridge("mt-one"));
    let networks = Node::simulated(&links).agent().await;
    assert!(networks.lacks_bridge("one", mac).await.unwrap());
    let bridge = links.get("mt-one").unwrap().index;
    let nic = Link { name: "eth0".to_owned(), mac: mac.to_owned(), ..Link::default() };
    links.add(Link { is_interface: true, bridge: Some(bridge), ..nic });
    assert!(!networks.lacks_bridge("one", "02:00:00:00:00:A0").await.unwrap());
    assert!(networks.lacks_bridge("one", "02:00:00:00:00:a1").await.unwrap());
    assert!(networks.lacks_bridge("two", mac).await.unwrap());
    assert!(!networks.lacks_bridge("private", mac).await.unwrap(), "on user-mode networks");
}

#[tokio::test]
async fn what_was_made_before_a_failure_is_told_and_removed() {
    let faults = Faults::none();
    let links = SimLinks::new(faults.clone());
    links.add(bridge("mt-one"));
    let node = Node::simulated(&links);
    let networks = node.agent().await;
    let (vm, nics) = nics(
        1,
        json!([
            { "mac": "02:00:00:00:00:01", "nic_tag": "one" },
            { "mac": "02:00:00:00:00:02", "nic_tag": "one" },
        ]),
    );
    for operation in ["links.make_tap", "links.plug"] {
        faults.fail_nth(operation, 2, Fault::after());
        networks.attach(vm, &nics).await.unwrap_err();
        assert_eq!(networks.holders().await.unwrap()[&vm].len(), 2, "{operation}");
        networks.detach(vm).await.unwrap();
        assert!(links.get("mt000000000").is_none() && links.get("mt000000001").is_none());
    }
}

#[tokio::test]
async fn without_rights_nics_are_on_user_mode_networks_and_it_says_why() {
    let links = SimLinks::default();
    links.lack(Some("no rights"));
    let node = Node::simulated(&links);
    let networks = node.agent().await;
    assert!(networks.degraded().is_empty(), "nobody asked for bridges here");
    links.add(bridge("mt-one"));
    networks.mend().await;
    assert_eq!(networks.degraded(), ["bridge mt-one is not used: no rights"]);
    let (vm, nics) = nics(1, json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "one" }]));
    let attached = networks.attach(vm, &nics).await.unwrap();
    assert_eq!(attached[0].backend, Backend::User { restricted: true });
    networks.detach(vm).await.unwrap();
}

#[tokio::test]
async fn what_a_bridge_can_not_give_is_refused_by_name() {
    let links = SimLinks::default();
    links.add(bridge("mt-one"));
    let node = Node::simulated(&links);
    let networks = node.agent().await;
    for (nic, published, named) in [
        (json!({ "vlan_id": 7 }), None, "nics.0.vlan_id: bridge mt-one does not keep VLANs apart"),
        (json!({ "vlan_id": 4095 }), None, "nics.0.vlan_id: VLANs have numbers from 1 to 4094"),
        (json!({ "ips": ["192.0.2.7/33"] }), None, "nics.0.ips"),
        (json!({ "mtu": 1501 }), None, "nics.0.mtu: 1501 is more than bridge mt-one carries: 1500"),
        (json!({}), Some("tcp::2222-:22"), "network.user_tags"),
    ] {
        let mut vm = record(1);
        let mut nic = nic;
        nic["nic_tag"] = json!("one");
        vm.properties.insert("nics".to_owned(), json!([nic.clone()]));
        if let Some(published) = published {
            let metadata = json!({ "muster:hostfwd": published });
            vm.properties.insert("internal_metadata".to_owned(), metadata);
        }
        let nics = Nic::of(&vm.properties).unwrap();
        for refused in [
            networks.check(&vm.properties).await.unwrap_err(),
            networks.attach(vm.uuid, &nics).await.unwrap_err(),
        ] {
            let failure = TaskFailure::from(refused);
            assert_eq!(failure.code, Code::InvalidParameters);
            assert!(failure.message.contains(named), "{failure:?}");
        }
        // The same on a user-mode network, which has no VLANs either.
        nic["nic_tag"] = json!("private");
        let in_vlan = nic.get("vlan_id").is_some();
        vm.properties.insert("nics".to_owned(), json!([nic]));
        assert_eq!(networks.check(&vm.properties).await.is_err(), in_vlan, "{nic}");
    }
}

#[tokio::test]
async fn a_vlan_without_a_bridge_is_refused_by_name() {
    let networks = Node::simulated(&SimLinks::default()).agent().await;
    // A tag without a bridge, and one whose NICs are on user-mode networks.
    for tag in ["nowhere", "private"] {
        let nic = json!({ "mac": "02:00:00:00:00:01", "nic_tag": tag, "vlan_id": 7 });
        let mut vm = record(1);
        vm.properties.insert("nics".to_owned(), json!([nic]));
        let nics = Nic::of(&vm.properties).unwrap();
        for refused in [
            networks.check(&vm.properties).await.unwrap_err(),
            networks.attach(vm.uuid, &nics).await.unwrap_err(),
        ] {
            let failure = TaskFailure::from(refused);
            assert_eq!(failure.code, Code::InvalidParameters);
            assert!(failure.message.starts_with("nics.0.vlan_id: "), "{failure:?}");
            assert!(failure.message.contains("make a bridge"), "{failure:?}");
        }
    }
}

#[tokio::test]
async fn without_nft_a_nic_that_is_to_be_filtered_is_refused() {
    let links = SimLinks::default();
    links.add(bridge("mt-one"));
    let exec = FakeExec::default();
    exec.fails(&["nft"], 127, "nft: not found");
    let server_tags = vec!["one".to_owned()];
    let node = Node { exec: Arc::new(exec), server_tags, ..Node::simulated(&links) };
    let networks = node.agent().await;
    assert!(networks.degraded()[0].contains("package nftables"), "{:?}", networks.degraded());
    let mut vm = record(1);
    let (uuid, filtered) = nics(1, json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "one" }]));
    vm.properties.insert("nics".to_owned(), json!([filtered[0].described]));
    for refused in [
        networks.check(&vm.properties).await.unwrap_err(),
        networks.attach(uuid, &filtered).await.unwrap_err(),
    ] {
        assert_eq!(TaskFailure::from(refused).code, Code::HostToolMissing);
    }
    assert_eq!(links.get("mt000000000").unwrap().bridge, None, "nothing filters it");
    networks.detach(uuid).await.unwrap();
    assert_eq!(links.get("mt000000000"), None);
    let (_, free) = nics(
        1,
        json!([{
            "mac": "02:00:00:00:00:01", "nic_tag": "one", "allow_mac_spoofing": true,
            "allow_ip_spoofing": true, "allow_dhcp_spoofing": true, "allow_restricted_traffic": true,
            "allow_unfiltered_promisc": true,
        }]),
    );
    vm.properties.insert("nics".to_owned(), json!([free[0].described]));
    networks.check(&vm.properties).await.unwrap();
    networks.attach(uuid, &free).await.unwrap();
}
