//! What a real guest uses and shows, as its agent, the coordinator and the command line tell it.

use std::time::Duration;

use muster_tests::cli;
use muster_tests::contract::Contract;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// What the coordinator says the VM uses now.
async fn usage(client: &Client, vm: &str) -> Value {
    let all = client.get("/vms/usage?max_age=0").await.expect(200);
    let all = all.as_array().expect("a list").clone();
    let of_vm = all.into_iter().find(|one| one["uuid"] == vm);
    of_vm.unwrap_or_else(|| panic!("{vm} is not listed"))
}

/// A figure of the VM in the agent's metrics.
async fn metric(agent: &Agent, name: &str, vm: &str) -> Option<f64> {
    let start = format!("{name}{{vm_uuid=\"{vm}\"}} ");
    let text = agent.client().get("/metrics").await.text;
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

/// Counters grow while the guest boots, and the agent's metrics have them too.
async fn grows(client: &Client, agent: &Agent, vm: &str) {
    let first = usage(client, vm).await["usage"]["cpu_ms"].as_u64().expect("CPU time");
    wait_for("it has read its kernel from its disk", BOOT, || async {
        let usage = usage(client, vm).await["usage"].clone();
        let read = usage["disk"]["read_bytes"].as_u64() > Some(1 << 20);
        let ran = usage["cpu_ms"].as_u64() > Some(first);
        if read && ran { Ok(()) } else { Err(usage.to_string()) }
    })
    .await;
    wait_for("the metrics follow", SOON, || async {
        let read = metric(agent, "muster_vm_disk_read_bytes_total", vm).await;
        if read > Some(f64::from(1 << 20)) { Ok(()) } else { Err(format!("{read:?}")) }
    })
    .await;
    for name in ["muster_vm_cpu_seconds_total", "muster_vm_resident_bytes"] {
        assert!(metric(agent, name, vm).await > Some(0.0), "{name}");
    }
    // User-mode networking counts nothing, which is not the same as nothing.
    assert_eq!(metric(agent, "muster_vm_net_received_bytes_total", vm).await, None);
}

/// The table and the JSON of `muster vm top`.
fn is_shown(coordinator: &Coordinator, server: &str, vm: &str) {
    let once = ["vm", "top", "--once", "--interval", "1s", "--server", server, "-o", "json"];
    let rows: Value = serde_json::from_str(&cli::text(coordinator, &once)).expect("JSON");
    let row = &rows[0];
    assert_eq!(row["uuid"], vm, "{rows:#}");
    assert!(row["rates"]["cpu_percent"].is_number(), "{row:#}");
    assert!(row["rates"]["disk_read_bytes_per_s"].is_number(), "{row:#}");
    assert!(row["rates"]["net_received_bytes_per_s"].is_null(), "{row:#}");
    assert!(row["usage"]["disk"]["read_bytes"].as_u64() > Some(1 << 20), "{row:#}");
    assert!(row["usage"]["rss_bytes"].as_u64() > Some(1 << 20), "{row:#}");

    // Not a terminal: one table, also without --once.
    let table = cli::text(coordinator, &["vm", "top", "--sort", "disk", "--interval", "1s"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].contains("CPU%") && lines[1].contains("thirsty"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let bad = cli::output(coordinator, &["vm", "top", "--interval", "2d"]);
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
}

/// A picture of its display, taken by the command.
async fn shows(client: &Client, coordinator: &Coordinator, agent: &Agent, vm: &str) {
    let file = agent.data_dir().join("shot.png");
    let path = file.display().to_string();
    let taken = cli::text(coordinator, &["vm", "screenshot", vm, "-f", &path]);
    assert!(taken.contains("bytes"), "{taken}");
    let png = std::fs::read(&file).expect("a picture");
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.ends_with(b"IEND\xaeB`\x82"));
    let again = cli::output(coordinator, &["vm", "screenshot", vm, "-f", &path]);
    assert_eq!(again.status.code(), Some(2), "it exists: {again:?}");
    let params = json!({ "uuid": vm });
    let result = agent.run_task("machine_screenshot", &params).await;
    assert!(result["width"].as_u64() > Some(100) && result["height"].as_u64() > Some(100));
    let ghost = format!("/servers/{}/vms/{}/screenshot", agent.server_uuid, fresh_uuid());
    client.get(&ghost).await.expect(404);
}

/// Stopped until dropped.
struct Frozen(Pid);

impl Frozen {
    fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
        kill(pid, Signal::SIGSTOP).expect("it can be stopped");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).expect("it goes on");
    }
}

/// A hypervisor that hangs says nothing of the disks; the host still says the rest.
async fn hangs(client: &Client, agent: &Agent, vm: &str) {
    let pids = agent.guest_pids();
    let frozen = Frozen::new(pids[0]);
    wait_for("the disk figures are missed", SOON, || async {
        let usage = usage(client, vm).await["usage"].clone();
        let missed = usage["disk"].is_null() && usage["disk_age_ms"].is_u64();
        if missed && usage["rss_bytes"].is_u64() { Ok(()) } else { Err(usage.to_string()) }
    })
    .await;
    drop(frozen);
    wait_for("they are back", SOON, || async {
        let usage = usage(client, vm).await["usage"].clone();
        if usage["disk"].is_object() { Ok(()) } else { Err(usage.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn what_a_guest_uses_is_seen_everywhere() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "alias": "thirsty", "ram": 192,
        "disks": [{ "image_uuid": image, "boot": true }], "nics": [{ "nic_tag": "admin" }],
    });
    agent.run_task("machine_create", &payload).await;
    wait_for("the coordinator knows it", SOON, || async {
        let answer = client.get(&format!("/vms/{vm}")).await;
        if answer.json["state"] == "running" { Ok(()) } else { Err(answer.text) }
    })
    .await;

    grows(&client, &agent, &vm).await;
    is_shown(&coordinator, &agent.server_uuid, &vm);
    shows(&client, &coordinator, &agent, &vm).await;
    hangs(&client, &agent, &vm).await;
    let contract = Contract::of(&client).await;
    contract.check(&client, "/vms/usage", "/vms/usage?max_age=60").await;

    let stop = format!("/servers/{}/vms/{vm}/stop", agent.server_uuid);
    let task = client.post(&stop, &json!({ "force": true })).await.expect(200);
    client.complete_task(task["id"].as_str().expect("an id"), 120).await;
    wait_for("a stopped one uses nothing", SOON, || async {
        let usage = usage(&client, &vm).await;
        if usage["usage"].is_null() { Ok(()) } else { Err(usage.to_string()) }
    })
    .await;
    assert_eq!(metric(&agent, "muster_vm_cpu_seconds_total", "x").await, None);
}
