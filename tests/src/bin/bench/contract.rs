//! The HTTP contract at 10,000 servers.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::sim_agent::SimAgent;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

use super::{ms, now, per_second, percentile, row};

const SERVERS: usize = 10_000;
const CLIENTS: usize = 32;
const GETS: usize = 20_000;
const PAGES: usize = 40;
const REPORTING_AGENTS: usize = 100;
const REPORTS_EACH: u64 = 500;

pub(super) async fn run() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let servers = register(&client).await;
    one_server(&client, &servers).await;
    pages(&client).await;
    status_reports().await;
}

/// A fleet of registered servers, each with a sysinfo of the usual shape.
async fn register(client: &Client) -> Vec<String> {
    let start = now();
    let servers: Vec<_> = stream::iter(0..SERVERS)
        .map(|n| async move {
            let uuid = fresh_uuid();
            let sysinfo = json!({
                "UUID": uuid, "Hostname": format!("cn-{n:05}"), "Setup": "true",
                "Live Image": "20260101T000000Z", "System Type": "Linux",
                "Boot Time": "1700000000", "SDC Version": "7.0", "MiB of Memory": "262144",
                "CPU Total Cores": 64, "CPU Online Count": 64,
                "Network Interfaces": { "eth0": {
                    "MAC Address": "02:00:00:00:00:01", "ip4addr": "10.0.0.1",
                    "Link Status": "up", "NIC Names": ["admin", "external"],
                }},
            });
            let path = format!("/servers/{uuid}/sysinfo");
            client.post(&path, &json!({ "sysinfo": sysinfo })).await.expect(200);
            uuid
        })
        .buffer_unordered(CLIENTS)
        .collect()
        .await;
    let rate = per_second(SERVERS as u64, start.elapsed());
    row(&format!("registrations per second (durable, {CLIENTS} clients)"), &rate, "-");
    servers
}

/// Sends `count` requests from `CLIENTS` clients; prints the rate and the tail.
async fn load(
    figure: &str,
    goal: &str,
    count: usize,
    client: &Client,
    path: impl Fn(usize) -> String,
) {
    let start = now();
    let mut times: Vec<Duration> = stream::iter(0..count)
        .map(|n| timed(client, path(n)))
        .buffer_unordered(CLIENTS)
        .collect()
        .await;
    let rate = per_second(count as u64, start.elapsed());
    times.sort_unstable();
    row(&format!("{figure}, requests per second ({CLIENTS} clients)"), &rate, "-");
    row(&format!("{figure}, p99 under that load"), &ms(percentile(&times, 99)), "-");
    let mut alone = Vec::with_capacity(200.min(count));
    for n in 0..200.min(count) {
        alone.push(timed(client, path(n)).await);
    }
    alone.sort_unstable();
    row(&format!("{figure}, p99 of one client"), &ms(percentile(&alone, 99)), goal);
}

async fn timed(client: &Client, path: String) -> Duration {
    let start: Instant = now();
    client.get(&path).await.expect(200);
    start.elapsed()
}

async fn one_server(client: &Client, servers: &[String]) {
    let path = |n: usize| format!("/servers/{}", servers[n * 7919 % servers.len()]);
    load("GET /servers/:uuid at 10,000", "5 ms", GETS, client, path).await;
}

async fn pages(client: &Client) {
    let path = |n: usize| format!("/servers?limit=1000&offset={}", n % 10 * 1_000);
    load("a page of 1,000 of 10,000 servers", "50 ms", PAGES, client, path).await;
}

async fn status_reports() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agents: Vec<_> = stream::iter(0..REPORTING_AGENTS)
        .map(|_| SimAgent::connect(&coordinator))
        .buffered(20)
        .collect()
        .await;
    for agent in &agents {
        agent.wait_running(&client).await;
    }
    let (reports, commits) = (counter("status_reports_total"), counter("store_commits_total"));
    let (reports_before, commits_before) = (reports(&client).await, commits(&client).await);
    let start = now();
    for agent in &agents {
        agent.report(REPORTS_EACH).await;
    }
    let wanted = reports_before + REPORTS_EACH * agents.len() as u64;
    wait_for("every report is taken over", Duration::from_secs(120), || async {
        let seen = reports(&client).await;
        if seen >= wanted { Ok(()) } else { Err(format!("{seen} of {wanted}")) }
    })
    .await;
    let rate = per_second(wanted - reports_before, start.elapsed());
    row("unchanged status reports per second", &rate, "10000");
    let written = commits(&client).await - commits_before;
    row("commits to the store meanwhile", &written.to_string(), "0");
}

/// Reads a counter of the coordinator.
fn counter(name: &'static str) -> impl AsyncFn(&Client) -> u64 {
    async move |client: &Client| {
        let text = client.get("/metrics").await;
        assert_eq!(text.json, Value::Null, "metrics are text");
        let line = text.text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in the metrics"));
        line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    }
}
