//! The foundation: tasks, memory, creating a VM.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::guest;
use muster_tests::http::Client;
use muster_tests::sim_agent::SimAgent;
use muster_tests::wait::wait_for;
use reqwest::Method;
use serde_json::json;

use super::{kib_to_mib, ms, now, per_second, percentile, row, rss_kib};

const ROUND_TRIPS: usize = 500;
const ACCEPT_SECONDS: u64 = 5;
const ACCEPT_CLIENTS: usize = 128;
const SIMULATED_AGENTS: usize = 1_000;
const CREATES: usize = 5;

pub(super) async fn run() {
    idle_agent_and_round_trip().await;
    accepts_per_second().await;
    memory_per_agent().await;
    create_overhead().await;
}

async fn idle_agent_and_round_trip() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    // Let the start-up's buffers go back before looking.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let rss = rss_kib(agent.daemon().pid());
    row("agent RSS idle", &format!("{:.1} MiB", kib_to_mib(rss)), "20 MiB");

    let path = format!("/servers/{}/nop", agent.server_uuid);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = now();
        let id = client.post(&path, &json!({})).await.expect(200)["id"].clone();
        client.complete_task(id.as_str().expect("an id"), 30).await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    row("task round trip (nop) p50", &ms(percentile(&times, 50)), "1.5 ms");
    row("task round trip (nop) p99", &ms(percentile(&times, 99)), "5 ms");
    let bare = bare_requests(&client).await;
    row("the same client's GET /ping, p50", &ms(percentile(&bare, 50)), "-");
}

/// What a request that changes nothing takes: the part of a round trip that is HTTP and this client.
async fn bare_requests(client: &Client) -> Vec<Duration> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = now();
        client.get("/ping").await.expect(200);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times
}

/// Tasks made durable and acknowledged by a coordinator whose agents answer at once.
async fn accepts_per_second() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let agents: Vec<_> =
        stream::iter(0..8).then(|_| SimAgent::connect(&coordinator)).collect().await;
    for agent in &agents {
        agent.wait_running(&client).await;
    }
    let paths: Vec<_> =
        agents.iter().map(|agent| format!("/servers/{}/nop", agent.server_uuid)).collect();
    let accepts = answers_per_second(&client, Method::POST, &paths).await;
    row("durable task accepts per second (HTTP, 128 clients)", &accepts, "12000");
    // What is left of this machine by these clients and HTTP.
    let pings = answers_per_second(&client, Method::GET, &["/ping".to_owned()]).await;
    row("the same clients' GET /ping per second", &pings, "-");
}

/// Requests of many clients, over several paths, that succeed.
async fn answers_per_second(client: &Client, method: Method, paths: &[String]) -> String {
    let deadline = now() + Duration::from_secs(ACCEPT_SECONDS);
    let clients: FuturesUnordered<_> = (0..ACCEPT_CLIENTS)
        .map(|n| {
            let (path, method) = (paths[n % paths.len()].clone(), method.clone());
            let client = client.clone();
            tokio::spawn(async move { answered_until(&client, &method, &path, deadline).await })
        })
        .collect();
    let done = clients.map(|c| c.expect("a client does not panic")).collect::<Vec<_>>().await;
    per_second(done.into_iter().sum(), Duration::from_secs(ACCEPT_SECONDS))
}

async fn answered_until(client: &Client, method: &Method, path: &str, deadline: Instant) -> u64 {
    let body = (*method == Method::POST).then(|| json!({}));
    let mut answered = 0;
    while now() < deadline {
        let answer = client.try_send(method.clone(), path, body.as_ref()).await;
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error:?}"));
        // A server whose queue is full says so; that is not an accept.
        if answer.status == 200 {
            answered += 1;
        }
    }
    answered
}

async fn memory_per_agent() {
    let mut coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let before = rss_kib(coordinator.daemon().pid());
    let agents: Vec<_> = stream::iter(0..SIMULATED_AGENTS)
        .map(|_| SimAgent::connect(&coordinator))
        .buffered(50)
        .collect()
        .await;
    for agent in &agents {
        agent.wait_running(&client).await;
    }
    let after = rss_kib(coordinator.daemon().pid());
    let each = after.saturating_sub(before) / SIMULATED_AGENTS as u64;
    row("coordinator RSS per connected agent at 1,000", &format!("{each} KiB"), "64 KiB");
}

/// Time from the POST to the end of the task, less what qemu-img and QEMU take by themselves.
async fn create_overhead() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let created = creates(&client, &path, "/vms", |vm| {
        json!({
            "uuid": vm, "image_uuid": image, "brand": "kvm", "ram": 192, "vcpus": 1,
            "cpu_cap": 10, "quota": 1, "owner_uuid": fresh_uuid(),
        })
    })
    .await;
    let bare = bare_starts(&agent, &image).await;
    row("bare qemu-img create + QEMU until its CPUs run", &ms(bare), "-");
    row("VM create through the API", &ms(created), "-");
    row("VM create overhead", &ms(created.saturating_sub(bare)), "50 ms");
}

/// The median time from the POST to `path` to the end of the create; the VM is destroyed after each.
pub(crate) async fn creates(
    client: &Client,
    server_path: &str,
    path: &str,
    body: impl Fn(&str) -> serde_json::Value,
) -> Duration {
    let mut created = Vec::new();
    for n in 0..=CREATES {
        let vm = fresh_uuid();
        let body = body(&vm);
        let start = now();
        let asked = client.post(path, &body).await;
        assert!(asked.status.is_success(), "{asked:?}");
        client.complete_task(asked.json["id"].as_str().expect("an id"), 120).await;
        // The first create also fetches the image.
        if n > 0 {
            created.push(start.elapsed());
        }
        let task = client.delete(&format!("{server_path}/{vm}")).await.expect(200);
        client.complete_task(task["id"].as_str().expect("an id"), 60).await;
    }
    created.sort_unstable();
    percentile(&created, 50)
}

/// The median of what qemu-img and QEMU take by themselves, for an image that the agent has.
pub(crate) async fn bare_starts(agent: &Agent, image: &str) -> Duration {
    let backing = agent.data_dir().join("images").join(format!("{image}.qcow2"));
    let mut bare = Vec::new();
    for _ in 0..CREATES {
        bare.push(bare_start(&backing).await);
    }
    bare.sort_unstable();
    percentile(&bare, 50)
}

/// `qemu-img create` on the backing file, then QEMU until QMP says that the CPUs run.
async fn bare_start(backing: &std::path::Path) -> Duration {
    let dir = temp_dir();
    let (disk, qmp) = (dir.path().join("disk.qcow2"), dir.path().join("qmp.sock"));
    let start = now();
    execute(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &text(backing), &text(&disk)],
    );
    let drive = format!("file={},if=virtio,format=qcow2", text(&disk));
    let socket = format!("unix:{},server=on,wait=off", text(&qmp));
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own comparison")]
    let mut qemu = std::process::Command::new("qemu-system-x86_64")
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-M", "q35"])
        .args(["-accel", "tcg", "-m", "192", "-drive", &drive, "-qmp", &socket, "-S"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("QEMU starts");
    wait_for("bare QEMU runs", Duration::from_secs(20), || cont(&qmp)).await;
    let elapsed = start.elapsed();
    drop(qemu.kill());
    drop(qemu.wait());
    elapsed
}

async fn cont(qmp: &std::path::Path) -> Result<(), String> {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let socket = tokio::net::UnixStream::connect(qmp).await.map_err(|e| e.to_string())?;
    let (read, mut write) = socket.into_split();
    let mut lines = BufReader::new(read).lines();
    let commands = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"cont\"}\n";
    write.write_all(commands.as_bytes()).await.map_err(|e| e.to_string())?;
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains("RESUME") {
            return Ok(());
        }
    }
    Err("QEMU closed its monitor".to_owned())
}

fn execute(program: &str, args: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own comparison")]
    let status = std::process::Command::new(program).args(args).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {args:?} failed");
}

fn text(path: &std::path::Path) -> String {
    path.display().to_string()
}
