//! The store: every record that must outlive a coordinator.
//!
//! Implementations pass the suite in `conformance.rs`; nothing else knows which one runs. Keys are
//! `/`-separated text, cut along who writes a record and how often:
//!
//! | prefix | one record per | written by |
//! | --- | --- | --- |
//! | `server/<uuid>` | server | operators, first registration |
//! | `sysinfo/<uuid>` | server | a changed sysinfo |
//! | `vms/<server>/<vm>` | VM | a change of its state or identity |
//! | `figures/<uuid>` | server | its memory and disk, at most every ten minutes |
//! | `roster/<uuid>` | server | its roster authority, on a change of status |
//! | `task/<id>`, `open/<server>/<id>` | task | creation, end |
//! | `job/<uuid>`, `jobrun/<server>/<kind>` | job | creation, each step, end |
//! | `boot/default` | installation | operators: boot parameters of new servers |
//! | `package/<name>`, `package-uuid/<uuid>` | package | operators |
//! | `ticket/<uuid>`, `queue/<server>/<hash>`, `ticket-seq` | ticket, queue of open ones, all | the waitlist |
//! | `reserve/<vm>` | reservation | an allocation; its end |
//! | `place/<vm>` | VM that is being made | its placement, its task's end |
//! | `placer/roll`, `placer/<instance>` | all, coordinator | a first start; whatever promises room |
//! | `allocation/<id>` | decision | an allocation |
//! | `members/<instance>` | coordinator | its start; gone with its lease |

#[cfg(test)]
mod conformance;
mod counted;
mod feed;
mod hub;
mod kv_store;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub(crate) use self::counted::Counted;
pub(crate) use self::feed::{Damaged, Feed, Follow, read_all};
pub use self::kv_store::{KvStore, raise_epoch, records_of};

/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 400;
/// Largest value, bytes.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;
/// Most writes in one commit.
pub const MAX_COMMIT_WRITES: usize = 100;
/// Most bytes (keys and values) in one commit.
pub const MAX_COMMIT_BYTES: usize = 1024 * 1024;
/// Most records in one page of a list.
pub const MAX_PAGE: usize = 1_000;

/// A point in the store's history; compared by epoch, then counter. Restoring a backup or moving
/// to another store raises the epoch, so revisions stay ordered for ever.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Revision {
    /// Raised by restore and migration.
    pub epoch: u64,
    /// Counts commits within the epoch.
    pub counter: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// One stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// The commit that wrote it last.
    pub revision: Revision,
}

/// A stored record and the commit that wrote it.
#[derive(Clone, Debug)]
pub struct Held<T> {
    /// The record.
    pub value: T,
    /// Its revision.
    pub revision: Revision,
}

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// The key does not exist.
    Absent,
    /// The key was last written at this revision.
    At(Revision),
}

/// What a write does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets the value; the key goes away with the lease, if one is named.
    Put(Bytes, Option<LeaseId>),
    /// Removes the key.
    Delete,
    /// Changes nothing, only checks the expectation.
    Check,
}

/// One write of a commit. A key may appear once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// The condition.
    pub expect: Expect,
    /// The effect.
    pub action: Action,
}

impl Write {
    /// Sets a key under a condition.
    pub fn put(key: impl Into<String>, expect: Expect, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), expect, action: Action::Put(value.into(), None) }
    }

    /// Removes a key under a condition.
    pub fn delete(key: impl Into<String>, expect: Expect) -> Self {
        Self { key: key.into(), expect, action: Action::Delete }
    }

    /// Checks a condition.
    pub fn check(key: impl Into<String>, expect: Expect) -> Self {
        Self { key: key.into(), expect, action: Action::Check }
    }
}

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// In key order.
    pub records: Vec<Record>,
    /// Pass as `after` for the next page; `None` at the end.
    pub next: Option<String>,
    /// The store's revision when the page was read: a watch from here misses nothing.
    pub revision: Revision,
}

/// A change seen by a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: String,
    /// The new value; `None` when the key was removed.
    pub value: Option<Bytes>,
    /// The commit that did it.
    pub revision: Revision,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The revision asked for is no longer kept, or the watcher fell too far behind: list anew.
    #[error("the watched revision was compacted")]
    Compacted,
    /// The store is closing.
    #[error("the store is closing")]
    Closed,
}

/// Commits in their order, each with all that it changed under the prefix (never nothing), so that
/// who follows never shows half of a commit; the last item is the end.
pub type Watch = mpsc::Receiver<Result<Vec<Event>, WatchEnd>>;

/// Why the store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// An expectation failed; nothing was written.
    #[error("{key} is not as expected")]
    Conflict {
        /// The first key whose expectation failed.
        key: String,
    },
    /// A limit of the trait was exceeded; nothing was written.
    #[error("{what} is over the limit of {limit}")]
    TooLarge {
        /// What, e.g. "value of server/…".
        what: String,
        /// The limit.
        limit: usize,
    },
    /// The lease is unknown or has expired; nothing was written.
    #[error("the lease has expired")]
    LeaseExpired,
    /// There is no room for the data; nothing was written.
    #[error("the store has {free_bytes} bytes of room left and needs {needed_bytes}")]
    Full {
        /// What is left.
        free_bytes: u64,
        /// What the commit needs.
        needed_bytes: u64,
    },
    /// Not now; the outcome of a commit may be unknown, so read before trying again.
    #[error("the store is unavailable: {action}")]
    Unavailable {
        /// What was attempted.
        action: &'static str,
        /// The cause.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// Whether somebody else was first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// The store.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Reads one key; `None` if absent.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError>;

    /// One page (at most `limit`, at most [`MAX_PAGE`], at least one) of the records whose key starts with
    /// `prefix` and is greater than `after`, in key order. A page of large values may hold fewer
    /// than `limit` and still have a `next`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError>;

    /// Applies all writes or none, and returns once they survive a power cut. A commit that
    /// changes nothing (checks, deletes of what is absent) makes no revision and no event.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] names the first key whose expectation failed, and
    /// [`StoreError::LeaseExpired`] a lease that is gone; nothing was written, as when it is
    /// [`StoreError::Full`]. [`StoreError::Unavailable`]: the outcome may be unknown, so read
    /// before trying again.
    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError>;

    /// All changes under `prefix` made after revision `from`, commit by commit, those of one commit
    /// together and in the order of its writes. Ends in [`WatchEnd::Compacted`] when `from` is no longer kept or the receiver is too slow.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError>;

    /// A new lease that ends `ttl_ms` after its last renewal; its keys are removed with it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn grant(&self, ttl_ms: u64) -> Result<LeaseId, StoreError>;

    /// Renews a lease.
    ///
    /// # Errors
    /// [`StoreError::LeaseExpired`] when it is gone.
    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease now and removes its keys.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Returns once the store can't commit any more before it is opened again, because its device
    /// failed; never of a store that is sound.
    async fn failed(&self);

    /// Finishes the commits that wait, ends every watch with [`WatchEnd::Closed`] and releases
    /// the data; later calls are [`StoreError::Unavailable`].
    async fn close(&self);
}

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

/// The last commit. Any page tells.
///
/// # Errors
/// [`StoreError::Unavailable`].
pub async fn newest(store: &dyn Store) -> Result<Revision, StoreError> {
    Ok(store.list("", None, 1).await?.revision)
}

/// Every record under a prefix, page by page; for start-up, where all of it is wanted.
///
/// # Errors
/// [`StoreError::Unavailable`].
pub async fn list_all(
    store: &dyn Store,
    prefix: &str,
) -> Result<(Vec<Record>, Revision), StoreError> {
    let mut records = Vec::new();
    let mut after: Option<String> = None;
    let mut first = None;
    loop {
        let page = store.list(prefix, after.as_deref(), MAX_PAGE).await?;
        // The first page's revision: a watch from there repeats what changed meanwhile.
        let revision = *first.get_or_insert(page.revision);
        records.extend(page.records);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok((records, revision)),
        }
    }
}

/// Checks the limits that hold for a commit on every implementation.
///
/// # Errors
/// [`StoreError::TooLarge`] names the first that is exceeded.
pub fn check_limits(writes: &[Write]) -> Result<(), StoreError> {
    let within = |bytes: usize, limit: usize, what: &dyn Fn() -> String| {
        if bytes > limit { Err(StoreError::TooLarge { what: what(), limit }) } else { Ok(()) }
    };
    within(writes.len(), MAX_COMMIT_WRITES, &|| "the number of writes in a commit".to_owned())?;
    let mut total = 0;
    let mut keys = std::collections::BTreeSet::new();
    for write in writes {
        // The start of an overlong key is enough to find it.
        let shown: String = write.key.chars().take(80).collect();
        within(write.key.len(), MAX_KEY_BYTES, &|| format!("the key {shown}…"))?;
        let seen = usize::from(!keys.insert(write.key.as_str()));
        within(1 + seen, 1, &|| format!("the number of writes of {shown}"))?;
        total += write.key.len();
        if let Action::Put(value, _) = &write.action {
            within(value.len(), MAX_VALUE_BYTES, &|| format!("the value of {shown}"))?;
            total += value.len();
        }
    }
    within(total, MAX_COMMIT_BYTES, &|| "the size of a commit".to_owned())
}
