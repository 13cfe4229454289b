//! An acknowledged commit survives a power cut: 50 cuts of a disk that a guest with a real kernel
//! and ext4 wrote to through QEMU. Needs the guest of `scripts/build-guest-image.sh`.

use muster_shared::entropy::SeededEntropy;
use muster_tests::guest::image_dir;
use muster_tests::power_cut::{Found, Recording};

async fn cut(rule: &str, cuts: usize) -> Vec<Found> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let recording = Recording::make(dir.path(), &image_dir(), rule).expect("recording");
    recording.cut(cuts, &SeededEntropy::new(1)).await.expect("cuts")
}

#[tokio::test]
async fn power_cuts_lose_no_acknowledged_commit() {
    let found = cut("every-commit", 50).await;
    assert_eq!(found.len(), 50);
    for cut in &found {
        assert!(cut.problems.is_empty(), "{cut:#?}");
        assert_eq!(cut.blob_files, 0, "{cut:#?}");
    }
    let commits: std::collections::BTreeSet<u64> = found.iter().map(|f| f.acknowledged).collect();
    println!("50 cuts after {} different commits", commits.len());
    assert!(commits.len() > 20, "the cuts lie apart: {commits:?}");
}

/// Shows that the test above would notice: without the sync, commits are lost.
#[tokio::test]
async fn power_cuts_without_the_sync_lose_commits() {
    let found = cut("unsafe", 15).await;
    let damaged = found.iter().filter(|cut| !cut.problems.is_empty()).count();
    println!("{damaged} of 15 cuts lost acknowledged commits");
    assert!(damaged > 0, "{found:#?}");
}
