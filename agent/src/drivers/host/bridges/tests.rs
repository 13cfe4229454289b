//! On simulated links, and on the kernel's own in a network namespace of the test.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::drivers::faults::{Fault, Faults};
use crate::drivers::network::links::NetlinkLinks;
use crate::drivers::network::links::sim::SimLinks;

const SERVER: Uuid = Uuid::from_u128(0x5e);
const OTHER: Uuid = Uuid::from_u128(7 << 100);

fn mac(number: usize) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

fn wanted(nic: usize, tags: &[&str]) -> NicBridge {
    NicBridge { nic: mac(nic), tags: tags.iter().map(|tag| (*tag).to_owned()).collect() }
}

fn interface(number: usize) -> Link {
    let name = format!("eth{number}");
    Link { name, mac: mac(number), is_interface: true, up: true, ..Link::default() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A host with three interfaces, each with an address.
fn host(faults: Faults) -> SimLinks {
    let links = SimLinks::new(faults);
    for number in 0..3 {
        links.add(interface(number));
        links.add_address(&format!("eth{number}"), ip(&format!("10.0.{number}.1")), false);
    }
    links
}

async fn set(links: &SimLinks, wanted: &[NicBridge]) -> Vec<String> {
    converge(links, SERVER.into(), wanted).await.unwrap()
}

/// Bridges with their further names and their ports.
fn shape(links: &SimLinks) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let all = links.all();
    let ports = |bridge: &Link| {
        let ports = all.iter().filter(|link| link.bridge == Some(bridge.index));
        ports.map(|link| link.name.clone()).collect()
    };
    let bridges = all.iter().filter(|link| link.is_bridge);
    bridges.map(|it| (it.name.clone(), (it.other_names.clone(), ports(it)))).collect()
}

fn none() -> Vec<String> {
    Vec::new()
}

#[tokio::test]
async fn the_hosts_addresses_are_where_its_interface_is() {
    let links = host(Faults::none());
    let before = links.addresses();
    assert_eq!(
        set(&links, &[wanted(0, &["admin", "external"]), wanted(1, &["storage"])]).await,
        none()
    );
    let expected = BTreeMap::from([
        ("mt-admin".to_owned(), (vec!["mt-external".to_owned()], vec!["eth0".to_owned()])),
        ("mt-storage".to_owned(), (none(), vec!["eth1".to_owned()])),
    ]);
    assert_eq!(shape(&links), expected);
    assert_eq!(links.addresses()[&ip("10.0.0.1")], "mt-admin");
    assert_eq!(links.addresses()[&ip("10.0.2.1")], "eth2");
    assert_eq!(links.get("mt-admin").unwrap().mac, mac(0));
    // A tag goes to another interface, with its guests; the addresses stay.
    assert_eq!(set(&links, &[wanted(0, &["external"]), wanted(2, &["admin"])]).await, none());
    let expected = BTreeMap::from([
        ("mt-admin".to_owned(), (none(), vec!["eth2".to_owned()])),
        ("mt-external".to_owned(), (none(), vec!["eth0".to_owned()])),
    ]);
    assert_eq!(shape(&links), expected);
    assert_eq!(links.addresses()[&ip("10.0.0.1")], "mt-external");
    assert_eq!(links.addresses()[&ip("10.0.2.1")], "mt-admin");
    // A bridge that somebody removed, and an address that somebody put back.
    links.take_away("mt-admin");
    links.add_address("eth2", ip("10.0.2.9"), false);
    assert_eq!(set(&links, &[wanted(0, &["external"]), wanted(2, &["admin"])]).await, none());
    assert_eq!(shape(&links), expected);
    assert_eq!(links.addresses()[&ip("10.0.2.9")], "mt-admin");
    assert_eq!(set(&links, &[]).await, none());
    assert_eq!(shape(&links), BTreeMap::new());
    let mut after = links.addresses();
    assert_eq!(after.remove(&ip("10.0.2.9")).as_deref(), Some("eth2"));
    // The address of the bridge that was removed went with it.
    assert_eq!(after, BTreeMap::from_iter(before.into_iter().filter(|(_, on)| on != "eth2")));
}

#[tokio::test]
async fn what_others_have_made_is_left_alone() {
    let links = host(Faults::none());
    let bridge = |name: &str| Link { name: name.to_owned(), is_bridge: true, ..Link::default() };
    links.add(bridge("mt-one"));
    links.add(bridge("br0"));
    let text = |amiss: Vec<String>| amiss.join("\n");
    let amiss = text(set(&links, &[wanted(0, &["one"])]).await);
    assert!(amiss.contains("mt-one") && amiss.contains("eth0 is no port of it"), "{amiss}");
    let port = links.get("eth0").unwrap().index;
    let index = |name: &str| links.get(name).unwrap();
    links.join(port, &index("br0")).await.unwrap();
    let amiss = text(set(&links, &[wanted(0, &["two"])]).await);
    assert!(amiss.contains("eth0 is a port of br0"), "{amiss}");
    // With the interface in it, it is as good as one of the agent's own.
    links.join(port, &index("mt-one")).await.unwrap();
    assert_eq!(set(&links, &[wanted(0, &["one"])]).await, none());
    // Another agent on this host.
    let theirs = [wanted(1, &["storage"])];
    assert_eq!(converge(&links, OTHER.into(), &theirs).await.unwrap(), none());
    assert_eq!(set(&links, &[wanted(0, &["one"]), wanted(1, &["storage"])]).await, none());
    assert_eq!(set(&links, &[]).await, none());
    let names: Vec<String> = shape(&links).into_keys().collect();
    assert_eq!(names, ["br0", "mt-one", "mt-storage"]);
    assert_eq!(links.addresses()[&ip("10.0.0.1")], "eth0");
}

#[tokio::test]
async fn a_tag_moves_between_interfaces_at_once() {
    let links = host(Faults::none());
    let apart = [wanted(0, &["storage"]), wanted(2, &["admin", "external"])];
    let together = [wanted(2, &["admin", "storage"])];
    for tags in [&apart[..], &together, &apart, &together] {
        assert_eq!(set(&links, tags).await, none());
    }
}

#[tokio::test]
async fn an_interface_that_is_missing_or_leased_is_named() {
    let links = host(Faults::none());
    links.add_address("eth1", ip("10.0.1.77"), true);
    let amiss = set(&links, &[wanted(9, &["gone"]), wanted(1, &["leased"])]).await;
    assert!(amiss[0].contains("02:00:00:00:00:09 (nic tag gone)"), "{amiss:?}");
    assert!(amiss[1].contains("10.0.1.77") && amiss[1].contains("eth1"), "{amiss:?}");
    // Its guests stay in the network, and it is put in when it comes.
    assert_eq!(shape(&links), BTreeMap::from([("mt-gone".to_owned(), (none(), none()))]));
    links.add(interface(9));
    assert_eq!(set(&links, &[wanted(9, &["gone"])]).await, none());
    assert_eq!(shape(&links)["mt-gone"].1, ["eth9"]);
    // It goes once more, and returns.
    links.take_away("eth9");
    let amiss = set(&links, &[wanted(9, &["gone"])]).await;
    assert!(amiss[0].contains("02:00:00:00:00:09 (nic tag gone)"), "{amiss:?}");
    links.add(interface(9));
    assert_eq!(set(&links, &[wanted(9, &["gone"])]).await, none());
    assert_eq!(shape(&links)["mt-gone"].1, ["eth9"]);
}

#[tokio::test]
async fn a_lease_that_begins_on_a_port_is_named() {
    let links = host(Faults::none());
    let tags = [wanted(1, &["storage"])];
    assert_eq!(set(&links, &tags).await, none());
    links.add_address("eth1", ip("10.0.1.77"), true);
    let named = |amiss: &[String]| {
        amiss
            .iter()
            .any(|it| it.contains("10.0.1.77") && it.contains("eth1 is a port of mt-storage"))
    };
    let amiss = set(&links, &tags).await;
    assert!(named(&amiss), "{amiss:?}");
    assert_eq!(shape(&links)["mt-storage"].1, ["eth1"], "its guests stay connected");
    assert!(named(&set(&links, &tags).await), "as long as it is there");
}

/// Tables of tags: at most one interface for each of four tags.
fn tables() -> impl Strategy<Value = Vec<NicBridge>> {
    proptest::collection::vec(proptest::option::of(0_usize..3), 4).prop_map(|homes| {
        let tags = ["admin", "external", "customer_network", "customer_network_2"];
        let on = |nic: usize| {
            let homes = homes.iter().zip(tags).filter(|(home, _)| **home == Some(nic));
            homes.map(|(_, tag)| tag).collect::<Vec<_>>()
        };
        (0..3).map(|nic| wanted(nic, &on(nic))).filter(|it| !it.tags.is_empty()).collect()
    })
}

const OPERATIONS: [&str; 6] =
    ["links.list", "links.bridge", "links.name", "links.wire", "links.hand_over", "links.remove"];

proptest! {
    /// Wherever a trial is cut off, what was before comes back, and no address is ever lost.
    #[test]
    fn a_trial_that_is_cut_off_anywhere_can_be_taken_back(
        old in tables(),
        new in tables(),
        operation in 0..OPERATIONS.len(),
        nth in 1_u64..6,
        done in any::<bool>(),
    ) {
        let run = async {
            let faults = Faults::none();
            let links = host(faults.clone());
            prop_assert_eq!(set(&links, &old).await, none());
            let (before, addresses) = (shape(&links), links.addresses());
            let fault = if done { Fault::after() } else { Fault::before() };
            faults.fail_nth(OPERATIONS[operation], nth, fault);
            let tried = converge(&links, SERVER.into(), &new).await;
            prop_assert_eq!(links.addresses().len(), 3, "{:?}", tried);
            // The fault may strike only now.
            let again = converge(&links, SERVER.into(), &old).await;
            if again.is_err() || again.is_ok_and(|amiss| !amiss.is_empty()) {
                prop_assert_eq!(set(&links, &old).await, none());
            }
            let sorted = |shape: BTreeMap<String, (Vec<String>, Vec<String>)>| {
                let names = |mut names: Vec<String>| { names.sort(); names };
                shape.into_iter().map(|(name, (others, ports))| (name, names(others), ports)).collect::<Vec<_>>()
            };
            prop_assert_eq!(sorted(shape(&links)), sorted(before));
            prop_assert_eq!(links.addresses(), addresses);
            Ok(())
        };
        run.now_or_never().expect("nothing takes time")?;
    }
}

#[track_caller]
fn run(words: &str) -> String {
    let argv: Vec<&str> = words.split(' ').collect();
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new(argv[0]).args(&argv[1..]).output().unwrap();
    assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Addresses and routes of the whole host, a line each.
fn connected() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for question in ["ip -o -4 addr", "ip -o -6 addr show scope global"] {
        let shown = run(question);
        let words =
            |line: &str| line.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ");
        lines.extend(shown.lines().map(words));
    }
    for question in ["ip -4 route", "ip -6 route", "ip -4 route show table 77"] {
        let shown = run(question);
        lines
            .extend(shown.lines().filter(|line| !line.contains("proto kernel")).map(str::to_owned));
    }
    lines.sort();
    lines
}

#[tokio::test]
async fn the_kernels_own_links_keep_addresses_and_routes() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        println!("SKIPPED: no right to make a network namespace");
        return;
    }
    run("ip link set lo up");
    for number in 0..2 {
        run(&format!(
            "ip link add eth{number} address {} type veth peer name far{number}",
            mac(number)
        ));
        run(&format!("ip link set eth{number} up"));
        run(&format!("ip link set far{number} up"));
    }
    for address in ["10.1.0.1/24", "10.1.0.2/24", "10.2.0.1/30", "fd77::1/64"] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        run(&format!("ip addr add {address} dev eth0{nodad}"));
    }
    run("ip route add default via 10.1.0.254 dev eth0 src 10.1.0.2 metric 7 mtu 1400");
    run("ip route add 192.0.2.0/24 via 10.2.0.2 dev eth0");
    run("ip route add 198.51.100.0/24 dev eth0 table 77");
    run("ip -6 route add 2001:db8::/32 via fd77::2 dev eth0");
    let before = connected();
    let wires: Arc<dyn Wires> = Arc::new(NetlinkLinks);
    let set = async |wanted: &[NicBridge]| converge(&*wires, SERVER.into(), wanted).await.unwrap();
    let link = async |name: &str| {
        let found = wires.list().await.unwrap();
        found.into_iter().find(|link| link.is_called(name))
    };
    for table in [
        vec![wanted(0, &["admin", "external"])],
        vec![wanted(0, &["external"]), wanted(1, &["admin"])],
        vec![wanted(0, &["external", "customer_network"])],
    ] {
        for _ in 0..2 {
            assert_eq!(set(&table).await, none());
        }
        let bridge = link("mt-external").await.unwrap();
        assert_eq!((bridge.mac.clone(), bridge.up), (mac(0), true), "{bridge:?}");
        assert_eq!(link("eth0").await.unwrap().bridge, Some(bridge.index));
        let moved = connected().join("\n").replace(&bridge.name, "eth0");
        let mut moved: Vec<&str> = moved.lines().collect();
        moved.sort_unstable();
        assert_eq!(moved, before);
    }
    assert!(link("mt-custome6d77").await.is_some() && link("mt-admin").await.is_none());
    run("ip addr add 10.9.0.1/24 dev eth1 valid_lft 600 preferred_lft 600");
    let amiss = set(&[wanted(0, &["external"]), wanted(1, &["storage"])]).await;
    assert!(amiss[0].contains("10.9.0.1"), "{amiss:?}");
    run("ip addr del 10.9.0.1/24 dev eth1");
    // A bridge that was begun, and never got its name.
    run("ip link add mtnew00000000 type bridge");
    let both = [wanted(0, &["external"]), wanted(1, &["storage"])];
    assert_eq!(set(&both).await, none());
    run("ip addr add 10.9.0.2/24 dev eth1 valid_lft 600 preferred_lft 600");
    let amiss = set(&both).await;
    assert!(amiss[0].contains("10.9.0.2") && amiss[0].contains("port of mt-storage"), "{amiss:?}");
    run("ip addr del 10.9.0.2/24 dev eth1");
    // An interface goes away and returns.
    run("ip link del eth1");
    let amiss = set(&both).await;
    assert!(amiss[0].contains(&format!("{} (nic tag storage)", mac(1))), "{amiss:?}");
    run(&format!("ip link add eth1 address {} type veth peer name far1", mac(1)));
    assert_eq!(set(&both).await, none());
    let (eth1, storage) = (link("eth1").await.unwrap(), link("mt-storage").await.unwrap());
    assert_eq!((eth1.bridge, eth1.up), (Some(storage.index), true));
    assert_eq!(set(&[]).await, none());
    assert_eq!(connected(), before);
    let left: Vec<String> = wires.list().await.unwrap().into_iter().map(|link| link.name).collect();
    assert!(left.iter().all(|name| !name.starts_with("mt")), "{left:?}");
}
