//! The one watch of the store from which everything that this process keeps in memory is fed.
//!
//! ```text
//! commit ──► store ──► watch ──► Feed ──► every follower, in the order of commits
//!    └───────────── returns once the followers have seen it ◄──────┘
//! ```
//!
//! Nothing else tells an index of a change, not even the code that made it. So memory is what the
//! store is, whichever coordinator made a change and whatever became of the request behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::gauge::Gauge;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::hub::Hub;
use super::{
    Event, Record, Revision, SharedStore, Store, StoreError, Watch, Write, list_all, newest,
};

/// Longest wait for a durable change to arrive in memory. It comes within microseconds unless the
/// watch was lost and everything is being read again.
const ECHO: Duration = Duration::from_secs(5);
/// Commits taken over at a time; who waits for one of them is woken once for all.
const BATCH: usize = 256;
/// Damaged records whose names are kept; more are only counted.
const MAX_NAMED: usize = 1_000;

/// An index in memory over some of the store's records.
#[async_trait]
pub(crate) trait Follow: fmt::Debug + Send + Sync + 'static {
    /// Whether changes of a key concern it.
    fn wants(&self, key: &str) -> bool;

    /// All records that the index is made of.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError>;

    /// Starts anew from what [`Follow::read`] found, brought up to the present.
    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged);

    /// Takes over the changes of one commit that it wants, all at once.
    fn apply(&self, changes: &[Event], damaged: &Damaged);
}

/// All records under several prefixes.
///
/// # Errors
/// [`StoreError::Unavailable`].
pub(crate) async fn read_all(
    store: &dyn Store,
    prefixes: &[&str],
) -> Result<Vec<Record>, StoreError> {
    let mut records = Vec::new();
    for prefix in prefixes {
        records.extend(list_all(store, prefix).await?.0);
    }
    Ok(records)
}

/// Records that this version can't read. They are set aside: named, left in the store as they
/// are, and missing from memory.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    named: Mutex<BTreeMap<String, String>>,
    /// How many are named.
    pub(crate) count: Gauge,
}

impl Damaged {
    /// Reads a record's value; `None` sets it aside.
    pub(crate) fn decode<T: DeserializeOwned>(&self, key: &str, value: &Bytes) -> Option<T> {
        match serde_json::from_slice(value) {
            Ok(record) => {
                self.forget(key);
                Some(record)
            }
            Err(error) => {
                let mut named = self.named.lock();
                if named.len() < MAX_NAMED || named.contains_key(key) {
                    tracing::error!(key, %error, "a record can't be read and is set aside");
                    named.insert(key.to_owned(), error.to_string());
                    self.count.set(i64::try_from(named.len()).unwrap_or(i64::MAX));
                }
                None
            }
        }
    }

    /// A key was overwritten or removed.
    pub(crate) fn forget(&self, key: &str) {
        let mut named = self.named.lock();
        if !named.is_empty() && named.remove(key).is_some() {
            self.count.set(i64::try_from(named.len()).unwrap_or(i64::MAX));
        }
    }

    /// The keys, and what is wrong with each.
    pub(crate) fn list(&self) -> BTreeMap<String, String> {
        self.named.lock().clone()
    }
}

/// Feeds the followers; see the module.
#[derive(Debug)]
pub(crate) struct Feed {
    store: SharedStore,
    followers: RwLock<Vec<Arc<dyn Follow>>>,
    /// The last commit that every follower has seen.
    position: watch::Sender<Revision>,
    /// Who reads along, after the followers.
    hub: Hub,
    /// Left by [`Feed::load`] for [`Feed::run`].
    watch: Mutex<Option<Watch>>,
    damaged: Damaged,
}

impl Feed {
    pub(crate) fn new(store: SharedStore) -> Self {
        Self {
            store,
            followers: RwLock::default(),
            position: watch::Sender::new(Revision::default()),
            hub: Hub::new(Revision::default(), Revision::default()),
            watch: Mutex::new(None),
            damaged: Damaged::default(),
        }
    }

    /// Adds an index; before [`Feed::load`]. The followers see each commit in this order.
    pub(crate) fn add(&self, follower: Arc<dyn Follow>) {
        self.followers.write().push(follower);
    }

    /// Records that this version can't read.
    pub(crate) fn damaged(&self) -> &Damaged {
        &self.damaged
    }

    /// Reads what the followers want and shows it to them as of one moment.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn load(&self) -> Result<(), StoreError> {
        let followers = self.followers.read().clone();
        let from = newest(&*self.store).await?;
        let mut all = Vec::with_capacity(followers.len());
        for follower in &followers {
            let records = follower.read(&*self.store).await?;
            let by_key = records.into_iter().map(|record| (record.key.clone(), record));
            all.push(by_key.collect::<BTreeMap<_, _>>());
        }
        // What changed while it was read is in some of it and not in the rest.
        let until = newest(&*self.store).await?;
        let mut watch = self.store.watch("", from).await?;
        let mut at = from;
        while at < until {
            let Some(Ok(commit)) = watch.recv().await else {
                let source = Arc::new(std::io::Error::other("the watch ended"));
                return Err(StoreError::Unavailable { action: "follow", source });
            };
            for (follower, records) in followers.iter().zip(&mut all) {
                catch_up(records, commit.iter().filter(|event| follower.wants(&event.key)));
            }
            at = commit.last().map_or(at, |event| event.revision);
        }
        for (follower, records) in followers.iter().zip(&all) {
            follower.reset(records, &self.damaged);
        }
        *self.watch.lock() = Some(watch);
        self.hub.restart(at);
        self.position.send_replace(at);
        Ok(())
    }

    /// Follows the store until the watch ends; then [`Feed::load`] has to be called again.
    pub(crate) async fn run(&self) {
        let Some(mut watch) = self.watch.lock().take() else { return };
        let followers = self.followers.read().clone();
        let mut batch = Vec::new();
        while watch.recv_many(&mut batch, BATCH).await > 0 {
            let mut ended = false;
            for commit in batch.drain(..) {
                match commit {
                    Ok(commit) => self.show(&followers, &commit),
                    Err(_) => ended = true,
                }
            }
            if ended {
                return;
            }
        }
    }

    fn show(&self, followers: &[Arc<dyn Follow>], commit: &[Event]) {
        let Some(last) = commit.last() else { return };
        for event in commit {
            self.damaged.forget(&event.key);
        }
        let mut wanted = Vec::new();
        for follower in followers {
            wanted.extend(commit.iter().filter(|event| follower.wants(&event.key)).cloned());
            if !wanted.is_empty() {
                follower.apply(&wanted, &self.damaged);
                wanted.clear();
            }
        }
        self.position.send_replace(last.revision);
        self.hub.publish(commit.to_vec(), last.revision);
    }

    /// The last commit that every follower has seen.
    pub(crate) fn revision(&self) -> Revision {
        self.hub.revision()
    }

    /// What happens to keys that begin with `prefix` after a commit, as far back as it is kept, and
    /// not before the followers have seen it. Ends [`Compacted`](super::WatchEnd) when something
    /// was missed.
    pub(crate) fn watch(&self, prefix: &str, after: Revision) -> Watch {
        self.hub.watch(prefix, after).expect("this hub is never closed")
    }

    /// Commits, and returns once every follower has seen it.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub(crate) async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError> {
        let revision = self.store.commit(writes).await?;
        self.reached(revision).await;
        Ok(revision)
    }

    /// Returns once every follower has seen a commit. A watch that was lost may take longer than
    /// anybody waits; what is in the store comes to memory all the same.
    pub(crate) async fn reached(&self, wanted: Revision) {
        let mut position = self.position.subscribe();
        let reached = position.wait_for(|at| *at >= wanted);
        if tokio::time::timeout(ECHO, reached).await.is_err() {
            tracing::warn!(revision = %wanted, "a change of the store is late in memory");
        }
    }

    /// As [`Feed::reached`], unless the store has not come so far.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn reached_soon(&self, wanted: Revision) -> Result<(), StoreError> {
        if wanted > self.revision() && wanted <= newest(&*self.store).await? {
            self.reached(wanted).await;
        }
        Ok(())
    }

    /// Returns once the followers have seen what the store holds now; for who lost a race.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn catch_up(&self) -> Result<(), StoreError> {
        self.reached(newest(&*self.store).await?).await;
        Ok(())
    }
}

/// Brings records that were read one after the other up to later commits.
fn catch_up<'a>(records: &mut BTreeMap<String, Record>, events: impl Iterator<Item = &'a Event>) {
    for event in events {
        let newer = |known: &Record| known.revision > event.revision;
        if records.get(&event.key).is_some_and(newer) {
            continue;
        }
        match &event.value {
            Some(value) => {
                let (key, value) = (event.key.clone(), value.clone());
                let record = Record { key: key.clone(), value, revision: event.revision };
                records.insert(key, record);
            }
            None => {
                records.remove(&event.key);
            }
        }
    }
}
