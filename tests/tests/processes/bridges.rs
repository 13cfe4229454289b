//! Guests on a bridge, in a network namespace of the test: they reach each other and the host by
//! the addresses of their records, and by no others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::own_network::{self, ports, run, taps};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// VMs that are made and destroyed.
const CREATES: u32 = 20;
/// Longest time until nothing of them is left.
const SETTLE: Duration = Duration::from_secs(20);

/// A bridge, on which the host has addresses.
fn enter_own_network() -> bool {
    let entered = own_network::enter();
    if entered {
        own_network::add_bridge("one", &["10.77.0.1/24", "fd77::1/64"]);
    }
    entered
}

/// A guest's page, or why there is none.
fn page(address: &str) -> Result<String, String> {
    guest::page(address, "/")
}

async fn shows(address: &str, text: &str) {
    wait_for(&format!("{address} answers"), BOOT, || async {
        page(address).and_then(|page| if page.contains(text) { Ok(()) } else { Err(page) })
    })
    .await;
}

/// A VM that takes a further address beside its own, shows what it has, and does `more`.
fn payload(image: &str, number: u8, more: &str, members: &Value) -> Value {
    let script = format!(
        "#!/bin/sh\n\
         ip addr add 10.77.0.2{number}/24 dev eth0\n\
         {more}\n\
         cat /sys/class/net/eth0/mtu /etc/resolv.conf >/run/network\n\
         ip route >>/run/network\n\
         mv /run/network /www/network\n"
    );
    let mut nic = json!({
        "nic_tag": "one", "mac": format!("02:00:00:00:00:0{number}"), "primary": true, "mtu": 1400,
        "ips": [format!("10.77.0.1{number}/24"), format!("fd77::1{number}/64")],
        "gateways": ["10.77.0.1"],
    });
    for (name, value) in members.as_object().expect("an object") {
        nic[name] = value.clone();
    }
    json!({
        "uuid": fresh_uuid(), "brand": "kvm", "ram": 192, "alias": format!("guest{number}"),
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "owner_uuid": fresh_uuid(), "nics": [nic], "resolvers": ["10.77.0.53"],
        "customer_metadata": { "user-script": script },
    })
}

async fn create(client: &Client, agent: &Agent, payload: &Value) -> String {
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let answer = client.post(&path, payload).await.expect(200);
    let task = answer["id"].as_str().expect("a task").to_owned();
    let made = client.complete_task(&task, 240).await;
    made["vm"]["uuid"].as_str().expect("a VM").to_owned()
}

/// The further address of the guest that may have it answers, that of the other one does not.
fn only_the_allowed_one_answers() {
    page("10.77.0.22:80").expect("guest 2 may send from any address");
    let spoofed = page("10.77.0.21:80").expect_err("guest 1 may not");
    assert!(!spoofed.contains("refused"), "{spoofed}");
}

/// Changes guest 1's firewall while it runs.
async fn rules_of_a_firewall_hold_at_once(client: &Client, agent: &Agent, vm: &str) {
    let pids = agent.guest_pids();
    let path = format!("/servers/{}/vms/{vm}/update", agent.server_uuid);
    let update = async |change: Value| {
        let task = client.post(&path, &change).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 120).await
    };
    let rules = |rules: &[&str]| {
        let rules: Vec<Value> =
            rules.iter().map(|rule| json!({ "rule": rule, "enabled": true })).collect();
        json!({ "firewall_enabled": true, "firewall_rules": rules })
    };
    let (v4, v6, other) = ("10.77.0.11:80", "[fd77::11]:80", "10.77.0.12:80");
    let changed = update(rules(&[])).await;
    assert_eq!(changed["pending_reboot"], json!([]));
    page(v4).expect_err("nothing is allowed");
    page(v6).expect_err("nothing is allowed");
    page(other).expect("guest 2 has no firewall");
    update(rules(&["FROM ip 10.77.0.1 TO all vms ALLOW tcp (PORT 80 AND PORT 81)"])).await;
    page(v4).expect("the host is allowed by IPv4");
    page(v6).expect_err("not by IPv6");
    update(rules(&["FROM ip 10.77.0.9 TO all vms ALLOW tcp PORT 80"])).await;
    page(v4).expect_err("another host is allowed");
    update(json!({ "firewall_enabled": false, "firewall_rules": [] })).await;
    page(v4).expect("no firewall");
    page(v6).expect("no firewall");
    assert_eq!(agent.guest_pids(), pids);
}

#[tokio::test]
async fn guests_on_a_bridge_reach_each_other_with_their_own_addresses_alone() {
    if !enter_own_network() {
        return;
    }
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    // The host stands in for everything else on the bridge.
    let reaches_host = r#"network.server_tags=["one"]"#;
    let mut agent = Agent::with(&[&coordinator.agent_url()], &[reaches_host], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    // Guest 1 has an address that the host reaches through guest 2 alone.
    let behind = "ip addr add 10.99.0.1/32 dev eth0";
    let router = "echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects\n\
                  echo 0 >/proc/sys/net/ipv4/conf/eth0/send_redirects\n\
                  ip route add 10.99.0.1/32 via 10.77.0.11\n\
                  echo 1 >/proc/sys/net/ipv4/ip_forward";
    run("ip route add 10.99.0.1/32 via 10.77.0.12");
    let payloads = [
        payload(&image, 1, behind, &json!({ "allowed_ips": ["10.99.0.1"] })),
        payload(&image, 2, router, &json!({ "allow_ip_spoofing": true })),
    ];
    let mut vms = Vec::new();
    for payload in &payloads {
        vms.push(create(&client, &agent, payload).await);
    }
    for (address, name) in [
        ("10.77.0.11:80", "guest1"),
        ("10.77.0.12:80", "guest2"),
        ("[fd77::11]:80", "guest1"),
        ("[fd77::12]:80", "guest2"),
        ("10.99.0.1:80", "guest1"),
    ] {
        shows(address, name).await;
    }
    let network = wait_for("guest 1 tells what it has", BOOT, || async {
        guest::page("10.77.0.11:80", "/network")
    })
    .await;
    for text in ["1400\n", "nameserver 10.77.0.53", "default via 10.77.0.1"] {
        assert!(network.contains(text), "{text:?} in {network}");
    }
    only_the_allowed_one_answers();

    let all = client.get("/vms/usage?max_age=0").await.expect(200);
    for vm in &vms {
        let row = all.as_array().expect("a list").iter().find(|row| row["uuid"] == **vm);
        let net = &row.expect("it runs")["usage"]["net"];
        for counter in ["received_bytes", "sent_bytes"] {
            assert!(net[counter].as_u64() > Some(1000), "{counter} in {net}");
        }
    }
    rules_of_a_firewall_hold_at_once(&client, &agent, &vms[0]).await;

    // The next agent finds guests that run, and a host without the rules of its predecessor.
    agent.kill9();
    run("nft flush ruleset");
    page("10.77.0.21:80").expect("nothing keeps guest 1 from it");
    run("ip neigh flush all");
    agent.restart();
    agent.wait_status(&client, "running", BOOT).await;
    shows("10.77.0.11:80", "guest1").await;
    only_the_allowed_one_answers();
    assert_eq!(taps(), 2);

    for vm in &vms {
        let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
        let task = client.delete(&path).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 120).await;
    }
    assert_eq!((taps(), run("nft list tables").as_str()), (0, ""));
    let kept = std::fs::read_dir(agent.data_dir().join("nics")).expect("the folder");
    assert_eq!(kept.count(), 0);
    assert!(run("ip -o link").contains("mt-one"), "the bridge is the operator's");
}

/// A VM on the bridge `tag`, with the address `NET.NUMBER` and the host as its router, that keeps the
/// page of `peer`.
fn neighbour(image: &str, tag: &str, address: &str, peer: &str, members: &Value) -> Value {
    let (net, number) = address.rsplit_once('.').expect("an address");
    let script = format!(
        "#!/bin/sh\n\
         (until printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {peer} 80 >/run/peer\n\
         [ -s /run/peer ]; do sleep 1; done\n\
         mv /run/peer /www/peer) &\n"
    );
    let mut vm = json!({
        "uuid": fresh_uuid(), "brand": "kvm", "ram": 192, "alias": format!("on-{tag}"),
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "owner_uuid": fresh_uuid(), "customer_metadata": { "user-script": script },
        "nics": [{
            "nic_tag": tag, "mac": format!("02:00:00:00:01:{number}"), "primary": true,
            "ips": [format!("{address}/24")], "gateways": [format!("{net}.1")],
        }],
    });
    for (name, value) in members.as_object().expect("an object") {
        vm[name] = value.clone();
    }
    vm
}

#[tokio::test]
async fn guests_on_two_bridges_and_the_host_reach_each_other_where_the_rules_allow() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    own_network::add_bridge("two", &["10.78.0.1/24"]);
    run("sysctl -q -w net.ipv4.ip_forward=1");
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    // The host is the router between them.
    let is_router = r#"network.server_tags=["one", "two"]"#;
    let agent = Agent::with(&[&coordinator.agent_url()], &[is_router], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let (one, two) = ("10.77.0.11", "10.78.0.12");
    let rules = |allowed: &[&str]| {
        let rules = allowed.iter().map(|from| {
            let rule = format!("FROM ip {from} TO all vms ALLOW tcp PORT 80");
            json!({ "rule": rule, "enabled": true })
        });
        json!({ "firewall_enabled": true, "firewall_rules": rules.collect::<Vec<_>>() })
    };
    // Guest 2 lets in guest 1 alone.
    let second = neighbour(&image, "two", two, one, &rules(&[one]));
    let vm = create(&client, &agent, &second).await;
    create(&client, &agent, &neighbour(&image, "one", one, two, &json!({}))).await;
    shows("10.77.0.11:80", "on-one").await;
    let seen = wait_for("guest 1 reaches guest 2", BOOT, || async {
        guest::page("10.77.0.11:80", "/peer")
    })
    .await;
    assert!(seen.contains("on-two"), "{seen}");
    page("10.78.0.12:80").expect_err("the host is not allowed");

    let update = async |change: Value| {
        let path = format!("/servers/{}/vms/{vm}/update", agent.server_uuid);
        let task = client.post(&path, &change).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 120).await
    };
    update(rules(&[one, "10.78.0.1"])).await;
    page("10.78.0.12:80").expect("the host is allowed now");
    let seen = wait_for("guest 2 reaches guest 1", BOOT, || async {
        guest::page("10.78.0.12:80", "/peer")
    })
    .await;
    assert!(seen.contains("on-one"), "{seen}");
    update(rules(&[])).await;
    page("10.78.0.12:80").expect_err("nobody is allowed");
    page("10.77.0.11:80").expect("guest 1 has no firewall");
}

/// Namespaces of the agent, of what it has started, and of all else in the test's network; and those that
/// something is mounted or open to keep.
fn namespaces(agent: &Agent, pid: u32) -> usize {
    let link = |path: String| std::fs::read_link(path).ok();
    let own = link("/proc/thread-self/ns/net".to_owned());
    let folder = agent.run_dir().display().to_string();
    let is_near = |process: &str| {
        let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let names_it = String::from_utf8_lossy(&command).contains(&folder);
        names_it || link(format!("/proc/{process}/ns/net")) == own
    };
    let names = |folder: String| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let processes = names("/proc".to_owned()).into_iter().filter_map(|path| {
        path.strip_prefix("/proc/").filter(|name| name.parse::<u32>().is_ok()).map(str::to_owned)
    });
    let of_processes = processes.filter(|process| is_near(process));
    let used: BTreeSet<_> =
        of_processes.flat_map(|process| names(format!("/proc/{process}/ns"))).map(link).collect();
    let open = names(format!("/proc/{pid}/fd")).into_iter().filter_map(link);
    let open = open.filter(|target| target.to_string_lossy().contains(":["));
    let kinds = ["net:[", "mnt:[", "pid:[", "user:[", "ipc:[", "uts:[", "cgroup:["];
    let open =
        open.filter(|target| kinds.iter().any(|it| target.to_string_lossy().starts_with(it)));
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    used.len() + open.count() + mounts.lines().filter(|line| line.contains(" - nsfs ")).count()
}

/// Sockets in the test's network, but connections of TCP, which clients keep as they like.
fn sockets() -> usize {
    let lines = |kind: &str| {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{kind}"));
        let table = table.unwrap_or_default();
        table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let kinds = ["unix", "packet", "netlink", "raw", "raw6", "udp", "udp6"];
    let others: usize = kinds.iter().map(|kind| lines(kind).len()).sum();
    let listens = |line: &String| line.split_whitespace().nth(3) == Some("0A");
    let listeners = |kind: &str| lines(kind).iter().filter(|line| listens(line)).count();
    others + listeners("tcp") + listeners("tcp6")
}

/// What VMs may leave on a host, counted.
fn host_of(agent: &Agent, pid: u32) -> BTreeMap<&'static str, usize> {
    let lines = |command: &str| run(command).lines().count();
    let files = |folder: &std::path::Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let open = format!("/proc/{pid}/fd");
    let sets = run("nft list sets");
    BTreeMap::from([
        ("links", lines("ip -o link")),
        ("taps", taps()),
        ("bridge ports", ports("one")),
        ("rules", lines("nft list ruleset")),
        ("nft sets", sets.lines().filter(|line| line.contains("set ")).count()),
        ("namespaces", namespaces(agent, pid)),
        ("sockets", sockets()),
        ("guests", agent.guest_pids().len()),
        ("files that the agent has open", files(std::path::Path::new(&open))),
        ("guards", files(&agent.data_dir().join("nics"))),
        ("guests' folders", files(&agent.run_dir().join("vm"))),
    ])
}

/// `MUSTER_CREATES` says how many, else a few.
#[tokio::test]
async fn vms_that_come_and_go_leave_nothing_on_the_host() {
    if !enter_own_network() {
        return;
    }
    let count = std::env::var("MUSTER_CREATES").ok().and_then(|count| count.parse().ok());
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let pid = agent.daemon().pid();
    // What there was of it while the VM ran.
    let cycle = async || {
        let vm = fresh_uuid();
        let rule = json!({ "rule": "FROM all vms TO any BLOCK tcp PORT 25", "enabled": true });
        let payload = json!({
            "uuid": vm, "brand": "kvm", "ram": 192, "owner_uuid": fresh_uuid(),
            "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
            "firewall_enabled": true, "firewall_rules": [rule],
            "nics": [
                { "nic_tag": "one", "ips": ["10.77.0.11/24"], "max_mbit_per_second": 100 },
                { "nic_tag": "one", "ips": ["dhcp"] },
            ],
        });
        assert_eq!(create(&client, &agent, &payload).await, vm);
        let during = host_of(&agent, pid);
        let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
        let task = client.delete(&path).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 120).await;
        during
    };
    // Connections and folders that are made once.
    let during = cycle().await;
    let before = host_of(&agent, pid);
    let nothing =
        ["taps", "bridge ports", "rules", "nft sets", "guests", "guards", "guests' folders"];
    for kind in nothing {
        assert_eq!(before[kind], 0, "{kind}");
    }
    // Whatever is counted would be seen, if it stayed; no VM has a namespace of its own.
    for (kind, count) in &before {
        assert!(during[kind] > *count || *kind == "namespaces", "{kind}: {during:?}");
    }
    let cycles = count.unwrap_or(CREATES);
    for _ in 0..cycles {
        cycle().await;
    }
    // A connection that was used last may still be closing.
    wait_for("the host is as before", SETTLE, || {
        let after = host_of(&agent, pid);
        let same = after == before;
        async move { if same { Ok(()) } else { Err(format!("{after:?}")) } }
    })
    .await;
    println!("before and after {cycles} VMs: {before:?}");
}
