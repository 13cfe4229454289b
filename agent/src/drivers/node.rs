//! What an agent keeps about its own node: small documents, each replaced as a whole.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::{DriverError, files};

/// Which document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Document {
    /// The setup record, see [`crate::report::setup`].
    Setup,
    /// A factory reset that is carried out at the next boot.
    FactoryReset,
    /// The cluster it works for, see [`super::cluster`].
    Cluster,
}

impl Document {
    /// Its file in the data folder.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Setup => "setup.json",
            Self::FactoryReset => "factory-reset.json",
            Self::Cluster => "cluster.json",
        }
    }
}

/// Keeps the documents.
#[async_trait]
pub trait NodeDocuments: fmt::Debug + Send + Sync + 'static {
    /// Reads one; `None` when there is none.
    ///
    /// # Errors
    /// It can't be read, or is no JSON.
    async fn read(&self, document: Document) -> Result<Option<Value>, DriverError>;

    /// Replaces one; durable when it returns.
    ///
    /// # Errors
    /// It can't be written; the old one is still there.
    async fn write(&self, document: Document, content: &Value) -> Result<(), DriverError>;
}

/// Files in the data folder.
#[derive(Debug)]
pub struct FileDocuments {
    data_dir: PathBuf,
    copies: Option<PathBuf>,
}

impl FileDocuments {
    /// In this data folder; a copy of what says whose node it is goes to `copies`.
    #[must_use]
    pub fn new(data_dir: PathBuf, copies: Option<PathBuf>) -> Self {
        Self { data_dir, copies }
    }

    /// Makes the copies what the originals are: a node may get its storage folder later.
    ///
    /// # Errors
    /// They can't be written.
    pub async fn copy(&self) -> Result<(), DriverError> {
        let original = self.data_dir.join(Document::Cluster.file_name());
        match files::read(&original).await? {
            Some(content) => self.copy_cluster(&content).await,
            None => Ok(()),
        }
    }

    /// Removes one; durable when it returns. None is no error.
    ///
    /// # Errors
    /// It can't be removed.
    pub async fn remove(&self, document: Document) -> Result<(), DriverError> {
        files::remove(&self.data_dir.join(document.file_name())).await?;
        files::sync_folder(&self.data_dir).await
    }

    async fn copy_cluster(&self, content: &[u8]) -> Result<(), DriverError> {
        let Some(copies) = &self.copies else { return Ok(()) };
        files::make_folder(copies).await?;
        let copy = copies.join(Document::Cluster.file_name());
        if files::read(&copy).await?.is_some_and(|known| known == content) {
            return Ok(());
        }
        files::write(&copy, content).await
    }
}

#[async_trait]
impl NodeDocuments for FileDocuments {
    async fn read(&self, document: Document) -> Result<Option<Value>, DriverError> {
        let path = self.data_dir.join(document.file_name());
        let Some(content) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&content);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    async fn write(&self, document: Document, content: &Value) -> Result<(), DriverError> {
        files::make_folder(&self.data_dir).await?;
        let path = self.data_dir.join(document.file_name());
        let content = content.to_string();
        files::write(&path, content.as_bytes()).await?;
        match document {
            Document::Cluster => self.copy_cluster(content.as_bytes()).await,
            Document::Setup | Document::FactoryReset => Ok(()),
        }
    }
}

/// In memory; clones share it, because it outlives the simulated agent.
#[derive(Clone, Debug, Default)]
pub struct SimDocuments(Arc<Mutex<BTreeMap<Document, Value>>>);

#[async_trait]
impl NodeDocuments for SimDocuments {
    async fn read(&self, document: Document) -> Result<Option<Value>, DriverError> {
        Ok(self.0.lock().get(&document).cloned())
    }

    async fn write(&self, document: Document, content: &Value) -> Result<(), DriverError> {
        self.0.lock().insert(document, content.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn conforms(documents: &dyn NodeDocuments) {
        assert_eq!(documents.read(Document::FactoryReset).await.unwrap(), None);
        for content in [json!({ "task": "a" }), json!({ "task": "b" })] {
            documents.write(Document::FactoryReset, &content).await.unwrap();
            assert_eq!(documents.read(Document::FactoryReset).await.unwrap(), Some(content));
        }
        assert_eq!(documents.read(Document::Setup).await.unwrap(), None);
    }

    #[tokio::test]
    async fn both_kinds_keep_what_they_are_given() {
        conforms(&SimDocuments::default()).await;
        let folder = tempfile::tempdir().unwrap();
        let documents = FileDocuments::new(folder.path().join("data"), None);
        conforms(&documents).await;
        documents.write(Document::Cluster, &json!({ "id": "a" })).await.unwrap();
        let copies = folder.path().join("node");
        let copied = FileDocuments::new(folder.path().join("data"), Some(copies.clone()));
        copied.copy().await.unwrap();
        assert_eq!(std::fs::read(copies.join("cluster.json")).unwrap(), br#"{"id":"a"}"#);
        std::fs::write(folder.path().join("data/setup.json"), "{").unwrap();
        documents.read(Document::Setup).await.unwrap_err();
    }
}
