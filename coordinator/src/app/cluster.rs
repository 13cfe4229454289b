//! The name of the store, shared by all coordinators on it: what an agent did for one store is
//! nothing to another.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::context::Context;
use super::error::AppError;
use super::keys;
use crate::store::{Expect, StoreError, Write};

/// The record `cluster`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ClusterRecord {
    id: Uuid,
}

impl Context {
    /// Reads the store's name; a new store gets one.
    pub(super) async fn load_cluster(&self) -> Result<(), AppError> {
        let id = match self.stored_cluster().await? {
            Some(id) => id,
            None => self.found_cluster().await?,
        };
        self.cluster.set(id).ok();
        Ok(())
    }

    async fn stored_cluster(&self) -> Result<Option<Uuid>, AppError> {
        let Some(stored) = self.parts.store.get(keys::CLUSTER).await? else { return Ok(None) };
        let record: ClusterRecord = keys::decode(&stored)?;
        Ok(Some(record.id))
    }

    async fn found_cluster(&self) -> Result<Uuid, AppError> {
        let record = ClusterRecord { id: self.parts.entropy.uuid() };
        let write = Write::put(keys::CLUSTER, Expect::Absent, keys::encode(&record));
        match self.parts.store.commit(vec![write]).await {
            Ok(_) => {
                tracing::info!(cluster = %record.id, "a new store");
                Ok(record.id)
            }
            // Another coordinator was first.
            Err(StoreError::Conflict { key }) => {
                let id = self.stored_cluster().await?;
                id.ok_or_else(|| StoreError::Conflict { key }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Names the store; known once the application runs.
    #[must_use]
    pub fn cluster(&self) -> Option<Uuid> {
        self.cluster.get().copied()
    }
}
