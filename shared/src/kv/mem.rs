//! The map in memory, for simulations and tests: what a commit may lose in a power cut, it loses
//! here too, as a seed decides.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::{Change, Kv, KvError, check_limits};
use crate::entropy::{Entropy, SharedEntropy};

/// How the map behaves.
#[derive(Clone, Debug, Default)]
pub struct MemOptions {
    /// Longest time a commit takes to become durable; each takes a random part of it.
    pub sync: Duration,
    /// Decides about delays; needed when `sync` is not zero.
    pub entropy: Option<SharedEntropy>,
}

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Commits fail with [`KvError::Full`] and write nothing.
    Full,
    /// The device failed: commits fail with [`KvError::Io`].
    Broken,
}

/// A map in memory.
#[derive(Debug, Default)]
pub struct MemKv {
    options: MemOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What survives a power cut for sure.
    durable: BTreeMap<Bytes, Bytes>,
    /// What readers see: `durable` and the pending commits.
    visible: BTreeMap<Bytes, Bytes>,
    /// Commits that are not durable yet, in order; the first has the number `first_pending`.
    pending: VecDeque<Vec<Change>>,
    first_pending: u64,
    fault: Option<Fault>,
    closed: bool,
    commits: u64,
    changes: u64,
}

fn apply(map: &mut BTreeMap<Bytes, Bytes>, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => {
                map.insert(key.clone(), value.clone());
            }
            Change::Delete(key) => {
                map.remove(key);
            }
        }
    }
}

impl State {
    fn check_open(&self) -> Result<(), KvError> {
        if self.closed { Err(KvError::Closed) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<(), KvError> {
        self.check_open()?;
        match self.fault {
            None => Ok(()),
            Some(Fault::Full) => Err(KvError::Full { free_bytes: 0, needed_bytes: 1 }),
            Some(Fault::Broken) => Err(KvError::Io {
                action: "sync",
                source: Arc::new(std::io::Error::other("injected fault")),
            }),
        }
    }

    /// Makes visible; returns the commit's number.
    fn begin(&mut self, changes: Vec<Change>) -> u64 {
        apply(&mut self.visible, &changes);
        self.commits += 1;
        self.changes += u64::try_from(changes.len()).unwrap_or(u64::MAX);
        let in_order = u64::try_from(self.pending.len()).unwrap_or(u64::MAX);
        self.pending.push_back(changes);
        self.first_pending + in_order
    }

    /// Makes commit `number` and all before it durable: they lie in one log.
    fn sync_through(&mut self, number: u64) {
        while self.first_pending <= number {
            let Some(changes) = self.pending.pop_front() else { return };
            apply(&mut self.durable, &changes);
            self.first_pending += 1;
        }
    }
}

impl MemKv {
    /// An empty map.
    #[must_use]
    pub fn new(options: MemOptions) -> Self {
        Self { options, state: Mutex::default() }
    }

    /// Cuts the power: this handle is dead from now on, the one returned holds every acknowledged
    /// commit and, as `entropy` decides, the first few of those under way.
    #[must_use]
    pub fn crash(&self, entropy: &dyn Entropy) -> Self {
        let mut state = self.state.lock();
        let under_way = u64::try_from(state.pending.len()).unwrap_or(u64::MAX);
        let survive = entropy.u64() % (under_way + 1);
        if survive > 0 {
            let last = state.first_pending + survive - 1;
            state.sync_through(last);
        }
        state.closed = true;
        let durable = std::mem::take(&mut state.durable);
        let fresh = State { visible: durable.clone(), durable, ..State::default() };
        Self { options: self.options.clone(), state: Mutex::new(fresh) }
    }

    /// From now on commits find no room on the device, or find it again.
    pub fn set_full(&self, full: bool) {
        self.state.lock().fault = full.then_some(Fault::Full);
    }

    /// From now on the device fails.
    pub fn break_device(&self) {
        self.state.lock().fault = Some(Fault::Broken);
    }

    /// Commits made so far, and changes in them.
    #[must_use]
    pub fn written(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.commits, state.changes)
    }

    /// All that readers see, in key order.
    #[must_use]
    pub fn contents(&self) -> Vec<(Bytes, Bytes)> {
        self.state.lock().visible.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// What would survive a power cut now for sure, in key order.
    #[must_use]
    pub fn durable(&self) -> Vec<(Bytes, Bytes)> {
        self.state.lock().durable.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// How many commits have become durable.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.state.lock().first_pending
    }

    fn delay(&self) -> Duration {
        match &self.options.entropy {
            Some(entropy) if !self.options.sync.is_zero() => {
                self.options.sync.mul_f64(entropy.fraction())
            }
            _ => self.options.sync,
        }
    }
}

#[async_trait]
impl Kv for MemKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let state = self.state.lock();
        state.check_open()?;
        Ok(state.visible.get(key).cloned())
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        let state = self.state.lock();
        state.check_open()?;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let entries = state.visible.range::<[u8], _>((start, Bound::Unbounded));
        let matching = entries.take_while(|(key, _)| key.starts_with(prefix));
        Ok(matching.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError> {
        check_limits(&changes)?;
        let number = {
            let mut state = self.state.lock();
            state.check_writable()?;
            state.begin(changes)
        };
        let delay = self.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut state = self.state.lock();
        // A device that fills up now had room for this commit; one that failed did not write it.
        if state.fault != Some(Fault::Full) {
            state.check_writable()?;
        }
        state.check_open()?;
        state.sync_through(number);
        Ok(())
    }

    async fn close(&self) {
        let mut state = self.state.lock();
        let under_way = u64::try_from(state.pending.len()).unwrap_or(u64::MAX);
        let end = state.first_pending.saturating_add(under_way);
        state.sync_through(end);
        state.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SharedKv, conformance};
    use super::*;
    use crate::entropy::SeededEntropy;

    fn put(key: &str, value: &str) -> Vec<Change> {
        vec![Change::Put(Bytes::from(key.to_owned()), Bytes::from(value.to_owned()))]
    }

    fn slow(seed: u64) -> MemOptions {
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(seed));
        MemOptions { sync: Duration::from_millis(5), entropy: Some(entropy) }
    }

    #[tokio::test(start_paused = true)]
    async fn conforms() {
        let current: Mutex<Option<Arc<MemKv>>> = Mutex::new(None);
        let entropy = SeededEntropy::new(1);
        conformance::run(Box::new(move || {
            let mut current = current.lock();
            let next = match current.as_ref() {
                Some(old) => old.crash(&entropy),
                None => MemKv::new(slow(2)),
            };
            let next = Arc::new(next);
            *current = Some(Arc::clone(&next));
            next as SharedKv
        }))
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_keeps_what_was_acknowledged_and_a_prefix_of_the_rest() {
        let mut survivors = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let kv = Arc::new(MemKv::new(slow(seed)));
            kv.commit(put("done", "1")).await.unwrap();
            let open: Vec<_> = (0..3)
                .map(|n| {
                    let kv = Arc::clone(&kv);
                    tokio::spawn(async move { kv.commit(put(&format!("open/{n}"), "1")).await })
                })
                .collect();
            tokio::task::yield_now().await;
            let after = kv.crash(&SeededEntropy::new(seed));
            assert!(after.get(b"done").await.unwrap().is_some());
            let left = after.scan(b"open/", None, 10).await.unwrap();
            for (n, (key, _)) in left.iter().enumerate() {
                assert_eq!(key, format!("open/{n}").as_bytes(), "a prefix");
            }
            survivors.insert(left.len());
            for task in open {
                assert!(matches!(task.await.unwrap(), Err(KvError::Closed)));
            }
            assert!(matches!(kv.get(b"done").await, Err(KvError::Closed)));
        }
        assert_eq!(survivors.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[tokio::test]
    async fn a_full_device_refuses_and_recovers_a_broken_one_does_not() {
        let kv = MemKv::new(MemOptions::default());
        kv.set_full(true);
        assert!(matches!(kv.commit(put("k", "1")).await, Err(KvError::Full { .. })));
        assert_eq!(kv.get(b"k").await.unwrap(), None);
        kv.set_full(false);
        kv.commit(put("k", "1")).await.unwrap();
        kv.break_device();
        assert!(matches!(kv.commit(put("k", "2")).await, Err(KvError::Io { .. })));
        assert_eq!(kv.written(), (1, 1));
    }
}
