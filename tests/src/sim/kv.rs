//! A disk that tells the witness what became durable, before anybody who waits for it learns so.

use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::kv::{Change, Kv, KvError, MemKv};

use super::invariants::Witness;
use super::plant::Plant;

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
    /// Says that a commit is durable before it is.
    is_early: bool,
    /// Makes its changes durable one after the other.
    is_torn: bool,
}

impl SeenKv {
    /// Watches `map`.
    #[must_use]
    pub fn new(map: Arc<MemKv>, owner: Owner, witness: Witness) -> Self {
        Self { map, owner, witness, is_early: false, is_torn: false }
    }

    /// With a defect, if it is one of such disks.
    #[must_use]
    pub fn planted(self, plant: Option<Plant>) -> Self {
        let is_early = match self.owner {
            Owner::Coordinator => plant == Some(Plant::EarlyCommits),
            Owner::Agent(_) => plant == Some(Plant::EarlyJournal),
        };
        let is_torn = self.owner == Owner::Coordinator && plant == Some(Plant::TornCommits);
        Self { is_early, is_torn, ..self }
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

    async fn commit(&self, mut changes: Vec<Change>) -> Result<(), KvError> {
        let (seen, map) = (changes.clone(), self.map.clone());
        let rest = if self.is_torn { changes.split_off(changes.len().min(1)) } else { Vec::new() };
        let (owner, witness) = (self.owner, self.witness.clone());
        let commit = async move {
            map.commit(changes).await?;
            for change in rest {
                map.commit(vec![change]).await?;
            }
            witness.durable(owner, &seen);
            Ok(())
        };
        if !self.is_early {
            return commit.await;
        }
        let mut commit = Box::pin(commit);
        // Once, so that readers see it.
        if let Poll::Ready(done) = futures_util::poll!(commit.as_mut()) {
            return done;
        }
        drop(tokio::spawn(commit));
        Ok(())
    }

    async fn close(&self) {
        self.map.close().await;
    }
}
