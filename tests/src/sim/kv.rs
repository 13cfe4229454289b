//! A disk that tells the witness what became durable, before anybody who waits for it learns so.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::kv::{Change, Kv, KvError, MemKv};

use super::invariants::Witness;

/// Whose disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The coordinator's: records of the store.
    Coordinator,
    /// An agent's: its task journal.
    Agent(usize),
}

/// A map whose durable commits are seen.
#[derive(Debug)]
pub struct SeenKv {
    map: Arc<MemKv>,
    owner: Owner,
    witness: Witness,
}

impl SeenKv {
    /// Watches `map`.
    #[must_use]
    pub fn new(map: Arc<MemKv>, owner: Owner, witness: Witness) -> Self {
        Self { map, owner, witness }
    }
}

#[async_trait]
impl Kv for SeenKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.map.get(key).await
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        self.map.scan(prefix, after, limit).await
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError> {
        let seen = changes.clone();
        self.map.commit(changes).await?;
        self.witness.durable(self.owner, &seen);
        Ok(())
    }

    async fn close(&self) {
        self.map.close().await;
    }
}
