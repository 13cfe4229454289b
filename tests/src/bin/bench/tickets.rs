//! The waitlist: tickets made and released, and how fast the turn goes to the next.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_tests::daemon::Coordinator;
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use serde_json::json;

use super::{ms, now, per_second, percentile, row};

const PAIRS: usize = 500;
const WAITING: usize = 300;
const CLIENTS: usize = 64;
const TURNS_EACH: usize = 10;
const TICKETS: &str = "/servers/default/tickets";

pub(super) async fn run() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    create_and_release(&client).await;
    hand_over(&client).await;
    turns(&client).await;
}

async fn create(client: &Client, id: &str) -> String {
    let body = json!({ "scope": "bench", "id": id, "expires_at": "3000" });
    let answer = client.post(TICKETS, &body).await.expect(202);
    answer["uuid"].as_str().expect("a uuid").to_owned()
}

async fn release(client: &Client, ticket: &str) {
    client.put(&format!("/tickets/{ticket}/release"), &json!({})).await.expect(204);
}

async fn wait(client: &Client, ticket: &str) -> Instant {
    client.get(&format!("/tickets/{ticket}/wait")).await.expect(204);
    now()
}

async fn create_and_release(client: &Client) {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = now();
        let ticket = create(client, "alone").await;
        release(client, &ticket).await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    row("ticket create + release p50", &ms(percentile(&times, 50)), "-");
    row("ticket create + release p99", &ms(percentile(&times, 99)), "-");
}

/// From the request to release until the next client has the answer to its wait.
async fn hand_over(client: &Client) {
    let mut tickets = Vec::with_capacity(WAITING + 1);
    for _ in 0..=WAITING {
        tickets.push(create(client, "line").await);
    }
    let mut waits = Vec::with_capacity(WAITING);
    for ticket in &tickets[1..] {
        let (waiter, ticket) = (client.clone(), ticket.clone());
        let path = format!("/why/ticket/{ticket}");
        waits.push(tokio::spawn(async move { wait(&waiter, &ticket).await }));
        wait_for("it waits", Duration::from_secs(10), || async {
            let why = client.get(&path).await.json;
            if why["waiters"] == 1 { Ok(()) } else { Err(why) }
        })
        .await;
    }
    let mut times: Vec<Duration> = Vec::with_capacity(WAITING);
    for (ticket, next) in tickets.iter().zip(waits) {
        let start = now();
        release(client, ticket).await;
        times.push(next.await.expect("the wait ends").saturating_duration_since(start));
    }
    times.sort_unstable();
    row("ticket hand-over p50 (300 in line)", &ms(percentile(&times, 50)), "-");
    row("ticket hand-over p99 (300 in line)", &ms(percentile(&times, 99)), "10 ms");
}

/// Clients that take turns in one queue as fast as they can.
async fn turns(client: &Client) {
    let start = now();
    let done: Vec<()> = stream::iter(0..CLIENTS)
        .map(|_| async {
            for _ in 0..TURNS_EACH {
                let ticket = create(client, "turns").await;
                wait(client, &ticket).await;
                release(client, &ticket).await;
            }
        })
        .buffer_unordered(CLIENTS)
        .collect()
        .await;
    let turns = (done.len() * TURNS_EACH) as u64;
    let rate = per_second(turns, start.elapsed());
    row(&format!("turns per second in one queue ({CLIENTS} clients)"), &rate, "-");
    let left = client.get(&format!("{TICKETS}?order=DESC&limit=1")).await.expect(200);
    assert_ne!(left[0]["status"], "active", "a turn was not ended");
}
