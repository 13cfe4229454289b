//! What every [`Kv`] must do. Each implementation's tests call [`run`].

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::{Change, KvError, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, SharedKv};

/// Opens the map; called again after each close, on the same data.
pub(super) type Open = Box<dyn Fn() -> SharedKv + Send + Sync>;

pub(super) async fn run(open: Open) {
    let kv = open();
    reads_what_was_committed(&kv).await;
    a_commit_applies_in_order(&kv).await;
    scans_page_in_key_order(&kv).await;
    limits_are_enforced(&kv).await;
    kv.close().await;
    assert!(matches!(kv.get(b"a").await, Err(KvError::Closed)));
    assert!(matches!(kv.commit(vec![]).await, Err(KvError::Closed)));
    drop(kv);
    behaves_like_a_map(&open).await;
}

fn put(key: &[u8], value: impl Into<Bytes>) -> Change {
    Change::Put(Bytes::copy_from_slice(key), value.into())
}

fn delete(key: &[u8]) -> Change {
    Change::Delete(Bytes::copy_from_slice(key))
}

async fn reads_what_was_committed(kv: &SharedKv) {
    assert_eq!(kv.get(b"a").await.unwrap(), None);
    for size in [0, 1, 4_091, 4_092, 4_093, 8_188, 8_189, 100 * 1024, MAX_VALUE_BYTES, 5] {
        let value = Bytes::from((0..size).map(|n| n.to_le_bytes()[0]).collect::<Vec<_>>());
        kv.commit(vec![put(b"a", value.clone())]).await.unwrap();
        assert_eq!(kv.get(b"a").await.unwrap(), Some(value.clone()), "{size}");
        assert_eq!(kv.scan(b"a", None, 9).await.unwrap(), [(Bytes::from("a"), value)]);
    }
    kv.commit(vec![delete(b"a"), delete(b"never")]).await.unwrap();
    assert_eq!(kv.get(b"a").await.unwrap(), None);
}

async fn a_commit_applies_in_order(kv: &SharedKv) {
    kv.commit(vec![put(b"o", "1"), delete(b"o"), put(b"o", "2")]).await.unwrap();
    assert_eq!(kv.get(b"o").await.unwrap(), Some(Bytes::from("2")));
    kv.commit(vec![put(b"o", "3"), delete(b"o")]).await.unwrap();
    assert_eq!(kv.get(b"o").await.unwrap(), None);
}

async fn scans_page_in_key_order(kv: &SharedKv) {
    let keys: [&[u8]; 7] = [b"p", b"p\0", b"p\0\0", b"p\0\x01", b"p\x01", b"p\xff", b"q"];
    let big = Bytes::from(vec![7; 20_000]);
    kv.commit(keys.iter().rev().map(|k| put(k, big.clone())).collect()).await.unwrap();
    let names = |entries: Vec<(Bytes, Bytes)>| -> Vec<Bytes> {
        entries.into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!(names(kv.scan(b"p", None, 100).await.unwrap()), keys[..6]);
    assert_eq!(names(kv.scan(b"p\0", None, 100).await.unwrap()), keys[1..4]);
    assert_eq!(names(kv.scan(b"p", Some(b"p\0\0"), 2).await.unwrap()), keys[3..5]);
    assert_eq!(names(kv.scan(b"p", Some(b"a"), 1).await.unwrap()), keys[..1]);
    assert_eq!(names(kv.scan(b"p", Some(b"z"), 1).await.unwrap()), keys[..0]);
    assert_eq!(names(kv.scan(b"p", None, 0).await.unwrap()), keys[..0]);
    kv.commit(keys.iter().map(|k| delete(k)).collect()).await.unwrap();
    assert!(kv.scan(b"", None, 9).await.unwrap().is_empty());
}

async fn limits_are_enforced(kv: &SharedKv) {
    let refused = [
        vec![put(&vec![1; MAX_KEY_BYTES + 1], "v")],
        vec![put(b"l", vec![1; MAX_VALUE_BYTES + 1])],
        (0..=MAX_COMMIT_BYTES / MAX_VALUE_BYTES)
            .map(|n| put(&n.to_be_bytes(), vec![1; MAX_VALUE_BYTES]))
            .collect(),
    ];
    for mut changes in refused {
        changes.insert(0, put(b"l", "1"));
        let error = kv.commit(changes).await.unwrap_err();
        assert!(matches!(error, KvError::TooLarge { .. }), "{error}");
        assert_eq!(kv.get(b"l").await.unwrap(), None, "nothing was written");
    }
    let longest = vec![0; MAX_KEY_BYTES];
    kv.commit(vec![put(&longest, vec![1; MAX_VALUE_BYTES])]).await.unwrap();
    assert_eq!(kv.get(&longest).await.unwrap().map(|v| v.len()), Some(MAX_VALUE_BYTES));
    kv.commit(vec![delete(&longest)]).await.unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Commit(Vec<(u8, Option<usize>)>),
    Scan { prefix: Vec<u8>, after: Option<u8>, limit: usize },
    Reopen,
}

fn key(n: u8) -> Bytes {
    Bytes::from([&b"k"[..n.min(1).into()], &[n / 8, n % 8]].concat())
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![3 => 0..50usize, 1 => 4_000..9_000usize, 1 => 0..MAX_VALUE_BYTES];
    let change = (0..32u8, proptest::option::weighted(0.8, size));
    prop_oneof![
        6 => proptest::collection::vec(change, 1..6).prop_map(Op::Commit),
        3 => (proptest::collection::vec(0..8u8, 0..2), proptest::option::of(0..32u8), 0..10usize)
            .prop_map(|(prefix, after, limit)| Op::Scan { prefix, after, limit }),
        1 => Just(Op::Reopen),
    ]
}

/// Random operations, compared with a `BTreeMap` after each.
async fn behaves_like_a_map(open: &Open) {
    let mut kv = open();
    let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    let mut runner = TestRunner::deterministic();
    for round in 0..150u8 {
        match op().new_tree(&mut runner).unwrap().current() {
            Op::Commit(changes) => {
                let mut batch = Vec::new();
                for (n, size) in changes {
                    match size {
                        Some(size) => {
                            let value = Bytes::from(vec![round; size]);
                            model.insert(key(n), value.clone());
                            batch.push(Change::Put(key(n), value));
                        }
                        None => {
                            model.remove(&key(n));
                            batch.push(Change::Delete(key(n)));
                        }
                    }
                }
                kv.commit(batch).await.unwrap();
            }
            Op::Scan { prefix, after, limit } => {
                let after = after.map(key);
                let expected: Vec<_> = model
                    .iter()
                    .filter(|(k, _)| k.starts_with(&prefix))
                    .filter(|(k, _)| after.as_ref().is_none_or(|a| *k > a))
                    .take(limit)
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                let got = kv.scan(&prefix, after.as_deref(), limit).await.unwrap();
                assert!(got == expected, "scan of {prefix:?} after {after:?} in round {round}");
            }
            Op::Reopen => {
                kv.close().await;
                drop(kv);
                kv = open();
            }
        }
        for n in 0..32 {
            let got = kv.get(&key(n)).await.unwrap();
            assert!(got.as_ref() == model.get(&key(n)), "key {n} in round {round}");
        }
    }
    kv.close().await;
}
