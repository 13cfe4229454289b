//! Measures a real coordinator and a real agent and prints each figure beside its goal.
//!
//! `make bench` builds with optimizations and runs it. Figures are for comparison on one machine;
//! nothing here fails when a goal is missed.

mod abuse;
mod allocator;
mod containers;
mod contract;
mod foundation;
mod network;
mod node;
mod store;
mod tickets;
mod zfs;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser as _, ValueEnum as _};
use muster_tests::process::resident;

/// Measures a real coordinator and a real agent, and prints each figure beside its goal.
#[derive(Debug, clap::Parser)]
struct Args {
    /// What to measure; everything without.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// A single fleet of this size for the allocator, instead of those with goals.
    #[arg(long)]
    servers: Option<usize>,
    /// A folder with the binaries that are abused, instead of those beside this program; several are
    /// measured one after the other.
    #[arg(long, value_name = "DIR")]
    binaries: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Durable commits of both engines.
    Store,
    /// Tasks: round trips, accepts a second.
    Foundation,
    /// Reads of the API.
    Contract,
    /// Tickets of the waitlist.
    Tickets,
    /// What an agent with many VMs costs, and how soon a change is known. Takes minutes.
    Node,
    /// Containers: creates over runc alone, and what an agent with many costs. Takes minutes, needs root.
    Containers,
    /// NICs on bridges beside user-mode networks: creates, throughput. Needs root.
    Network,
    /// Creates on clones in a pool, on an emulated machine; see `make bench-zfs`. Takes minutes.
    Zfs,
    /// Allocations on a fleet that reports. Takes minutes.
    Allocator,
    /// What hostile clients and a broken node do to a coordinator. Takes minutes.
    Abuse,
}

#[tokio::main]
async fn main() {
    let Args { parts, servers, binaries } = Args::parse();
    println!("{:<58} {:>14}   goal", "figure", "measured");
    for part in Part::value_variants() {
        if parts.is_empty() || parts.contains(part) {
            match part {
                Part::Store => store::run().await,
                Part::Foundation => foundation::run().await,
                Part::Contract => contract::run().await,
                Part::Tickets => tickets::run().await,
                Part::Node => node::run().await,
                Part::Containers => containers::run().await,
                Part::Network => network::run(),
                Part::Zfs => zfs::run().await,
                Part::Allocator => allocator::run(servers).await,
                Part::Abuse => abuse::run(&binaries).await,
            }
        }
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
    resident(pid) / 1024
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^52 KiB")]
fn kib_to_mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
