//! A guest that is changed while it runs, seen from inside it: its disk grows, network interfaces come
//! and go, its filter changes. It stays the same process, and its agent is killed in between.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::own_network::{self, run, taps};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// Until a guest that is up shows what has changed.
const SOON: Duration = Duration::from_secs(30);

const FIRST: &str = "02:00:00:00:00:01";
const SECOND: &str = "02:00:00:00:00:02";

/// Tells each second what the guest has; takes an address on the second interface, and a further one on
/// the first.
const WATCHES: &str = "#!/bin/sh\n\
    ip addr add 10.77.0.21/24 dev eth0\n\
    while :; do\n\
      second=$(grep -l 00:02$ /sys/class/net/eth*/address 2>/dev/null | cut -d/ -f5)\n\
      if [ -n \"$second\" ]; then\n\
        ip link set $second up\n\
        ip addr add 10.78.0.12/24 dev $second 2>/dev/null\n\
      fi\n\
      { echo sectors $(cat /sys/block/vda/size)\n\
        echo carrier ${second:+$(cat /sys/class/net/$second/carrier)}\n\
        echo macs $(cat /sys/class/net/eth*/address); } >/run/state\n\
      mv /run/state /www/state\n\
      sleep 1\n\
    done\n";

/// What the guest tells at this address.
fn state(address: &str) -> Result<String, String> {
    guest::page(&format!("{address}:80"), "/state")
}

async fn tells(address: &str, wanted: &[&str]) -> String {
    wait_for(&format!("{address} tells {wanted:?}"), BOOT, || async {
        let state = state(address)?;
        let all = wanted.iter().all(|text| state.contains(text));
        if all { Ok(state) } else { Err(state) }
    })
    .await
}

async fn is_silent(address: &str) {
    wait_for(&format!("{address} is silent"), SOON, || async {
        state(address).map_or(Ok(()), Err)
    })
    .await;
}

struct Vm<'a> {
    client: &'a Client,
    path: String,
}

impl Vm<'_> {
    /// The task's result.
    async fn update(&self, change: Value) -> Value {
        let asked = self.client.post(&format!("{}/update", self.path), &change).await.expect(200);
        self.client.complete_task(asked["id"].as_str().expect("a task"), 120).await
    }

    async fn get(&self) -> Value {
        self.client.get(&self.path).await.expect(200)
    }
}

async fn create<'a>(client: &'a Client, agent: &Agent) -> Vm<'a> {
    let image = guest::import(client).await;
    let vms = format!("/servers/{}/vms", agent.server_uuid);
    let vm = fresh_uuid();
    let nic = json!({
        "nic_tag": "one", "mac": FIRST, "primary": true, "ips": ["10.77.0.11/24"],
    });
    let payload = json!({
        "uuid": vm, "brand": "kvm", "ram": 192, "alias": "changing", "nics": [nic],
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "owner_uuid": fresh_uuid(), "customer_metadata": { "user-script": WATCHES },
    });
    let asked = client.post(&vms, &payload).await.expect(200);
    client.complete_task(asked["id"].as_str().expect("a task"), 240).await;
    Vm { client, path: format!("{vms}/{vm}") }
}

/// Of 512 bytes, as the kernel counts them.
fn sectors(mib: u64) -> String {
    format!("sectors {}\n", mib * 2048)
}

#[tokio::test]
async fn a_guest_is_changed_while_it_runs_and_sees_it() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    own_network::add_bridge("two", &["10.78.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent =
        Agent::with(&[&coordinator.agent_url()], &[r#"network.server_tags=["one","two"]"#], &[]);
    agent.wait_allocatable(&client).await;
    let vm = create(&client, &agent).await;
    tells("10.77.0.11", &[&sectors(32), FIRST]).await;
    let pids = agent.guest_pids();

    // Its disk.
    let path = vm.get().await["disks"][0]["path"].clone();
    let grown = vm.update(json!({ "update_disks": [{ "path": path, "size": 64 }] })).await;
    assert_eq!(grown["pending_reboot"], json!([]), "{grown:#}");
    tells("10.77.0.11", &[&sectors(64)]).await;

    // Its filter: an address that it took may be its own.
    state("10.77.0.21").expect_err("it may not send from this address");
    let allow = json!({ "update_nics": [{ "mac": FIRST, "allowed_ips": ["10.77.0.21"] }] });
    let allowed = vm.update(allow).await;
    assert_eq!(allowed["pending_reboot"], json!([]), "{allowed:#}");
    run("ip neigh flush all");
    tells("10.77.0.21", &[FIRST]).await;

    // One more interface. No address of it is told while the guest runs.
    let second = json!({ "nic_tag": "two", "mac": SECOND, "ips": ["10.78.0.12/24"] });
    let added = vm.update(json!({ "add_nics": [second] })).await;
    assert_eq!(added["pending_reboot"], json!(["nics"]), "{added:#}");
    tells("10.78.0.12", &[FIRST, SECOND, "carrier 1\n"]).await;
    assert_eq!((taps(), agent.guest_pids()), (2, pids.clone()));

    // Its cable.
    let cable = |down: bool| json!({ "update_nics": [{ "mac": SECOND, "link_down": down }] });
    vm.update(cable(true)).await;
    tells("10.77.0.11", &[SECOND, "carrier 0\n"]).await;
    is_silent("10.78.0.12").await;
    vm.update(cable(false)).await;
    tells("10.78.0.12", &[SECOND, "carrier 1\n"]).await;

    // The next agent knows what the guest has. It takes the interface that the guest started with.
    agent.kill9();
    agent.restart();
    agent.wait_status(&client, "running", BOOT).await;
    let removed = vm.update(json!({ "remove_nics": [FIRST] })).await;
    assert_eq!(removed["vm"]["nics"].as_array().map(Vec::len), Some(1), "{removed:#}");
    is_silent("10.77.0.11").await;
    let state = tells("10.78.0.12", &[SECOND]).await;
    assert!(!state.contains(FIRST), "{state}");
    assert_eq!((taps(), agent.guest_pids()), (1, pids.clone()));

    // And it comes back; after a restart the guest has the same two.
    let first = json!({ "nic_tag": "one", "mac": FIRST, "ips": ["10.77.0.11/24"] });
    vm.update(json!({ "add_nics": [first], "set_tags": { "a": "b" } })).await;
    tells("10.78.0.12", &[FIRST, SECOND]).await;
    assert_eq!((taps(), agent.guest_pids()), (2, pids.clone()));
    vm.update(json!({ "vcpus": 2, "reboot": "always" })).await;
    assert_ne!(agent.guest_pids(), pids);
    tells("10.77.0.11", &[&sectors(64), FIRST, SECOND]).await;
    assert!(vm.get().await.get("running_with").is_none(), "nothing waits");

    let gone = client.delete(&vm.path).await.expect(200);
    client.complete_task(gone["id"].as_str().expect("a task"), 120).await;
    assert_eq!((taps(), run("nft list tables").as_str()), (0, ""));
}
