//! The cluster that this agent works for: learned at its first welcome, kept on disk from then on.
//!
//! A coordinator on another store knows nothing of this agent's tasks and VMs. Whatever it says of
//! them would be wrong, so the agent does not speak to it. To move a node to another cluster, stop
//! its agent and remove `cluster.json` from its data folder.

use std::sync::Arc;

use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::DriverError;
use super::node::{Document, NodeDocuments};

/// Which cluster.
#[derive(Debug)]
pub struct Cluster {
    documents: Arc<dyn NodeDocuments>,
    id: Mutex<Option<Uuid>>,
}

/// The coordinator is of another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator is of cluster {theirs}, this agent of {ours}")]
pub struct Foreign {
    ours: Uuid,
    theirs: Uuid,
}

impl Cluster {
    /// Reads what is kept.
    ///
    /// # Errors
    /// It can't be read or understood: then nobody knows whose this agent's tasks are.
    pub async fn open(documents: Arc<dyn NodeDocuments>) -> Result<Self, DriverError> {
        let kept = documents.read(Document::Cluster).await?;
        let id = kept.map(|kept| {
            let id = kept.get("id").and_then(Value::as_str).and_then(|id| id.parse().ok());
            id.ok_or_else(|| {
                DriverError::refused(Code::InvalidContent, "cluster.json names no cluster")
            })
        });
        Ok(Self { documents, id: Mutex::new(id.transpose()?) })
    }

    /// One that is not known yet.
    #[cfg(test)]
    pub(crate) fn unknown() -> Arc<Self> {
        let documents = Arc::new(super::node::SimDocuments::default());
        Arc::new(Self { documents, id: Mutex::default() })
    }

    /// The cluster, once there is one.
    #[must_use]
    pub fn id(&self) -> Option<Uuid> {
        *self.id.lock()
    }

    /// A coordinator of this cluster welcomes the agent.
    ///
    /// # Errors
    /// The agent works for another one.
    pub async fn welcomed(&self, theirs: Uuid) -> Result<(), Foreign> {
        let before = *self.id.lock().get_or_insert(theirs);
        if before != theirs {
            return Err(Foreign { ours: before, theirs });
        }
        if let Err(error) = self.keep(theirs).await {
            let error = muster_shared::error_chain::Chain(&error).to_string();
            tracing::error!(error, cluster = %theirs, "the cluster can't be kept; tried again later");
        }
        Ok(())
    }

    /// Writes it down, unless that was done.
    async fn keep(&self, id: Uuid) -> Result<(), DriverError> {
        let document = json!({ "id": id });
        if self.documents.read(Document::Cluster).await?.as_ref() == Some(&document) {
            return Ok(());
        }
        self.documents.write(Document::Cluster, &document).await?;
        tracing::info!(cluster = %id, "this agent works for this cluster from now on");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::node::SimDocuments;

    #[tokio::test]
    async fn the_first_cluster_is_kept_over_restarts() {
        let documents = SimDocuments::default();
        let open = || Cluster::open(Arc::new(documents.clone()));
        let cluster = open().await.unwrap();
        assert_eq!(cluster.id(), None);
        let (ours, theirs) = (Uuid::from_u128(1), Uuid::from_u128(2));
        cluster.welcomed(ours).await.unwrap();
        cluster.welcomed(theirs).await.unwrap_err();
        cluster.welcomed(ours).await.unwrap();
        let cluster = open().await.unwrap();
        assert_eq!(cluster.id(), Some(ours));
        assert_eq!(cluster.welcomed(theirs).await, Err(Foreign { ours, theirs }));
        documents.write(Document::Cluster, &json!({ "id": 7 })).await.unwrap();
        open().await.unwrap_err();
    }
}
