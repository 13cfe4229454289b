//! An acknowledged commit survives a power cut: 50 cuts of a disk that a guest with a real kernel
//! and ext4 wrote to through QEMU; and a full file system. Needs the guest of
//! `scripts/build-guest-image.sh`.

use muster_shared::entropy::SeededEntropy;
use muster_tests::cuts::Engine;
use muster_tests::guest::image_dir;
use muster_tests::power_cut::{Found, Recording, run_guest};

async fn cut(engine: Engine, cuts: usize) -> Vec<Found> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let recording = Recording::make(dir.path(), &image_dir(), engine).expect("recording");
    recording.cut(cuts, &SeededEntropy::new(1)).await.expect("cuts")
}

async fn keeps_everything(engine: Engine) {
    let found = cut(engine, 50).await;
    assert_eq!(found.len(), 50);
    for cut in &found {
        assert!(cut.problems.is_empty(), "{cut:#?}");
        assert_eq!(cut.blob_files, 0, "{cut:#?}");
    }
    let commits: std::collections::BTreeSet<u64> = found.iter().map(|f| f.acknowledged).collect();
    println!("{}: 50 cuts after {} different commits", engine.name(), commits.len());
    assert!(commits.len() > 20, "the cuts lie apart: {commits:?}");
}

#[tokio::test]
async fn power_cuts_lose_no_acknowledged_commit_on_redb() {
    keeps_everything(Engine::Redb).await;
}

#[tokio::test]
async fn power_cuts_lose_no_acknowledged_commit_on_sled() {
    keeps_everything(Engine::Sled).await;
}

/// Shows that the tests above would notice: without the sync, commits are lost.
#[tokio::test]
async fn power_cuts_without_the_sync_lose_commits() {
    let found = cut(Engine::SledUnsynced, 15).await;
    let damaged = found.iter().filter(|cut| !cut.problems.is_empty()).count();
    println!("{damaged} of 15 cuts lost acknowledged commits");
    assert!(damaged > 0, "{found:#?}");
}

#[test]
fn a_full_file_system_refuses_commits_and_harms_nothing() {
    for engine in [Engine::Redb, Engine::Sled] {
        let dir = tempfile::tempdir().expect("temporary directory");
        run_guest(dir.path(), &image_dir(), engine, "fill").expect("the guest finishes");
    }
}
