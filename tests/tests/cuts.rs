//! Power cuts and damaged files, on both engines side by side: after a power cut every acknowledged
//! commit is there; whatever else happens to the files, it is there or the map says that it is
//! damaged.
//!
//! `MUSTER_CUTS` sets the cuts per engine and load, `MUSTER_DAMAGES` the damages per engine,
//! `MUSTER_CUTS_SEED` the seed.

use muster_shared::entropy::SeededEntropy;
use muster_tests::cuts::{Engine, Load, Tally, cut, damage};

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn entropy() -> SeededEntropy {
    SeededEntropy::new(u64::try_from(number("MUSTER_CUTS_SEED", 1)).expect("64 bits"))
}

async fn cuts(engine: Engine, load: Load) -> Tally {
    let tally = cut(engine, load, number("MUSTER_CUTS", 40), &entropy()).await.expect("cuts");
    println!("{} under a {}'s load, power cuts: {tally}", engine.name(), load.name());
    for failure in &tally.failures {
        println!("  {failure}");
    }
    tally
}

async fn keeps_everything(engine: Engine, load: Load) {
    let tally = cuts(engine, load).await;
    assert_eq!(tally.kept, tally.tried, "{tally:#?}");
}

#[tokio::test]
async fn cuts_redb_keeps_everything_under_a_coordinators_load() {
    keeps_everything(Engine::Redb, Load::Coordinator).await;
}

#[tokio::test]
async fn cuts_redb_keeps_everything_under_an_agents_load() {
    keeps_everything(Engine::Redb, Load::Agent).await;
}

#[tokio::test]
async fn cuts_redb_keeps_everything_of_large_commits() {
    keeps_everything(Engine::Redb, Load::Large).await;
}

#[tokio::test]
async fn cuts_sled_keeps_everything_under_a_coordinators_load() {
    keeps_everything(Engine::Sled, Load::Coordinator).await;
}

#[tokio::test]
async fn cuts_sled_keeps_everything_under_an_agents_load() {
    keeps_everything(Engine::Sled, Load::Agent).await;
}

#[tokio::test]
async fn cuts_sled_keeps_everything_of_large_commits() {
    keeps_everything(Engine::Sled, Load::Large).await;
}

/// Shows that the tests above would notice: with a sync at the end of large groups only, sled loses
/// its log in a few of a hundred cuts.
#[tokio::test]
async fn cuts_sled_with_large_groups_loses_its_log() {
    const ROUNDS: usize = 10;
    for _ in 0..ROUNDS {
        if cuts(Engine::SledLargeGroups, Load::Coordinator).await.refused > 0 {
            return;
        }
    }
    panic!("{ROUNDS} times nothing was found");
}

async fn damages(engine: Engine) {
    let count = number("MUSTER_DAMAGES", 100);
    let tally = damage(engine, count, &entropy()).await.expect("damages");
    println!("{}, damaged files: {tally}", engine.name());
    assert_eq!((tally.silent, tally.failed), (0, 0), "{tally:#?}");
    assert!(tally.refused > 0, "{tally:#?}");
}

#[tokio::test]
async fn cuts_redb_refuses_damaged_files() {
    damages(Engine::Redb).await;
}

#[tokio::test]
async fn cuts_sled_refuses_damaged_files() {
    damages(Engine::Sled).await;
}
