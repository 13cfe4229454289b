//! Durable commits per second of the embedded store on a real disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use muster_coordinator::store::{Expect, KvStore, Store as _, Write};
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::kv::{Engine, open_as};
use muster_shared::threads::OsThreads;
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

/// As a task's record and its index entry.
const VALUE_BYTES: usize = 600;
const CACHE_BYTES: u64 = 64 * 1024 * 1024;

fn commits(c: &mut Criterion) {
    for engine in [Engine::Redb, Engine::Sled] {
        commits_on(engine, c);
    }
}

fn commits_on(engine: Engine, c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let runtime = Runtime::new().expect("runtime");
    let store = runtime.block_on(async {
        let clock = Arc::new(SystemClock::new());
        let opened = open_as(engine, dir.path(), CACHE_BYTES, &OsThreads, clock.wall()).await;
        let kv = opened.expect("map");
        Arc::new(KvStore::open(kv, clock, &TaskTracker::new()).await.expect("store"))
    });
    let mut group = c.benchmark_group(format!("durable_commits_{engine}"));
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    for writers in [1u64, 64, 512] {
        group.throughput(Throughput::Elements(writers));
        group.bench_function(format!("{writers}_writers"), |b| {
            b.iter_custom(|rounds| runtime.block_on(run(&store, writers, rounds)));
        });
    }
    group.finish();
    runtime.block_on(store.close());
}

/// Each writer makes `rounds` commits of two records, one after the other.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
async fn run(store: &Arc<KvStore>, writers: u64, rounds: u64) -> Duration {
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let store = Arc::clone(store);
        running.spawn(async move {
            for round in 0..rounds {
                let key = |kind| format!("{kind}/{writer}/{}", round % 100);
                let task = Write::put(key("task"), Expect::Any, vec![7; VALUE_BYTES]);
                let open = Write::put(key("open"), Expect::Any, "{}");
                store.commit(vec![task, open]).await.expect("commit");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("writer");
    }
    start.elapsed()
}

criterion_group!(benches, commits);
criterion_main!(benches);
