//! Counts what is written: an unchanged fleet must show no commits.

use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;

use super::{LeaseId, Page, Record, Revision, SharedStore, Store, StoreError, Watch, Write};

/// A store whose successful commits are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    store: SharedStore,
    commits: Counter,
}

impl Counted {
    /// Counts the commits to `store` in `commits`.
    pub(crate) fn new(store: SharedStore, commits: Counter) -> Self {
        Self { store, commits }
    }
}

#[async_trait]
impl Store for Counted {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.store.list(prefix, after, limit).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError> {
        let revision = self.store.commit(writes).await?;
        self.commits.inc();
        Ok(revision)
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, from).await
    }

    async fn grant(&self, ttl_ms: u64) -> Result<LeaseId, StoreError> {
        self.store.grant(ttl_ms).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease).await
    }

    async fn failed(&self) {
        self.store.failed().await;
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
