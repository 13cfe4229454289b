//! The embedded store on both maps.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::clock::{SystemClock, TokioClock};
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::kv::{Engine, MemKv, MemOptions, SledKv, open_as};
use muster_shared::threads::OsThreads;
use parking_lot::Mutex;

use super::super::{Expect, SharedStore, WatchEnd, conformance};
use super::*;

fn slow(seed: u64) -> MemOptions {
    let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
    MemOptions { sync: Duration::from_millis(4), entropy: Some(entropy) }
}

async fn open_mem(kv: Arc<MemKv>) -> KvStore {
    let clock = Arc::new(TokioClock::new(jiff::Timestamp::UNIX_EPOCH));
    KvStore::open(kv, clock, &TaskTracker::new()).await.unwrap()
}

async fn conforms_on(engine: Engine, folder: &std::path::Path) {
    let folder = folder.to_owned();
    conformance::run(Box::new(move || {
        let folder = folder.clone();
        Box::pin(async move {
            let now = jiff::Timestamp::UNIX_EPOCH;
            let kv = open_as(engine, &folder, 8 << 20, &OsThreads, now).await.unwrap();
            let clock = Arc::new(SystemClock::new());
            let store = KvStore::open(kv, clock, &TaskTracker::new()).await.unwrap();
            Arc::new(store) as SharedStore
        })
    }))
    .await;
}

#[tokio::test]
async fn conforms_on_redb() {
    let dir = tempfile::tempdir().unwrap();
    conforms_on(Engine::Redb, dir.path()).await;
}

#[tokio::test]
async fn conforms_on_sled() {
    let dir = tempfile::tempdir().unwrap();
    conforms_on(Engine::Sled, dir.path()).await;
    assert_eq!(SledKv::blob_files(dir.path()).unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn conforms_in_memory() {
    let current: Arc<Mutex<Arc<MemKv>>> = Arc::new(Mutex::new(Arc::new(MemKv::new(slow(1)))));
    let entropy = SeededEntropy::new(2);
    conformance::run(Box::new(move || {
        let next = {
            let mut current = current.lock();
            *current = Arc::new(current.crash(&entropy));
            Arc::clone(&current)
        };
        Box::pin(async move { Arc::new(open_mem(next).await) as SharedStore })
    }))
    .await;
}

/// Writers under way when the power goes: what was acknowledged is there, whole, and no
/// revision is ever given twice.
#[tokio::test(start_paused = true)]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    for seed in 0..40 {
        let mut kv = Arc::new(MemKv::new(slow(seed)));
        let mut acknowledged: BTreeMap<Revision, String> = BTreeMap::new();
        for life in 0..4u64 {
            let store = Arc::new(open_mem(Arc::clone(&kv)).await);
            let mut writers = tokio::task::JoinSet::new();
            for n in 0..30 {
                let (store, key) = (Arc::clone(&store), format!("k/{life}/{n}"));
                writers.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(n / 3)).await;
                    let pair = [key.clone(), format!("{key}/pair")];
                    let writes = pair.map(|k| Write::put(k, Expect::Absent, "v"));
                    store.commit(writes.to_vec()).await.map(|revision| (revision, key))
                });
            }
            let cut = tokio::time::sleep(Duration::from_millis(2 + seed % 12));
            tokio::pin!(cut);
            loop {
                tokio::select! {
                    biased;
                    () = &mut cut => break,
                    Some(done) = writers.join_next() => {
                        if let Ok((revision, key)) = done.unwrap() {
                            assert_eq!(acknowledged.insert(revision, key), None, "seed {seed}");
                        }
                    }
                }
            }
            kv = Arc::new(kv.crash(&SeededEntropy::new(seed + life)));
        }
        let store = open_mem(kv).await;
        for (revision, key) in acknowledged {
            let record = store.get(&key).await.unwrap().expect("it was acknowledged");
            assert_eq!(record.revision, revision);
        }
        let (records, _) = super::super::list_all(&store, "k/").await.unwrap();
        assert_eq!(records.len() % 2, 0, "a commit is all or nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn commits_that_wait_share_a_batch() {
    let kv = Arc::new(MemKv::new(slow(3)));
    let store = Arc::new(open_mem(Arc::clone(&kv)).await);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..300 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            store.commit(vec![Write::put(format!("k/{n}"), Expect::Absent, "v")]).await
        });
    }
    let mut revisions = std::collections::BTreeSet::new();
    while let Some(done) = writers.join_next().await {
        revisions.insert(done.unwrap().unwrap());
    }
    assert_eq!(revisions.len(), 300, "each has a revision of its own");
    assert!(kv.written().0 <= 3, "{:?}", kv.written());
}

#[tokio::test(start_paused = true)]
async fn a_full_device_fails_commits_and_leases_until_there_is_room() {
    let kv = Arc::new(MemKv::new(slow(4)));
    let store = open_mem(Arc::clone(&kv)).await;
    let put = || vec![Write::put("k", Expect::Absent, "v")];
    kv.set_full(true);
    let error = store.commit(put()).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(store.grant(1_000).await.is_err());
    kv.set_full(false);
    let revision = store.commit(put()).await.unwrap();
    assert_eq!(revision, Revision { epoch: 1, counter: 1 }, "the failed one left no gap");
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_removed_once_there_is_room() {
    let kv = Arc::new(MemKv::new(slow(5)));
    let store = open_mem(Arc::clone(&kv)).await;
    let lease = store.grant(1_000).await.unwrap();
    let action = super::super::Action::Put("v".into(), Some(lease));
    let write = Write { key: "m/a".to_owned(), expect: Expect::Any, action };
    let at = store.commit(vec![write]).await.unwrap();
    let mut watch = store.watch("m/", at).await.unwrap();
    kv.set_full(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(store.get("m/a").await.unwrap().is_some());
    kv.set_full(false);
    assert_eq!(watch.recv().await.unwrap().unwrap()[0].value, None);
}

#[tokio::test(start_paused = true)]
async fn a_new_epoch_orders_after_all_before() {
    let kv = Arc::new(MemKv::new(slow(6)));
    let store = open_mem(Arc::clone(&kv)).await;
    let mut last = Revision::default();
    for _ in 0..5 {
        last = store.commit(vec![Write::put("k", Expect::Any, "v")]).await.unwrap();
    }
    drop(store);
    let raised = raise_epoch(kv.as_ref()).await.unwrap();
    assert!(raised > last);
    let store = open_mem(kv).await;
    let mut watch = store.watch("", last).await.unwrap();
    assert_eq!(watch.recv().await, Some(Err(WatchEnd::Compacted)));
    assert_eq!(store.get("k").await.unwrap().unwrap().revision, last);
    let next = store.commit(vec![Write::put("k", Expect::At(last), "v")]).await.unwrap();
    assert!(next > raised && next.epoch == 2, "{next}");
}

#[tokio::test]
async fn data_of_another_format_is_refused() {
    let kv = MemKv::new(MemOptions::default());
    let newer = [2u64, 1, 0, 0].map(u64::to_be_bytes).concat();
    let state = Change::Put("m/state".into(), newer.into());
    kv.commit(vec![state]).await.unwrap();
    let clock = Arc::new(SystemClock::new());
    let error = KvStore::open(Arc::new(kv), clock, &TaskTracker::new()).await.unwrap_err();
    let text = muster_shared::error_chain::Chain(&error).to_string();
    assert!(text.contains("format 2"), "{text}");
}
