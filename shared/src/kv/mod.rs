//! A small durable ordered map: what the coordinator's embedded store and the agent's journal are
//! built on. An acknowledged commit survives kill -9 and a power cut.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Removes a key; removing an absent one is no error.
    Delete(Bytes),
}

/// A durable ordered map from byte strings to byte strings.
#[async_trait]
pub trait Kv: fmt::Debug + Send + Sync + 'static {
    /// Reads one key; sees every commit that was acknowledged.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] or [`KvError::Io`].
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// At most `limit` entries whose key starts with `prefix` and is greater than `after` (all
    /// when `None`), in key order.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] or [`KvError::Io`].
    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError>;

    /// Applies all changes or none, in order, and returns once they survive a power cut.
    /// Commits that wait at the same time share one sync.
    ///
    /// # Errors
    /// [`KvError::TooLarge`]: nothing was written. [`KvError::Busy`]: the queue is full, nothing
    /// was written. [`KvError::Io`]: the device failed; the map refuses all further commits,
    /// because what it holds in memory may be ahead of the disk.
    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError>;
}

/// A shared map.
pub type SharedKv = Arc<dyn Kv>;

/// Why the map could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KvError {
    /// A key or value is over its limit.
    #[error("{what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// "key" or "value".
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The commit queue is full.
    #[error("the commit queue is full")]
    Busy,
    /// What was read is not what was written.
    #[error("entry {key} is damaged: {detail}")]
    Corrupt {
        /// The key, printable.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// The device or file system failed.
    #[error("{action} the data directory")]
    Io {
        /// What was attempted, e.g. "sync".
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The map was closed.
    #[error("the data directory is closed")]
    Closed,
}
