//! A small durable ordered map: what the coordinator's embedded store and the agent's journal are
//! built on. An acknowledged commit survives kill -9 and a power cut.
//!
//! [`RedbKv`] and [`SledKv`] are real, [`MemKv`] is simulated; all pass the same conformance tests.
//! What the real ones share: the thread that writes ([`committer`]), and two ways to notice that
//! records are missing ([`ledger`], [`acknowledged`]).

mod acknowledged;
mod committer;
#[cfg(test)]
mod conformance;
mod contents;
mod engine;
mod ledger;
mod mem;
mod panics;
mod redb;
mod restore;
mod sled;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::contents::{Contents, Report};
pub use self::engine::{Engine, open_as};
pub use self::mem::{MemKv, MemOptions};
pub use self::redb::RedbKv;
pub use self::restore::{Restored, restore};
pub use self::sled::{SledKv, SyncRule};

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest value, in bytes: a value of the store (256 KiB) and room for its header.
pub const MAX_VALUE_BYTES: usize = 257 * 1024;
/// Most bytes (keys and values) in one commit.
pub const MAX_COMMIT_BYTES: usize = 8 * 1024 * 1024;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Removes a key; removing an absent one is no error.
    Delete(Bytes),
}

impl Change {
    /// The key it changes.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// A durable ordered map from byte strings to byte strings.
#[async_trait]
pub trait Kv: fmt::Debug + Send + Sync + 'static {
    /// Reads one key; sees every commit that was acknowledged, and maybe one that is about to be.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] or [`KvError::Io`].
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// At most `limit` entries whose key starts with `prefix` and is greater than `after` (all
    /// when `None`), in key order. What it returns is the map between two commits.
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
    /// [`KvError::TooLarge`], [`KvError::Busy`] (the queue is full) and [`KvError::Full`]: nothing
    /// was written, and a later commit may succeed. [`KvError::Io`]: the device failed; the map
    /// refuses all further commits, because what it holds in memory may be ahead of the disk.
    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError>;

    /// A writer that joins commits does well to stay under this many bytes: a larger commit is as
    /// durable in principle, but see [`SledKv`].
    fn group_bytes(&self) -> usize {
        MAX_COMMIT_BYTES
    }

    /// Finishes the commits that wait and releases the data; all later calls fail with
    /// [`KvError::Closed`].
    async fn close(&self);
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
    /// The directory belongs to another process.
    #[error("the data directory {path} is in use by another process")]
    InUse {
        /// The directory.
        path: String,
    },
    /// The file system has no room left.
    #[error(
        "the file system of the data directory has {free_bytes} bytes left, needed {needed_bytes}"
    )]
    Full {
        /// What an unprivileged process may still write.
        free_bytes: u64,
        /// What the commit and the engine's own work on it may take.
        needed_bytes: u64,
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
    /// The files of the map can't be understood.
    #[error("the files in {path} are damaged ({detail})")]
    Damaged {
        /// The directory.
        path: String,
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

impl KvError {
    /// Whether what is on disk is not what was written, and a copy would be needed.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Corrupt { .. })
    }

    /// Whether a map whose commit ended in this refuses all later ones, until it is opened again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Io { .. })
    }
}

fn damaged(path: &Path, detail: &str) -> KvError {
    KvError::Damaged { path: path.display().to_string(), detail: detail.to_owned() }
}

fn io_error(action: &'static str, error: io::Error) -> KvError {
    KvError::Io { action, source: Arc::new(error) }
}

/// Not the device's, but the content's fault.
fn is_malformed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Makes the names in a folder survive a power cut.
fn sync_dir(path: &Path) -> Result<(), KvError> {
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| io_error("sync", e))
}

/// Checks the limits of a commit.
fn check_limits(changes: &[Change]) -> Result<(), KvError> {
    let within = |what, bytes, limit| {
        if bytes > limit { Err(KvError::TooLarge { what, bytes, limit }) } else { Ok(()) }
    };
    let mut total = 0;
    for change in changes {
        within("key", change.key().len(), MAX_KEY_BYTES)?;
        total += change.key().len();
        if let Change::Put(_, value) = change {
            within("value", value.len(), MAX_VALUE_BYTES)?;
            total += value.len();
        }
    }
    within("commit", total, MAX_COMMIT_BYTES)
}
