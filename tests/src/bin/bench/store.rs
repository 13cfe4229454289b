//! The maps under the store and the journal, side by side.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::kv::{Change, Engine, SharedKv, open_as};
use muster_shared::threads::OsThreads;
use muster_tests::daemon::temp_dir;

use super::{ms, now, per_second, row};

/// As a coordinator's.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// As a task's record.
const VALUE_BYTES: usize = 600;
const SECONDS: u64 = 3;
const READS: u32 = 20_000;
/// Records of the map that is opened again.
const RECORDS: u32 = 100_000;
const RECORDS_PER_COMMIT: u32 = 100;

pub(super) async fn run() {
    for engine in [Engine::Redb, Engine::Sled] {
        for writers in [1, 64, 512] {
            let dir = temp_dir();
            let kv = open(engine, dir.path()).await;
            let done = commits(&kv, writers).await;
            kv.close().await;
            row(
                &format!("{engine}: durable commits per second, {writers} writers"),
                &per_second(done, Duration::from_secs(SECONDS)),
                "-",
            );
        }
        reads_and_start(engine).await;
    }
}

async fn open(engine: Engine, folder: &Path) -> SharedKv {
    let now = SystemClock::new().wall();
    open_as(engine, folder, CACHE_BYTES, &OsThreads, now).await.expect("a map opens")
}

fn key(number: u32) -> Bytes {
    // Neighbours in time are not neighbours in the map.
    Bytes::from(format!("task/{:08x}", number.wrapping_mul(0x9e37_79b1)))
}

async fn commits(kv: &SharedKv, writers: u32) -> u64 {
    let deadline = now() + Duration::from_secs(SECONDS);
    let mut running = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let kv = Arc::clone(kv);
        running.spawn(async move {
            let mut done = 0;
            while now() < deadline {
                let number = u32::try_from(done % 1_000).expect("below 1,000");
                let put = Change::Put(key(writer << 12 | number), vec![7; VALUE_BYTES].into());
                kv.commit(vec![put]).await.expect("a commit");
                done += 1;
            }
            done
        });
    }
    running.join_all().await.into_iter().sum()
}

async fn reads_and_start(engine: Engine) {
    let dir = temp_dir();
    let kv = open(engine, dir.path()).await;
    for first in (0..RECORDS).step_by(usize::try_from(RECORDS_PER_COMMIT).expect("small")) {
        let put = |number| Change::Put(key(number), vec![7; VALUE_BYTES].into());
        kv.commit((first..first + RECORDS_PER_COMMIT).map(put).collect()).await.expect("a commit");
    }
    let start = now();
    for number in 0..READS {
        let found = kv.get(&key(number * 3)).await.expect("a read");
        assert!(found.is_some(), "{engine} lost a record");
    }
    let each = start.elapsed() / READS;
    row(
        &format!("{engine}: one read of 100,000 records"),
        &format!("{} µs", each.as_micros()),
        "-",
    );
    kv.close().await;
    let bytes = folder_bytes(dir.path());
    row(&format!("{engine}: files of 100,000 records"), &format!("{} MiB", bytes >> 20), "-");
    let start = now();
    let kv = open(engine, dir.path()).await;
    row(&format!("{engine}: start with 100,000 records, all checked"), &ms(start.elapsed()), "-");
    // The same records over and over: what was replaced must not add up.
    for round in 0..10 {
        for first in (0..RECORDS).step_by(10_000) {
            let put = |number| Change::Put(key(number), vec![round; VALUE_BYTES].into());
            let some = (first..first + RECORDS_PER_COMMIT * 10).map(put).collect();
            kv.commit(some).await.expect("a commit");
        }
    }
    kv.close().await;
    let bytes = folder_bytes(dir.path());
    row(&format!("{engine}: files after 100,000 rewrites"), &format!("{} MiB", bytes >> 20), "-");
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("the map's folder");
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.and_then(|entry| entry.metadata()).map_or(0, |metadata| metadata.len())
    };
    entries.map(size).sum()
}
