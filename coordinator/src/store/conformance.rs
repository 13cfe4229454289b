//! What every [`Store`] must do. Each implementation's tests call [`run`].

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{
    Action, Event, Expect, LeaseId, MAX_COMMIT_BYTES, MAX_COMMIT_WRITES, MAX_KEY_BYTES, MAX_PAGE,
    MAX_VALUE_BYTES, Revision, SharedStore, StoreError, Watch, WatchEnd, Write, list_all,
};

/// Opens the store; called again after each close, on the same data.
pub(super) type Open = Box<dyn Fn() -> BoxFuture<'static, SharedStore> + Send + Sync>;

/// Short, because the suite waits for it.
const TTL_MS: u64 = 200;

/// Runs the suite on an empty store.
pub(super) async fn run(open: Open) {
    let store = open().await;
    expectations_decide(&store).await;
    a_commit_is_all_or_nothing(&store).await;
    a_commit_without_effect_makes_no_revision(&store).await;
    revisions_grow(&store).await;
    lists_page_in_key_order(&store).await;
    limits_are_enforced(&store).await;
    watches_miss_nothing(&store).await;
    one_of_many_racers_wins(&store).await;
    leases_take_their_records_with_them(&store).await;
    survives_a_restart(store, &open).await;
    leases_survive_a_restart(&open).await;
}

fn put(key: &str, expect: Expect, value: &str) -> Write {
    Write::put(key, expect, value.to_owned())
}

fn leased(key: &str, lease: LeaseId) -> Write {
    let action = Action::Put("x".into(), Some(lease));
    Write { key: key.to_owned(), expect: Expect::Any, action }
}

async fn value(store: &SharedStore, key: &str) -> Option<Bytes> {
    store.get(key).await.unwrap().map(|record| record.value)
}

#[track_caller]
fn conflict(outcome: Result<Revision, StoreError>, expected: &str) {
    match outcome {
        Err(StoreError::Conflict { key }) => assert_eq!(key, expected),
        other => panic!("{other:?} instead of a conflict at {expected}"),
    }
}

/// The next commit; the suite's watches never end early.
async fn next_commit(watch: &mut Watch) -> Vec<Event> {
    watch.recv().await.expect("a watch ends with a reason").expect("this watch goes on")
}

/// The next commit, which changed one thing.
async fn next(watch: &mut Watch) -> Event {
    let mut events = next_commit(watch).await;
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

async fn expectations_decide(store: &SharedStore) {
    let absent = |v| put("e/k", Expect::Absent, v);
    conflict(store.commit(vec![put("e/k", Expect::At(Revision::default()), "0")]).await, "e/k");
    let first = store.commit(vec![absent("1")]).await.unwrap();
    conflict(store.commit(vec![absent("2")]).await, "e/k");
    let second = store.commit(vec![put("e/k", Expect::At(first), "2")]).await.unwrap();
    conflict(store.commit(vec![put("e/k", Expect::At(first), "3")]).await, "e/k");
    conflict(store.commit(vec![Write::delete("e/k", Expect::At(first))]).await, "e/k");
    let record = store.get("e/k").await.unwrap().unwrap();
    assert_eq!((record.key.as_str(), record.revision), ("e/k", second));
    store.commit(vec![put("e/k", Expect::Any, "4")]).await.unwrap();
    store.commit(vec![Write::delete("e/k", Expect::Any)]).await.unwrap();
    assert_eq!(value(store, "e/k").await, None);
    store.commit(vec![absent("5"), Write::check("e/other", Expect::Absent)]).await.unwrap();
    store.commit(vec![Write::delete("e/k", Expect::Any)]).await.unwrap();
}

async fn a_commit_is_all_or_nothing(store: &SharedStore) {
    store.commit(vec![put("t/b", Expect::Any, "1")]).await.unwrap();
    let outcome = store
        .commit(vec![
            put("t/a", Expect::Any, "1"),
            put("t/b", Expect::Absent, "2"),
            put("t/c", Expect::At(Revision::default()), "1"),
        ])
        .await;
    conflict(outcome, "t/b");
    conflict(
        store.commit(vec![put("t/a", Expect::Any, "1"), Write::check("t/b", Expect::Absent)]).await,
        "t/b",
    );
    assert_eq!(value(store, "t/a").await, None);
    let revision = store
        .commit(vec![put("t/a", Expect::Any, "1"), Write::delete("t/b", Expect::Any)])
        .await
        .unwrap();
    assert_eq!(store.get("t/a").await.unwrap().unwrap().revision, revision);
    assert_eq!(value(store, "t/b").await, None);
}

async fn a_commit_without_effect_makes_no_revision(store: &SharedStore) {
    let before = store.list("n/", None, 1).await.unwrap().revision;
    let writes = vec![Write::check("n/a", Expect::Absent), Write::delete("n/b", Expect::Any)];
    assert_eq!(store.commit(writes).await.unwrap(), before);
    assert_eq!(store.commit(vec![]).await.unwrap(), before);
    assert_eq!(store.list("n/", None, 1).await.unwrap().revision, before);
}

async fn revisions_grow(store: &SharedStore) {
    let mut last = Revision::default();
    for n in 0..20 {
        let revision = store.commit(vec![put("g/k", Expect::Any, &n.to_string())]).await.unwrap();
        assert!(revision > last);
        last = revision;
    }
    assert!(store.list("g/", None, 1).await.unwrap().revision >= last);
}

async fn lists_page_in_key_order(store: &SharedStore) {
    let all: Vec<String> = (0..1_050).map(|n| format!("l/{n:04}")).collect();
    for some in all.chunks(MAX_COMMIT_WRITES) {
        store.commit(some.iter().map(|k| put(k, Expect::Any, k)).collect()).await.unwrap();
    }
    store.commit(vec![put("l", Expect::Any, ""), put("l0", Expect::Any, "")]).await.unwrap();
    let keys = |page: &super::Page| -> Vec<String> {
        page.records.iter().map(|record| record.key.clone()).collect()
    };
    let page = store.list("l/", None, 3).await.unwrap();
    assert_eq!(keys(&page), all[..3]);
    assert_eq!(page.next.as_deref(), Some("l/0002"));
    let page = store.list("l/", page.next.as_deref(), 3).await.unwrap();
    assert_eq!(keys(&page), all[3..6]);
    let page = store.list("l/", Some("l/1046"), 3).await.unwrap();
    assert_eq!((keys(&page).as_slice(), page.next), (&all[1_047..], None));
    assert!(store.list("l/", Some("l/1049"), 3).await.unwrap().records.is_empty());
    assert!(store.list("none/", None, 3).await.unwrap().records.is_empty());
    assert_eq!(store.list("l/", None, 5_000).await.unwrap().records.len(), MAX_PAGE);
    assert_eq!(store.list("l/", None, 0).await.unwrap().records.len(), 1);
    let (records, _) = list_all(store.as_ref(), "l/").await.unwrap();
    assert_eq!(records.iter().map(|r| r.key.clone()).collect::<Vec<_>>(), all);
    assert!(records.iter().all(|r| r.value == r.key.as_bytes()));
}

async fn limits_are_enforced(store: &SharedStore) {
    let largest = Bytes::from(vec![b'x'; MAX_VALUE_BYTES]);
    let longest = "k".repeat(MAX_KEY_BYTES);
    store.commit(vec![Write::put(longest.as_str(), Expect::Any, largest.clone())]).await.unwrap();
    assert_eq!(value(store, &longest).await.as_ref(), Some(&largest));
    store.commit(vec![Write::delete(longest.as_str(), Expect::Any)]).await.unwrap();
    let over = MAX_COMMIT_BYTES / MAX_VALUE_BYTES;
    let refused = [
        vec![Write::put("x/v", Expect::Any, vec![0; MAX_VALUE_BYTES + 1])],
        vec![put(&"k".repeat(MAX_KEY_BYTES + 1), Expect::Any, "")],
        (0..=MAX_COMMIT_WRITES).map(|n| put(&format!("x/{n}"), Expect::Any, "")).collect(),
        (0..over).map(|n| Write::put(format!("x/{n}"), Expect::Any, largest.clone())).collect(),
        vec![put("x/1", Expect::Any, ""), Write::check("x/1", Expect::Absent)],
    ];
    for writes in refused {
        let error = store.commit(writes).await.unwrap_err();
        assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    }
    assert!(store.list("x/", None, 1).await.unwrap().records.is_empty(), "nothing was written");
    let many = (0..MAX_COMMIT_WRITES).map(|n| put(&format!("x/{n}"), Expect::Any, "")).collect();
    store.commit(many).await.unwrap();
}

async fn watches_miss_nothing(store: &SharedStore) {
    let start = store.commit(vec![put("w/a", Expect::Any, "0")]).await.unwrap();
    let first = store
        .commit(vec![put("w/a", Expect::Any, "1"), put("v/a", Expect::Any, "1")])
        .await
        .unwrap();
    let mut watch = store.watch("w/", start).await.unwrap();
    let mut late = store.watch("w/", first).await.unwrap();
    let second = store
        .commit(vec![put("w/b", Expect::Any, "2"), Write::delete("w/a", Expect::Any)])
        .await
        .unwrap();
    let event = |key: &str, value: Option<&'static str>, revision| Event {
        key: key.to_owned(),
        value: value.map(Bytes::from),
        revision,
    };
    assert_eq!(next(&mut watch).await, event("w/a", Some("1"), first));
    for watch in [&mut watch, &mut late] {
        let both = vec![event("w/b", Some("2"), second), event("w/a", None, second)];
        assert_eq!(next_commit(watch).await, both);
    }
    // A list and a watch from its revision see everything between them.
    let page = store.list("w/", None, 10).await.unwrap();
    let mut watch = store.watch("w/", page.revision).await.unwrap();
    let third = store.commit(vec![put("w/c", Expect::Any, "3")]).await.unwrap();
    assert_eq!(next(&mut watch).await, event("w/c", Some("3"), third));
}

/// Of many that take the same step at once exactly one does, and every commit is seen once.
async fn one_of_many_racers_wins(store: &SharedStore) {
    const ROUNDS: u32 = 5;
    const RACERS: u32 = 16;
    let mut revision = store.commit(vec![put("race", Expect::Absent, "0")]).await.unwrap();
    let mut watch = store.watch("race", revision).await.unwrap();
    for round in 1..=ROUNDS {
        let mut racers = tokio::task::JoinSet::new();
        for racer in 0..RACERS {
            let store = SharedStore::clone(store);
            racers.spawn(async move {
                let value = format!("{round}/{racer}");
                let outcome = store.commit(vec![put("race", Expect::At(revision), &value)]).await;
                (value, outcome)
            });
        }
        let mut winners = Vec::new();
        while let Some(done) = racers.join_next().await {
            match done.unwrap() {
                (value, Ok(at)) => winners.push((value, at)),
                (_, Err(StoreError::Conflict { .. })) => {}
                (_, Err(error)) => panic!("{error}"),
            }
        }
        let [(winner, at)] = winners.as_slice() else { panic!("{winners:?}") };
        let seen = next(&mut watch).await;
        assert_eq!((seen.value.unwrap(), seen.revision), (Bytes::from(winner.clone()), *at));
        revision = *at;
    }
}

async fn leases_take_their_records_with_them(store: &SharedStore) {
    let unknown = store.commit(vec![leased("m/a", LeaseId(u64::MAX))]).await;
    assert!(matches!(unknown, Err(StoreError::LeaseExpired)), "{unknown:?}");

    // Revoked: at once.
    let lease = store.grant(60_000).await.unwrap();
    let at = store.commit(vec![leased("m/a", lease), leased("m/b", lease)]).await.unwrap();
    let mut watch = store.watch("m/", at).await.unwrap();
    store.commit(vec![put("m/b", Expect::Any, "kept")]).await.unwrap();
    assert_eq!(next(&mut watch).await.key, "m/b");
    store.renew(lease).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(value(store, "m/a").await, None);
    assert_eq!(value(store, "m/b").await, Some("kept".into()), "its last write had no lease");
    let gone = next(&mut watch).await;
    assert_eq!((gone.key.as_str(), gone.value), ("m/a", None));
    assert!(matches!(store.renew(lease).await, Err(StoreError::LeaseExpired)));
    assert!(store.commit(vec![leased("m/a", lease)]).await.is_err());
    store.revoke(lease).await.unwrap();

    // Expired: a ttl after the last renewal.
    let kept = store.grant(60_000).await.unwrap();
    let lost = store.grant(TTL_MS).await.unwrap();
    assert!(kept != lost && lease != lost && lease != kept);
    store.commit(vec![leased("m/kept", kept), leased("m/moved", lost)]).await.unwrap();
    let at = store.commit(vec![leased("m/lost", lost), leased("m/moved", kept)]).await.unwrap();
    let mut watch = store.watch("m/", at).await.unwrap();
    let gone = next(&mut watch).await;
    assert_eq!((gone.key.as_str(), gone.value), ("m/lost", None));
    assert!(matches!(store.renew(lost).await, Err(StoreError::LeaseExpired)));
    for key in ["m/kept", "m/moved"] {
        assert!(value(store, key).await.is_some(), "{key}");
    }
    store.revoke(kept).await.unwrap();
}

async fn survives_a_restart(store: SharedStore, open: &Open) {
    let early = store.commit(vec![put("s/a", Expect::Any, "1")]).await.unwrap();
    let last = store.commit(vec![put("s/b", Expect::Any, "2")]).await.unwrap();
    let (before, _) = list_all(store.as_ref(), "").await.unwrap();
    let mut watch = store.watch("s/", last).await.unwrap();
    store.close().await;
    assert_eq!(watch.recv().await, Some(Err(WatchEnd::Closed)));
    assert_eq!(watch.recv().await, None);
    for outcome in [store.get("s/a").await.map(drop), store.commit(vec![]).await.map(drop)] {
        assert!(matches!(outcome, Err(StoreError::Unavailable { .. })));
    }
    drop(store);

    let store = open().await;
    let (after, revision) = list_all(store.as_ref(), "").await.unwrap();
    assert_eq!(after, before);
    assert!(revision >= last);
    let mut old = store.watch("s/", early).await.unwrap();
    let mut watch = store.watch("s/", last).await.unwrap();
    let next_revision = store.commit(vec![put("s/a", Expect::At(early), "3")]).await.unwrap();
    assert!(next_revision > last);
    assert_eq!(next(&mut watch).await.revision, next_revision);
    // Either all of it or none: never a gap.
    match old.recv().await.unwrap() {
        Err(end) => assert_eq!(end, WatchEnd::Compacted),
        Ok(events) => assert_eq!(events[0].revision, last),
    }
    store.close().await;
}

async fn leases_survive_a_restart(open: &Open) {
    let store = open().await;
    let kept = store.grant(60_000).await.unwrap();
    let lost = store.grant(TTL_MS).await.unwrap();
    let writes = vec![leased("r/kept", kept), leased("r/lost", lost)];
    let at = store.commit(writes).await.unwrap();
    store.close().await;
    drop(store);

    let store = open().await;
    store.renew(kept).await.unwrap();
    let mut watch = store.watch("r/", at).await.unwrap();
    let gone = next(&mut watch).await;
    assert_eq!((gone.key.as_str(), gone.value), ("r/lost", None));
    assert!(value(&store, "r/kept").await.is_some());
    let fresh = store.grant(60_000).await.unwrap();
    assert!(fresh != kept && fresh != lost);
    store.close().await;
    drop(store);

    let store = open().await;
    assert!(matches!(store.renew(lost).await, Err(StoreError::LeaseExpired)));
    store.revoke(kept).await.unwrap();
    assert_eq!(value(&store, "r/kept").await, None);
    store.close().await;
}
