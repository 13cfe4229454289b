//! The embedded store: the [`Store`] trait on a durable map, for a single coordinator.
//!
//! One task ([`owner`]) checks and writes; readers go to the map directly, watchers to the
//! [`watch`] hub, which learns of a commit once it is durable.

mod leases;
mod owner;
mod records;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use muster_shared::kv::{Change, Kv, KvError, SharedKv};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::owner::{Command, GROUP_COMMITS, Owner};
use self::records::Meta;
use super::hub::Hub;
use super::{
    LeaseId, MAX_PAGE, Page, Record, Revision, Store, StoreError, Watch, Write, check_limits,
};

/// Commands that may wait for the owner. Each waits in a task of its caller, so this bounds
/// callers: far above what a coordinator serves at once.
const QUEUE_COMMANDS: usize = 4_096;
/// Revisions that can have been seen but not acknowledged: those of one group.
const REVISIONS_UNDER_WAY: u64 = GROUP_COMMITS as u64;
/// A page stops growing past this many bytes.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Records read from the map at a time while a page is put together.
const PAGE_STEP: usize = 64;

/// The store on a [`Kv`].
pub struct KvStore {
    kv: SharedKv,
    hub: Arc<Hub>,
    queue: mpsc::Sender<Command>,
    failed: CancellationToken,
}

impl fmt::Debug for KvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvStore").field("kv", &self.kv).finish_non_exhaustive()
    }
}

/// The owner can't take a command.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum QueueError {
    #[error("too many commands wait")]
    Full,
    #[error("the store is closed")]
    Closed,
}

fn unavailable(
    action: &'static str,
    cause: impl std::error::Error + Send + Sync + 'static,
) -> StoreError {
    StoreError::Unavailable { action, source: Arc::new(cause) }
}

impl KvStore {
    /// Opens the store on `kv` and starts its owner. Leases that were granted before count from
    /// now: their holders have one ttl to renew them.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the map can't be read or holds something else.
    pub async fn open(
        kv: SharedKv,
        clock: SharedClock,
        tracker: &TaskTracker,
    ) -> Result<Self, StoreError> {
        let stored = Meta::load(kv.as_ref()).await?;
        let mut meta = stored.unwrap_or_default();
        // A new store's history is complete; of an older one this process knows nothing.
        let known_from = if stored.is_some() { meta.revision } else { Revision::default() };
        if stored.is_some() {
            // A power cut may have taken commits that readers saw before they were acknowledged.
            // Their revisions must not be given to others, so they are skipped.
            meta.revision.counter += REVISIONS_UNDER_WAY;
            let skipped = kv.commit(vec![meta.change()]).await;
            skipped.map_err(|e| unavailable("start", e))?;
        }
        let hub = Arc::new(Hub::new(meta.revision, known_from));
        let (queue, commands) = mpsc::channel(QUEUE_COMMANDS);
        let failed = CancellationToken::new();
        let owner = Owner::open(Arc::clone(&kv), clock, Arc::clone(&hub), meta, failed.clone());
        // Not awaited: it ends with `close`, or when the last handle is dropped.
        drop(tracker.spawn(owner.await?.run(commands)));
        Ok(Self { kv, hub, queue, failed })
    }

    /// The last durable commit.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.hub.revision()
    }

    async fn ask<T>(
        &self,
        action: &'static str,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        let (done, outcome) = oneshot::channel();
        self.queue.try_send(command(done)).map_err(|e| {
            let cause = match e {
                mpsc::error::TrySendError::Full(_) => QueueError::Full,
                mpsc::error::TrySendError::Closed(_) => QueueError::Closed,
            };
            unavailable(action, cause)
        })?;
        outcome.await.unwrap_or_else(|_| Err(unavailable(action, QueueError::Closed)))
    }
}

#[async_trait]
impl Store for KvStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let raw = self.kv.get(&records::record_key(key)).await;
        let Some(raw) = raw.map_err(|e| unavailable("read", e))? else { return Ok(None) };
        records::decode(key.to_owned(), &raw).map(|(record, _)| Some(record))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        // Read first: a commit that lands meanwhile is repeated by a watch, not missed.
        let revision = self.hub.revision();
        let limit = limit.clamp(1, MAX_PAGE);
        let prefix = records::record_key(prefix);
        let mut after = after.map(records::record_key);
        let mut page = Page { revision, ..Page::default() };
        let mut bytes = 0;
        loop {
            // One more than wanted shows whether there is a next page.
            let step = (limit + 1 - page.records.len()).min(PAGE_STEP);
            let entries = self.kv.scan(&prefix, after.as_deref(), step).await;
            let entries = entries.map_err(|e| unavailable("list", e))?;
            let last = entries.len() < step;
            for (key, raw) in entries {
                if page.records.len() == limit || bytes > PAGE_BYTES {
                    page.next = page.records.last().map(|record| record.key.clone());
                    return Ok(page);
                }
                bytes += raw.len();
                let (record, _) = records::decode(records::key_text(&key)?, &raw)?;
                page.records.push(record);
                after = Some(key.to_vec());
            }
            if last {
                return Ok(page);
            }
        }
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError> {
        check_limits(&writes)?;
        self.ask("commit", |done| Command::Commit { writes, done }).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.hub.watch(prefix, from).ok_or_else(|| unavailable("watch", QueueError::Closed))
    }

    async fn grant(&self, ttl_ms: u64) -> Result<LeaseId, StoreError> {
        self.ask("grant a lease", |done| Command::Grant { ttl_ms, done }).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask("renew a lease", |done| Command::Renew { lease, done }).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask("revoke a lease", |done| Command::Revoke { lease, done }).await
    }

    async fn failed(&self) {
        self.failed.cancelled().await;
    }

    async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Command::Close { done }).await.is_ok() {
            // An error means that the owner is gone already.
            closed.await.unwrap_or(());
        }
        self.kv.close().await;
    }
}

/// Starts a new epoch, after a backup was restored or data migrated into `kv`; the store must not
/// be open. Every later revision is greater than any that was ever given out.
///
/// # Errors
/// [`StoreError::Unavailable`].
pub async fn raise_epoch(kv: &dyn Kv) -> Result<Revision, StoreError> {
    let mut meta = Meta::load(kv).await?.unwrap_or_default();
    meta.revision = Revision { epoch: meta.revision.epoch + 1, counter: 0 };
    let changes: Vec<Change> = vec![meta.change()];
    kv.commit(changes).await.map_err(|e: KvError| unavailable("raise the epoch", e))?;
    Ok(meta.revision)
}

/// The records among a map's entries, for checks of a store that is not running.
///
/// # Errors
/// [`StoreError::Unavailable`]: an entry is damaged.
pub fn records_of(entries: &[(bytes::Bytes, bytes::Bytes)]) -> Result<Vec<Record>, StoreError> {
    let records = entries.iter().filter(|(key, _)| key.starts_with(records::RECORDS));
    let decode = |(key, raw): &(bytes::Bytes, bytes::Bytes)| {
        records::decode(records::key_text(key)?, raw).map(|(record, _)| record)
    };
    records.map(decode).collect()
}

#[cfg(test)]
mod tests;
