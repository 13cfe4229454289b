//! Measures a real coordinator and a real agent and prints each figure beside its goal.
//!
//! `make bench` builds with optimizations and runs it; `bench store`, `bench foundation`,
//! `bench contract`, `bench tickets` or `bench node` runs one part. Figures are for comparison on one machine; nothing here fails
//! when a goal is missed.

mod contract;
mod foundation;
mod node;
mod store;
mod tickets;

use std::time::{Duration, Instant};

#[tokio::main]
async fn main() {
    let wanted = std::env::args().nth(1);
    let runs = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    println!("{:<58} {:>14}   goal", "figure", "measured");
    if runs("store") {
        store::run().await;
    }
    if runs("foundation") {
        foundation::run().await;
    }
    if runs("contract") {
        contract::run().await;
    }
    if runs("tickets") {
        tickets::run().await;
    }
    if runs("node") {
        node::run().await;
    }
}

fn row(figure: &str, measured: &str, goal: &str) {
    println!("{figure:<58} {measured:>14}   [{goal}]");
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1_000.0)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// So many in so long, per second.
fn per_second(count: u64, elapsed: Duration) -> String {
    let millis = elapsed.as_millis().max(1);
    (u128::from(count) * 1_000 / millis).to_string()
}

/// Resident memory of a process, KiB.
fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^52 KiB")]
fn kib_to_mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
