//! A store that is not always there: it stalls, or does what it is asked and says that it could
//! not tell. A store beyond a network does both whenever its leader changes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_coordinator::store::{
    LeaseId, Page, Record, Revision, SharedStore, Store, StoreError, Watch, Write,
};
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::plant::Plant;

/// How often a stalled call looks whether the stall is over.
const LOOK: Duration = Duration::from_millis(7);
/// How long it takes to give up a commit whose outcome stays unknown, at most.
const GIVE_UP: Duration = Duration::from_millis(300);

/// How the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As it should be.
    #[default]
    Fine,
    /// Nothing is answered until it is over.
    Stalled,
    /// Commits are answered `Unavailable`, whether they were made or not.
    Unsure,
}

/// The mood of a coordinator's store; clones share it.
#[derive(Clone, Debug, Default)]
pub struct StoreMood(Arc<Mutex<Mood>>);

impl StoreMood {
    /// Changes it.
    pub fn set(&self, mood: Mood) {
        *self.0.lock() = mood;
    }

    /// How it is now.
    #[must_use]
    pub fn get(&self) -> Mood {
        *self.0.lock()
    }
}

/// A store with moods.
#[derive(Debug)]
pub struct MoodyStore {
    store: SharedStore,
    mood: StoreMood,
    entropy: SeededEntropy,
    plant: Option<Plant>,
}

impl MoodyStore {
    /// A store over `store`.
    #[must_use]
    pub fn new(store: SharedStore, mood: StoreMood, seed: u64) -> Self {
        Self { store, mood, entropy: SeededEntropy::new(seed), plant: None }
    }

    /// With a defect, if it is one of a store.
    #[must_use]
    pub fn planted(self, plant: Option<Plant>) -> Self {
        Self { plant, ..self }
    }

    async fn ready(&self) {
        while self.mood.get() == Mood::Stalled {
            sleep(LOOK).await;
        }
    }
}

/// A watch that leaves out every tenth commit or so.
fn lossy(mut watch: Watch, seed: u64) -> Watch {
    const BUFFER: usize = 1_024;
    let (commits, lossy) = mpsc::channel(BUFFER);
    let entropy = SeededEntropy::new(seed);
    // Ends with either side.
    drop(tokio::spawn(async move {
        while let Some(commit) = watch.recv().await {
            if commit.is_ok() && entropy.u64().is_multiple_of(10) {
                continue;
            }
            if commits.send(commit).await.is_err() {
                return;
            }
        }
    }));
    lossy
}

#[async_trait]
impl Store for MoodyStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.ready().await;
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.ready().await;
        self.store.list(prefix, after, limit).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError> {
        // Either the request is held up or the answer.
        if self.mood.get() == Mood::Stalled && self.entropy.u64().is_multiple_of(2) {
            let outcome = self.store.commit(writes).await;
            self.ready().await;
            return outcome;
        }
        self.ready().await;
        if self.mood.get() != Mood::Unsure {
            return self.store.commit(writes).await;
        }
        if self.entropy.u64().is_multiple_of(2) {
            // What is refused is known to be.
            self.store.commit(writes).await?;
        }
        sleep(GIVE_UP.mul_f64(self.entropy.fraction())).await;
        let source = std::io::Error::other("the answer did not come");
        Err(StoreError::Unavailable { action: "commit", source: Arc::new(source) })
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.ready().await;
        let watch = self.store.watch(prefix, from).await?;
        if self.plant == Some(Plant::LostEvents) {
            return Ok(lossy(watch, self.entropy.u64()));
        }
        Ok(watch)
    }

    async fn grant(&self, ttl_ms: u64) -> Result<LeaseId, StoreError> {
        self.ready().await;
        self.store.grant(ttl_ms).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ready().await;
        self.store.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ready().await;
        self.store.revoke(lease).await
    }

    async fn failed(&self) {
        self.store.failed().await;
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
