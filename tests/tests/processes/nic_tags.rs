//! NIC tags that come, move and go with their bridges, on a node with a network of its own.

use std::time::{Duration, Instant};

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use muster_tests::own_network::{Apart, NEAR, run};
use muster_tests::proxy::Proxy;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A firewall of the node's own, which lets in nothing but what comes over `eth0` itself.
const FIREWALL: &str = "add table inet host; \
    add chain inet host in { type filter hook input priority 0; policy drop; }; \
    add rule inet host in iifname { lo, eth0 } accept";

struct Bench {
    apart: Apart,
    _coordinator: Coordinator,
    client: Client,
    proxy: Proxy,
    agent: Agent,
}

impl Bench {
    async fn new() -> Option<Self> {
        let apart = Apart::new()?;
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let proxy = Proxy::on(NEAR, coordinator.address()).await;
        let url = format!("ws://{}", proxy.address());
        let agent = apart.on_node(|| Agent::with(&[&url], &["host.actions=real"], &[]));
        agent.wait_status(&client, "running", SOON).await;
        Some(Self { apart, _coordinator: coordinator, client, proxy, agent })
    }

    fn node(&self, command: &str) -> String {
        self.apart.on_node(|| run(command))
    }

    /// Names of bridges, and where the node's address is.
    fn wiring(&self) -> (Vec<String>, String) {
        let words = |text: &str, number: usize| -> Vec<String> {
            let lines = text.lines();
            lines
                .filter_map(|line| line.split_whitespace().nth(number).map(str::to_owned))
                .collect()
        };
        let mut bridges = words(&self.node("ip -br link show type bridge"), 0);
        bridges.sort();
        let addresses = self.node("ip -o -4 addr show to 10.88.0.2");
        (bridges, words(&addresses, 1).join(" "))
    }

    /// Waits until the coordinator shows these tags of the interfaces.
    async fn shows(&self, eth0: &[&str], eth1: &[&str]) {
        let (path, wanted) = (format!("/servers/{}", self.agent.server_uuid), json!([eth0, eth1]));
        wait_for(&format!("tags {wanted}"), SOON, async || {
            let server = self.client.get(&path).await.expect(200);
            let interfaces = &server["sysinfo"]["Network Interfaces"];
            let tags = |name: &str| interfaces[name]["NIC Names"].clone();
            let tags = json!([tags("eth0"), tags("eth1")]);
            if tags == wanted { Ok(()) } else { Err(tags.to_string()) }
        })
        .await;
    }

    /// Starts an update; the task's id.
    async fn begin(&self, eth0: &[&str], eth1: &[&str]) -> String {
        let nics = json!({ "nics": [
            { "mac": Apart::mac(0), "nic_tags_provided": eth0 },
            { "mac": Apart::mac(1).to_uppercase(), "nic_tags_provided": eth1 },
        ] });
        let path = format!("/servers/{}/nics/update", self.agent.server_uuid);
        let answer = self.client.post(&path, &nics).await.expect(200);
        answer["id"].as_str().expect("a task").to_owned()
    }

    async fn update(&self, eth0: &[&str], eth1: &[&str]) -> Value {
        let task = self.begin(eth0, eth1).await;
        let result = self.client.complete_task(&task, 120).await;
        result["sysinfo"]["Network Interfaces"].clone()
    }

    /// Why a task failed.
    async fn failure(&self, task: &str) -> String {
        let task = self.client.wait_task(task, 120).await;
        assert_eq!(task["status"], "failure", "{task:#}");
        task.to_string()
    }

    /// Ends the agent; returns when the coordinator knows.
    async fn kill(&mut self) {
        self.agent.kill9();
        self.agent.wait_status(&self.client, "unknown", SOON).await;
    }

    async fn restart(&mut self) {
        let agent = &mut self.agent;
        self.apart.on_node(|| agent.restart());
        self.agent.wait_status(&self.client, "running", SOON).await;
    }
}

fn bridges(names: &[&str], address_on: &str) -> (Vec<String>, String) {
    (names.iter().map(|name| (*name).to_owned()).collect(), address_on.to_owned())
}

#[tokio::test]
async fn tags_come_move_and_go_with_their_bridges() {
    let Some(mut bench) = Bench::new().await else { return };
    let route = bench.node("ip route show default");
    bench.shows(&["admin"], &[]).await;
    let shown = bench.update(&["admin"], &["storage"]).await;
    assert_eq!(shown["eth1"]["NIC Names"], json!(["storage"]));
    assert_eq!(bench.wiring(), bridges(&["mt-storage"], "eth0"));
    // Also where the node itself is reached.
    bench.update(&["admin", "external"], &["storage"]).await;
    assert_eq!(bench.wiring(), bridges(&["mt-external", "mt-storage"], "mt-external"));
    let moved = bench.node("ip route show default");
    assert_eq!(moved.replace("mt-external", "eth0"), route);
    bench.shows(&["admin", "external"], &["storage"]).await;
    // As after a reboot, or when somebody removed one.
    bench.kill().await;
    bench.node("ip link del mt-storage");
    bench.restart().await;
    assert_eq!(bench.wiring(), bridges(&["mt-external", "mt-storage"], "mt-external"));
    // To the other interface, and under another name.
    bench.update(&["admin", "backup"], &["external"]).await;
    assert_eq!(bench.wiring(), bridges(&["mt-backup", "mt-external"], "mt-backup"));
    let ports = bench.node("ip -br link show master mt-external");
    assert!(ports.starts_with("eth1"), "{ports}");
    bench.update(&["admin"], &[]).await;
    assert_eq!(bench.wiring(), bridges(&[], "eth0"));
    assert_eq!(bench.node("ip route show default"), route);
    bench.shows(&["admin"], &[]).await;
    // An interface that somebody else uses is not taken.
    bench.node("ip link add br0 type bridge");
    bench.node("ip link set eth1 master br0");
    let task = bench.begin(&["admin"], &["storage"]).await;
    let failure = bench.failure(&task).await;
    assert!(failure.contains("nics: eth1 is a port of br0"), "{failure}");
    assert_eq!(bench.wiring(), bridges(&["br0"], "eth0"));
    drop(bench.proxy);
}

#[tokio::test]
async fn a_change_that_cuts_the_node_off_is_taken_back() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.update(&["admin"], &["storage"]).await;
    let before = bridges(&["mt-storage"], "eth0");
    assert_eq!(bench.wiring(), before);
    bench.node(&format!("nft {FIREWALL}"));
    #[expect(clippy::disallowed_methods, reason = "the real daemon's time is measured")]
    let began = Instant::now();
    let task = bench.begin(&["admin", "external"], &["storage"]).await;
    let failure = bench.failure(&task).await;
    assert!(failure.contains("no coordinator was reached within 30 s of the change"), "{failure}");
    println!("taken back and told after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(bench.wiring(), before);
    bench.agent.wait_status(&bench.client, "running", SOON).await;

    // The agent dies in the middle.
    let task = bench.begin(&["admin", "external"], &["storage"]).await;
    wait_for("the change is on trial", SOON, || {
        let wiring = bench.wiring();
        async move { if wiring.1 == "mt-external" { Ok(()) } else { Err(format!("{wiring:?}")) } }
    })
    .await;
    bench.kill().await;
    assert_eq!(bench.wiring(), bridges(&["mt-external", "mt-storage"], "mt-external"));
    let agent = &mut bench.agent;
    bench.apart.on_node(|| agent.restart());
    assert_eq!(bench.wiring(), before, "it is there again before the agent is ready");
    let failure = bench.failure(&task).await;
    assert!(failure.contains("Interrupted") && failure.contains("it is taken back"), "{failure}");
    bench.agent.wait_status(&bench.client, "running", SOON).await;
    bench.shows(&["admin"], &["storage"]).await;

    // Nobody could tell then what cut it off.
    bench.node("nft flush ruleset");
    bench.update(&["admin", "external"], &["storage"]).await;
    assert_eq!(bench.wiring(), bridges(&["mt-external", "mt-storage"], "mt-external"));
}
