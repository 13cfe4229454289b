//! The allocator through HTTP, on a fleet of which every server reports each second and one in a
//! hundred has a VM that changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::process::cpu;
use muster_tests::sim_agent::SimAgent;
use muster_tests::sim_fleet::SimServer;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::{ms, now, per_second, percentile, row, rss_kib};

/// Servers, and the goals for an allocation: p50 / p99.
const SIZES: [(usize, &str); 3] = [(1_000, "3/10 ms"), (5_000, "5/15 ms"), (20_000, "10/30 ms")];
/// Goals that are named for this size.
const NAMED: usize = 5_000;
const VMS_EACH: u32 = 20;
const CLIENTS: usize = 4;
const FAILING_CLIENTS: usize = 32;
const SECONDS: u64 = 10;
const REPLAYS: usize = 100;
/// Length of a history, and the bound that it gets.
const DECISIONS: usize = 50_000;
const BOUND: usize = 1_000;
/// Files that both processes need beside the connections.
const SPARE_FILES: u64 = 500;

/// Measures on fleets of all sizes, or on one.
pub(super) async fn run(only: Option<usize>) {
    if let Some(servers) = only {
        return measure(servers, "-").await;
    }
    let files = most_files();
    for (servers, goal) in SIZES {
        // Each server is an open file of the coordinator and one of this process.
        let most = usize::try_from(files.saturating_sub(SPARE_FILES)).unwrap_or(usize::MAX);
        if servers > most {
            let instead = format!("{most} servers, as {files} files may be open");
            row(&format!("in place of {servers} servers"), &instead, "-");
        }
        measure(servers.min(most), goal).await;
    }
    history().await;
}

/// How soon after its start a coordinator has cut a history that is too long.
async fn history() {
    let mut coordinator = Coordinator::with_settings(&["allocator.history=100000"]);
    let client = Client::pooled(coordinator.client().base());
    let agent = SimAgent::connect(&coordinator).await;
    let mut body = ask(128);
    (body["reserve"], body["steps"]) = (json!(false), json!("none"));
    let decide = |_| async { drop(client.post("/allocate", &body).await) };
    stream::iter(0..DECISIONS).for_each_concurrent(64, decide).await;
    drop(agent);
    coordinator.daemon().terminate().await;
    coordinator.configure(&[&format!("allocator.history={BOUND}")]);
    coordinator.restart();
    let start = now();
    wait_for("the history has its bound", Duration::from_secs(600), || async {
        let list = client.get(&format!("/allocations?limit={BOUND}")).await.expect(200);
        let oldest = list.as_array().and_then(|list| list.last()).expect("there are decisions");
        let marker = oldest["id"].as_str().expect("an id");
        let more = client.get(&format!("/allocations?limit=1&marker={marker}")).await.expect(200);
        if more == json!([]) { Ok(()) } else { Err(more.to_string()) }
    })
    .await;
    let what = format!("{DECISIONS} decisions cut to {BOUND} after a start");
    row(&what, &ms(start.elapsed()), "60 s");
}

/// How many files a process may have open.
fn most_files() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("there are limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(u64::MAX)
}

async fn measure(servers: usize, goal: &str) {
    // An eighth of them is for others than agents.
    let connections = format!("api.connections={}", (servers + 1_000) * 8 / 7);
    let mut coordinator = Coordinator::with_settings(&[&connections]);
    let client = Client::pooled(coordinator.client().base());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pid = coordinator.daemon().pid();
    let idle_kib = rss_kib(pid);
    let agents = fleet(&coordinator, servers).await;
    wait_for("every server is known", Duration::from_secs(600), || async {
        let answer = client.post("/capacity", &json!({})).await;
        let count = answer.json["capacities"].as_object().map_or(0, serde_json::Map::len);
        if count == servers { Ok(()) } else { Err(format!("{count} of {servers}")) }
    })
    .await;
    // Half a million records take a while to be stored.
    let vms = servers * usize::try_from(VMS_EACH).expect("small");
    wait_for("every VM is stored", Duration::from_secs(600), || async {
        let stored = stored_vms(&client.get("/metrics").await.text);
        if stored == vms {
            return Ok(());
        }
        // To count them takes a while as well.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Err(format!("{stored} of {vms}"))
    })
    .await;
    let reporting = report(agents);
    tokio::time::sleep(Duration::from_secs(5)).await;

    let of = |what: &str| format!("{servers} servers: {what}");
    let at_rest = cpu_share(pid, Duration::from_secs(SECONDS)).await;
    let named = |goal: &'static str| if servers == NAMED { goal } else { "-" };
    row(&of("CPU at rest, cores"), &format!("{at_rest:.2}"), named("0.2"));
    let at_rest_kib = rss_kib(pid);
    let each = |kib: u64| kilo(kib * 1024 / u64::try_from(servers).expect("small"));
    let rss = each(at_rest_kib.saturating_sub(idle_kib));
    row(&of("RSS per server at rest, 20 VMs each"), &format!("{rss:.1} KB"), "-");

    let (before, start, reports) = (cpu(pid), now(), reporting.count());
    let mut times = beside(&client, |client| allocate(client, CLIENTS, ask(128))).await;
    let sent = per_second(reporting.count() - reports, start.elapsed());
    row(&of("reports a second beside allocations"), &sent, &servers.to_string());
    let rest = start.elapsed().mul_f64(at_rest);
    // What is kept is written afterwards.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = cpu(pid).saturating_sub(before).saturating_sub(rest);
    let used = used.saturating_sub(Duration::from_secs(5).mul_f64(at_rest));
    let more_kib = rss_kib(pid).saturating_sub(at_rest_kib);
    let more = each(more_kib);
    row(&of("RSS per server after decisions, over rest"), &format!("{more:.1} KB"), "10 KB");
    times.sort_unstable();
    let figures = format!("{}/{}", ms(percentile(&times, 50)), ms(percentile(&times, 99)));
    row(&of("POST /allocate p50/p99, 4 clients"), &figures, goal);
    let decisions = u32::try_from(times.len().max(1)).expect("small");
    let kept = more_kib * 1024 / u64::from(decisions);
    row(&of("RSS per decision, over rest"), &format!("{:.2} KB", kilo(kept)), "-");
    row(&of("CPU per decision, what is kept included"), &ms(used / decisions), named("2 ms"));

    if servers == NAMED {
        pings_beside_failures(&client).await;
    }
    reporting.stop().await;
    drop(client);
    replays(&mut coordinator, servers).await;
}

/// How many VMs the metrics show, in whatever state.
fn stored_vms(metrics: &str) -> usize {
    let lines = metrics.lines().filter(|line| line.starts_with("muster_vms{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok()).sum()
}

fn kilo(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1_000.0
}

async fn fleet(coordinator: &Coordinator, servers: usize) -> Vec<SimAgent> {
    let connect = |_| async {
        let agent = SimAgent::connect(coordinator).await;
        agent.show_vms(VMS_EACH, 1_024).await;
        agent
    };
    stream::iter(0..servers).map(connect).buffer_unordered(64).collect().await
}

struct Reporting {
    stop: Arc<AtomicBool>,
    /// How many were sent.
    sent: Arc<AtomicU64>,
    task: JoinHandle<Vec<SimServer>>,
}

impl Reporting {
    fn count(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.task.await.expect("reports do not fail"));
    }
}

/// Lets every server give a sign of life and report each second, half a second apart, and each in its
/// turn; one in a hundred has a VM that is another size.
fn report(agents: Vec<SimAgent>) -> Reporting {
    // Servers know nothing of each other: they do not report in bursts that all else waits behind.
    const SLICES: usize = 500;
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (over, count) = (Arc::clone(&stop), Arc::clone(&sent));
    let task = tokio::spawn(async move {
        let servers = stream::iter(agents).then(|agent| SimServer::of(agent, VMS_EACH));
        let mut fleet: Vec<_> = servers.collect().await;
        let mut tick = tokio::time::interval(Duration::from_secs(1) / 500);
        // Nor do they hurry to make up for a time in which they got no processor.
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for round in 0_usize.. {
            let slice = |offset: usize| (round + offset) % SLICES;
            fleet.iter_mut().skip(slice(SLICES / 2)).step_by(SLICES).for_each(SimServer::beat);
            for (place, server) in fleet.iter_mut().enumerate().skip(slice(0)).step_by(SLICES) {
                if (place + round / SLICES).is_multiple_of(100) {
                    server.resize(1_024 + u64::try_from(round % 7).expect("small"));
                } else {
                    server.report();
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            if over.load(Ordering::Relaxed) {
                break;
            }
            tick.tick().await;
        }
        fleet
    });
    Reporting { stop, sent, task }
}

fn ask(memory_mib: u64) -> Value {
    json!({
        "vm": { "vm_uuid": fresh_uuid(), "owner_uuid": fresh_uuid(), "ram": memory_mib,
                "brand": "joyent", "cpu_cap": 1, "quota": 1 },
        "image": {}, "package": { "cpu_cap": 1 }, "nic_tags": ["admin"],
    })
}

/// How long each of many allocations took, some at a time.
async fn allocate(client: Client, clients: usize, body: Value) -> Vec<Duration> {
    let (end, client) = (now() + Duration::from_secs(SECONDS), &client);
    let one = |_| async {
        let mut times = Vec::new();
        while now() < end {
            let mut body = body.clone();
            body["vm"]["vm_uuid"] = json!(fresh_uuid());
            body["steps"] = json!("none");
            let start = now();
            client.post("/allocate", &body).await.expect(200);
            times.push(start.elapsed());
        }
        times
    };
    stream::iter(0..clients).map(one).buffer_unordered(clients).concat().await
}

/// What a client measures on a thread of its own: else it would wait for what this process does beside
/// it, which is the work of thousands of agents.
async fn beside<T, F>(client: &Client, measure: impl FnOnce(Client) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let base = client.base().to_owned();
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread that no other client's work keeps busy"
    )]
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(measure(Client::pooled(base)))
    });
    thread.await.expect("what is measured does not fail")
}

async fn pings_beside_failures(client: &Client) {
    let end = now() + Duration::from_secs(SECONDS);
    let ping = beside(client, move |client| pings(client, end));
    let fail = |_| async {
        let mut failed = 0;
        while now() < end {
            let status = client.post_unread("/allocate", &ask(1 << 30)).await;
            assert!(status == 409 || status == 503, "{status}");
            failed += 1;
        }
        failed
    };
    let failing = stream::iter(0..FAILING_CLIENTS).map(fail).buffer_unordered(FAILING_CLIENTS);
    let (failed, mut times) = tokio::join!(failing.collect::<Vec<_>>(), ping);
    let failed: u64 = failed.into_iter().sum();
    times.sort_unstable();
    let what = format!("/ping p50/p99 beside {FAILING_CLIENTS} clients whose requests fail");
    let figures = format!("{}/{}", ms(percentile(&times, 50)), ms(percentile(&times, 99)));
    row(&what, &figures, "p99 20 ms");
    let what = "requests of theirs that failed a second";
    row(what, &per_second(failed, Duration::from_secs(SECONDS)), "-");
}

async fn pings(client: Client, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while now() < end {
        let start = now();
        client.get("/ping").await.expect(200);
        times.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    times
}

/// How many of the newest decisions can be replayed after a clean stop.
async fn replays(coordinator: &mut Coordinator, servers: usize) {
    coordinator.daemon().terminate().await;
    coordinator.restart();
    let client = Client::pooled(coordinator.client().base());
    let list = client.get(&format!("/allocations?limit={REPLAYS}")).await.expect(200);
    let mut identical = 0;
    for decision in list.as_array().into_iter().flatten() {
        let id = decision["id"].as_str().expect("an id");
        let body = json!({ "steps": "none" });
        let answer = client.post(&format!("/allocations/{id}/replay"), &body).await;
        if answer.json["identical"] == true {
            identical += 1;
        } else {
            println!("replay of {id}: {} {}", answer.status, answer.json);
        }
    }
    let what = format!("{servers} servers: replays after a clean stop");
    row(&what, &format!("{identical} of {REPLAYS}"), "100 of 100");
}

async fn cpu_share(pid: u32, time: Duration) -> f64 {
    let (before, start) = (cpu(pid), now());
    tokio::time::sleep(time).await;
    (cpu(pid) - before).as_secs_f64() / start.elapsed().as_secs_f64()
}
