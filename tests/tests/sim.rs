//! The simulated cluster: seeds, and an agent that dies at every step of every kind of task.

use std::sync::atomic::{AtomicU64, Ordering};

use muster_tests::sim::kill::{self, Victim};
use muster_tests::sim::scenario::run;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// A panic in a node's task is swallowed by its runtime; count it.
fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
}

fn seeds() -> u64 {
    let wanted = std::env::var("MUSTER_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(200)
}

#[test]
fn sim_the_same_seed_gives_the_same_run() {
    for seed in [1, 2] {
        let first = run(seed).unwrap_or_else(|why| panic!("{why}"));
        let second = run(seed).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.digest.0 > 500, "{first:?}");
    }
}

#[test]
fn sim_seeds_keep_the_invariants() {
    count_panics();
    let first = std::env::var("MUSTER_SIM_FIRST").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or(1);
    let mut failures = Vec::new();
    let (mut complete, mut failed) = (0, 0);
    for seed in first..first + seeds() {
        match run(seed) {
            Ok(summary) => {
                complete += summary.ended.0;
                failed += summary.ended.1;
            }
            Err(why) => {
                eprintln!("{why}");
                failures.push(seed);
            }
        }
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "seed {seed} panicked");
        assert!(failures.len() < 5, "seeds {failures:?} fail");
    }
    assert!(failures.is_empty(), "seeds {failures:?} fail");
    println!("{} seeds: {complete} tasks complete, {failed} failed", seeds());
    assert!(complete > failed, "most requests are sound");
}

fn kill_everywhere(victim: Victim) {
    count_panics();
    let points = kill::points();
    let failures: Vec<String> =
        points.iter().filter_map(|point| kill::run(point, victim).err()).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), points.len(), failures.join(""));
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    println!("{} points", points.len());
    assert!(points.len() > 20, "{points:?}");
}

#[test]
fn sim_an_agent_killed_at_any_step_of_any_task_leaves_nothing_half_done() {
    kill_everywhere(Victim::Agent);
}

#[test]
fn sim_a_host_that_loses_power_at_any_step_of_any_task_leaves_nothing_half_done() {
    kill_everywhere(Victim::Host);
}
