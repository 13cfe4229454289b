//! What an agent with many VMs costs its node, and how soon a change of one is known.

use std::path::Path;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::process::cpu;
use serde_json::{Value, json};

use super::{kib_to_mib, ms, now, percentile, row, rss_kib};

/// Records, and the goal for the agent's memory.
const RECORDS: [(usize, &str); 3] = [(0, "16 MiB"), (20, "20 MiB"), (200, "32 MiB")];
/// Guests whose CPUs stand still; `MUSTER_BENCH_GUESTS` says another number.
const GUESTS: usize = 200;
/// An agent at rest: reports and collections of its start are over.
const SETTLE: Duration = Duration::from_secs(15);
/// As long as it is watched.
const WATCH: Duration = Duration::from_secs(60);
const CHANGES: u32 = 100;

pub(crate) async fn run() {
    for (count, goal) in RECORDS {
        let (_coordinator, mut agent) = with_records(count).await;
        tokio::time::sleep(SETTLE).await;
        let rss = kib_to_mib(rss_kib(agent.daemon().pid()));
        row(&format!("agent, {count} VM records: memory"), &format!("{rss:.1} MiB"), goal);
    }
    delta_latency().await;
    idle_guests().await;
}

/// An agent that finds so many records of stopped VMs.
async fn with_records(count: usize) -> (Coordinator, Agent) {
    let coordinator = Coordinator::start();
    let mut agent = Agent::start(&coordinator.agent_url());
    let client = coordinator.client();
    agent.wait_allocatable(&client).await;
    if count > 0 {
        let uuid = create(&agent, false).await;
        agent.kill9();
        let folder = agent.data_dir().join("vms");
        for _ in 1..count {
            copy_record(&folder, &uuid);
        }
        agent.restart();
        agent.wait_allocatable(&client).await;
    }
    (coordinator, agent)
}

fn copy_record(folder: &Path, from: &str) {
    let text = std::fs::read_to_string(folder.join(format!("{from}.json"))).expect("a record");
    let mut record: Value = serde_json::from_str(&text).expect("JSON");
    let uuid = fresh_uuid();
    record["uuid"] = json!(uuid);
    record["properties"]["uuid"] = json!(uuid);
    record["properties"]["nics"] = json!([]);
    std::fs::write(folder.join(format!("{uuid}.json")), record.to_string()).expect("it is written");
}

/// A VM without an operating system.
async fn create(agent: &Agent, autoboot: bool) -> String {
    let uuid = fresh_uuid();
    let payload = json!({
        "uuid": uuid, "brand": "kvm", "alias": format!("vm-{uuid}"), "ram": 64,
        "owner_uuid": fresh_uuid(), "disks": [{ "size": 8 }], "autoboot": autoboot,
        "tags": { "role": "web", "stage": "production" },
    });
    agent.run_task("machine_create", &payload).await;
    uuid
}

async fn delta_latency() {
    let coordinator = Coordinator::start();
    let agent = Agent::start(&coordinator.agent_url());
    let client = coordinator.client();
    agent.wait_allocatable(&client).await;
    let uuid = create(&agent, false).await;
    let mut took = Vec::new();
    for turn in 0..CHANGES {
        let alias = format!("name-{turn}");
        let update = json!({ "uuid": uuid, "alias": alias });
        agent.run_task("machine_update", &update).await;
        let from = now();
        until_told(&client, &uuid, &alias).await;
        took.push(from.elapsed());
    }
    took.sort();
    for (name, percent) in [("p50", 50), ("p99", 99)] {
        let figure = ms(percentile(&took, percent));
        row(&format!("change of a VM to coordinator's answer, {name}"), &figure, "250 ms");
    }
}

async fn until_told(client: &Client, uuid: &str, alias: &str) {
    loop {
        let answer = client.get("/vms?limit=1000").await;
        let vms = answer.json.as_array().into_iter().flatten();
        if vms.into_iter().any(|vm| vm["uuid"] == uuid && vm["alias"] == alias) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn idle_guests() {
    let count = std::env::var("MUSTER_BENCH_GUESTS").ok().and_then(|count| count.parse().ok());
    let count = count.unwrap_or(GUESTS);
    let coordinator = Coordinator::start();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&coordinator.client()).await;
    for _ in 0..count {
        let uuid = create(&agent, true).await;
        // A guest without a system is never idle under emulation.
        agent.run_task("machine_kill", &json!({ "uuid": uuid, "signal": "SIGSTOP" })).await;
    }
    let rest = at_rest(agent.daemon().pid()).await;
    let name = format!("agent, {count} guests that stand still: CPU of a core");
    row(&name, &rest.cpu_share, "1 %");
    row(&format!("agent, {count} guests: memory"), &rest.memory, "32 MiB");
}

/// What a process takes that has settled.
pub(crate) struct Rest {
    /// Of one core.
    pub(crate) cpu_share: String,
    pub(crate) memory: String,
}

pub(crate) async fn at_rest(pid: u32) -> Rest {
    tokio::time::sleep(SETTLE).await;
    let (before, from) = (cpu_ms(pid), now());
    tokio::time::sleep(WATCH).await;
    let used = cpu_ms(pid) - before;
    let watched = u64::try_from(from.elapsed().as_millis().max(1)).unwrap_or(u64::MAX);
    let hundredths = used * 10_000 / watched;
    let cpu_share = format!("{}.{:02} %", hundredths / 100, hundredths % 100);
    Rest { cpu_share, memory: format!("{:.1} MiB", kib_to_mib(rss_kib(pid))) }
}

/// CPU time that a process has used, ms.
fn cpu_ms(pid: u32) -> u64 {
    u64::try_from(cpu(pid).as_millis()).unwrap_or(u64::MAX)
}
