//! The map on sled 0.34.
//!
//! sled's own `flush` uses `sync_file_range`, which does not survive a power cut, and it writes
//! pages over 128 KiB to files under `blobs/` that it never syncs. Three rules make it durable:
//!
//! - `sync_file_range` is [replaced](sync): every write of the log is synced before sled goes on.
//!   The [committer](super::committer) writes each group as one batch, then `flush`es.
//! - A value is cut into chunks ([`layout`]), so that no page comes near 128 KiB.
//! - A log that was used before is opened as a copy first ([`look`]): sled erases what it takes
//!   for the torn end of a log, and that may be all of it.
//!
//! They rest on the disk layout of sled 0.34.7, which the workspace pins.

mod layout;
mod look;
mod sync;

pub(super) use self::look::verify;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;

use super::acknowledged::Acknowledged;
use super::committer::{Changes, Queue, Writer, make_room_to_open};
use super::ledger::Ledger;
use super::panics::caught;
use super::{Change, Kv, KvError, damaged, io_error, is_malformed, sync_dir};
use crate::error_chain::Chain;
use crate::folders::make_private;
use crate::threads::Threads;

/// How entries lie in sled, should that ever change.
const FORMAT: &str = "1";

/// Groups need not be small to be safe, but readers wait while one is applied, and sled writes
/// several times as much.
const GROUP_BYTES: usize = 64 * 1024;

/// sled's name for its log.
pub(super) const LOG: &str = "db";

/// Whether commits are synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncRule {
    /// Every write of sled's log is synced.
    #[default]
    EveryCommit,
    /// A sync at the end of each group only, with groups as large as they come, for all maps of the
    /// process. A power cut can then destroy the log; exists so that the power-cut test can show
    /// that it would notice.
    LargeGroupsForTests,
    /// No sync, for all maps of the process. Loses acknowledged commits in a power cut; exists so
    /// that the power-cut test can show that it would notice.
    UnsafeForTests,
}

/// The database, gone once closed. Readers share the lock; the committer takes it alone while it
/// applies a batch, so that a reader never sees half of one.
type Shared = Arc<RwLock<Option<sled::Db>>>;

/// A map in a directory. One process at a time can have it open.
pub struct SledKv {
    path: PathBuf,
    db: Shared,
    queue: Queue,
}

impl fmt::Debug for SledKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledKv").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SledKv {
    /// Opens or creates the map in the directory `path`, with `cache_bytes` of page cache; the
    /// committer runs on a thread of its own, taken from `threads`. Blocks while sled recovers and
    /// while every entry is read.
    ///
    /// # Errors
    /// [`KvError::InUse`] when another process has it open; [`KvError::Damaged`]: the files are as
    /// they were; [`KvError::Io`].
    pub fn open(path: &Path, cache_bytes: u64, threads: &dyn Threads) -> Result<Self, KvError> {
        Self::open_with(path, cache_bytes, threads, SyncRule::EveryCommit)
    }

    /// As [`Self::open`], with the choice of a [`SyncRule`].
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn open_with(
        path: &Path,
        cache_bytes: u64,
        threads: &dyn Threads,
        rule: SyncRule,
    ) -> Result<Self, KvError> {
        if rule != SyncRule::EveryCommit {
            sync::skip_for_tests();
        }
        make_private(path).map_err(|e| io_error("create", e))?;
        make_room_to_open(path)?;
        look::check(path, cache_bytes)?;
        let db = open_db(path, cache_bytes)?;
        let file = File::open(path.join(LOG)).map_err(|e| io_error("open the log of", e))?;
        // The names of the new files must survive too: theirs in the directory, its in its parent.
        file.sync_all().map_err(|e| io_error("sync", e))?;
        sync_dir(path)?;
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        mark(&db, &file, path)?;
        report_blobs(path);
        let ledger = match layout::ledger(&db)? {
            Some(ledger) => ledger,
            None => layout::count(&db, |_, _| {})?,
        };
        let acknowledged = Acknowledged::open(path, ledger.groups)?;
        let shared: Shared = Arc::new(RwLock::new(Some(db)));
        let writer =
            SledWriter { db: Arc::clone(&shared), file, path: path.to_owned(), rule, ledger };
        let queue = Queue::start(writer, path, acknowledged, threads);
        Ok(Self { path: path.to_owned(), db: shared, queue })
    }

    /// How many files sled has put beside its log, where they are not synced. Always 0.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub fn blob_files(path: &Path) -> Result<usize, KvError> {
        match std::fs::read_dir(path.join("blobs")) {
            Ok(entries) => Ok(entries.count()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(io_error("list", e)),
        }
    }

    fn read<T>(&self, f: impl FnOnce(&sled::Db) -> Result<T, KvError>) -> Result<T, KvError> {
        self.db.read().as_ref().map_or(Err(KvError::Closed), f)
    }
}

#[async_trait]
impl Kv for SledKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.read(|db| layout::get(db, key))
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        self.read(|db| layout::scan(db, prefix, after, limit))
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError> {
        self.queue.commit(changes).await
    }

    fn group_bytes(&self) -> usize {
        GROUP_BYTES
    }

    async fn close(&self) {
        self.queue.close().await;
    }
}

/// The only writer of the database.
struct SledWriter {
    db: Shared,
    /// Our own handle to sled's log, to sync it.
    file: File,
    path: PathBuf,
    rule: SyncRule,
    ledger: Ledger,
}

impl Writer for SledWriter {
    fn group_bytes(&self) -> usize {
        match self.rule {
            SyncRule::LargeGroupsForTests => super::MAX_COMMIT_BYTES,
            SyncRule::EveryCommit | SyncRule::UnsafeForTests => GROUP_BYTES,
        }
    }

    /// A page is rewritten whole after ten changes.
    fn disk_bytes(&self, _changes: u64, bytes: u64) -> u64 {
        bytes.saturating_mul(4)
    }

    fn write(&mut self, changes: &Changes) -> Result<u64, KvError> {
        let mut ledger = self.ledger;
        ledger.groups += 1;
        let guard = self.db.write();
        let db = guard.as_ref().ok_or(KvError::Closed)?;
        let mut batch = sled::Batch::default();
        for (key, value) in changes {
            layout::change(db, &mut batch, &mut ledger, key, value.as_ref())?;
        }
        batch.insert(layout::LEDGER_KEY, &ledger.encode());
        db.apply_batch(batch).map_err(|e| sled_error("write to", e))?;
        let db = db.clone();
        drop(guard);
        db.flush().map_err(|e| sled_error("flush", e))?;
        match self.rule {
            SyncRule::EveryCommit => sync::check_linked(),
            SyncRule::LargeGroupsForTests => self.file.sync_data(),
            SyncRule::UnsafeForTests => Ok(()),
        }
        .map_err(|e| io_error("sync", e))?;
        self.ledger = ledger;
        Ok(ledger.groups)
    }

    fn close(&mut self) -> Result<(), KvError> {
        drop(self.db.write().take());
        Ok(())
    }

    fn locked_file(&self) -> PathBuf {
        self.path.join(LOG)
    }
}

/// An error of sled's, once the database is open.
fn sled_error(action: &'static str, error: sled::Error) -> KvError {
    match error {
        sled::Error::Io(e) => io_error(action, e),
        sled::Error::Corruption { at, .. } => {
            KvError::Corrupt { key: "(the log)".to_owned(), detail: format!("{action}: {at:?}") }
        }
        other => io_error(action, io::Error::other(other)),
    }
}

fn open_error(path: &Path, error: sled::Error) -> KvError {
    match error {
        // sled has no variant for a lock that is taken; this is the start of its message.
        sled::Error::Io(e) if e.to_string().contains("could not acquire lock") => {
            KvError::InUse { path: path.display().to_string() }
        }
        sled::Error::Corruption { at, .. } => damaged(path, &format!("at {at:?}")),
        sled::Error::Io(e) if is_malformed(&e) => damaged(path, &e.to_string()),
        sled::Error::Io(e) => io_error("open", e),
        // Of another format, or what sled calls a bug: no log that it wrote.
        other => damaged(path, &other.to_string()),
    }
}

/// Opens the database. sled panics on some kinds of damage.
fn open_db(path: &Path, cache_bytes: u64) -> Result<sled::Db, KvError> {
    // Without sled's own flusher only the committer writes: a flusher would also move pages
    // while a batch is applied.
    let config = sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None);
    caught(|| config.open())
        .map_err(|panic| damaged(path, &format!("sled panicked when it read the log: {panic}")))?
        .map_err(|e| open_error(path, e))
}

/// sled takes a log whose beginning it can't read for an empty one. So the first start writes an
/// entry, and then a file beside the log that says so: one without the other is damage.
fn mark(db: &sled::Db, file: &File, path: &Path) -> Result<(), KvError> {
    let marker = path.join("format");
    let tree = db.open_tree("format").map_err(|e| sled_error("open", e))?;
    let marked = tree.get(FORMAT).map_err(|e| sled_error("read", e))?.is_some();
    match (marked, marker.exists()) {
        (true, true) => return Ok(()),
        (false, true) => return Err(damaged(path, "what was written first is gone")),
        (_, false) => {}
    }
    tree.insert(FORMAT, &[]).map_err(|e| sled_error("write", e))?;
    db.flush().map_err(|e| sled_error("flush", e))?;
    file.sync_all().map_err(|e| io_error("sync", e))?;
    File::create(&marker).and_then(|f| f.sync_all()).map_err(|e| io_error("mark", e))?;
    sync_dir(path)
}

/// Blob files mean that a page grew past what the chunks allow: still readable, but what is in
/// them may not survive a power cut. Starting without durability beats not starting, so say so.
fn report_blobs(path: &Path) {
    match SledKv::blob_files(path) {
        Ok(0) => {}
        Ok(files) => {
            tracing::error!(files, path = %path.display(), "the data directory has blob files");
        }
        Err(error) => tracing::error!(error = %Chain(&error), "cannot look for blob files"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;
    use crate::kv::SharedKv;
    use crate::threads::OsThreads;

    const CACHE_BYTES: u64 = 8 * 1024 * 1024;

    fn open(path: &Path) -> Result<SledKv, KvError> {
        SledKv::open(path, CACHE_BYTES, &OsThreads)
    }

    #[tokio::test]
    async fn conforms() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv");
        let open: conformance::Open = Box::new(move || Arc::new(open(&path).unwrap()) as SharedKv);
        conformance::run(open).await;
        assert_eq!(SledKv::blob_files(&dir.path().join("kv")).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_second_process_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, KvError::InUse { .. }), "{error}");
        first.close().await;
        open(dir.path()).unwrap().close().await;
    }

    /// Whatever happened to the files, it is said and nothing is overwritten.
    #[tokio::test]
    async fn damaged_files_are_refused() {
        use crate::entropy::{Entropy as _, SeededEntropy};
        let entropy = SeededEntropy::new(1);
        let noise: Vec<u8> = (0..10_240).flat_map(|_| entropy.u64().to_le_bytes()).collect();
        let write = |path: &Path, text: &[u8]| std::fs::write(path, text).unwrap();
        for name in ["emptied", "removed", "noise", "text"] {
            let damage = |path: &Path| match name {
                "emptied" => write(&path.join("db"), &[]),
                "removed" => std::fs::remove_file(path.join("db")).unwrap(),
                "noise" => {
                    use std::os::unix::fs::FileExt as _;
                    let file = File::options().write(true).open(path.join("db")).unwrap();
                    file.write_all_at(&noise, 0).unwrap();
                }
                _ => write(&path.join("db"), b"hello"),
            };
            let dir = tempfile::tempdir().unwrap();
            let kv = open(dir.path()).unwrap();
            kv.commit(vec![Change::Put("a".into(), "b".into())]).await.unwrap();
            kv.close().await;
            open(dir.path()).unwrap().close().await;
            damage(dir.path());
            for _ in 0..2 {
                let error = open(dir.path()).map(|_| name).unwrap_err();
                assert!(error.is_damage(), "{name}: {error:?}");
                let path = dir.path().display().to_string();
                assert!(error.to_string().contains(&path), "{name}: {error}");
            }
        }
    }

    /// A log that lost its end opens without a word; the number beside it tells.
    #[tokio::test]
    async fn a_log_that_ends_early_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let put = |value: &'static str| vec![Change::Put("a".into(), value.into())];
        let log = dir.path().join(LOG);
        let kv = open(dir.path()).unwrap();
        kv.commit(put("1")).await.unwrap();
        kv.close().await;
        let early = std::fs::read(&log).unwrap();
        let kv = open(dir.path()).unwrap();
        kv.commit(put("2")).await.unwrap();
        kv.close().await;
        std::fs::write(&log, &early).unwrap();
        for _ in 0..2 {
            let error = open(dir.path()).unwrap_err();
            assert!(error.is_damage(), "{error}");
            assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
            assert_eq!(std::fs::read(&log).unwrap(), early);
        }
    }

    /// Nothing may be left to the sync that sled brings: in a power cut it would lose the log.
    #[tokio::test]
    async fn each_segment_of_a_large_commit_is_synced() {
        const SEGMENT: usize = 512 * 1024;
        let dir = tempfile::tempdir().unwrap();
        let kv = open(dir.path()).unwrap();
        let before = sync::calls();
        let put = |n: usize| Change::Put(format!("{n}").into(), vec![7; 256 * 1024].into());
        kv.commit((0..16).map(put).collect()).await.unwrap();
        let synced = usize::try_from(sync::calls() - before).unwrap();
        assert!(synced >= 16 * 256 * 1024 / SEGMENT, "{synced}");
        kv.close().await;
    }

    /// Leaves split as values grow and merge as they shrink or go.
    #[tokio::test]
    async fn values_of_any_size_leave_no_blob() {
        use crate::entropy::{Entropy as _, SeededEntropy};
        let dir = tempfile::tempdir().unwrap();
        let kv = open(dir.path()).unwrap();
        let entropy = SeededEntropy::new(1);
        let below = |limit: u64| usize::try_from(entropy.u64() % limit).unwrap();
        for round in 0..1_500 {
            let key = Bytes::from(format!("key/{}", below(40)));
            let change = match below(5) {
                0 => Change::Delete(key),
                1 => Change::Put(key, Bytes::from(vec![1; below(256 * 1_024)])),
                2 => Change::Put(key, Bytes::from(vec![2; below(20 * 1_024)])),
                _ => Change::Put(key, Bytes::from(vec![3; below(100 * 1_024)])),
            };
            kv.commit(vec![change]).await.unwrap();
            assert_eq!(SledKv::blob_files(dir.path()).unwrap(), 0, "round {round}");
        }
        kv.close().await;
        assert_eq!(SledKv::blob_files(dir.path()).unwrap(), 0);
    }

    #[tokio::test]
    async fn waiting_commits_share_a_sync() {
        let dir = tempfile::tempdir().unwrap();
        let kv = Arc::new(open(dir.path()).unwrap());
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..200u32 {
            let kv = Arc::clone(&kv);
            writers.spawn(async move {
                let key = Bytes::from(n.to_be_bytes().to_vec());
                kv.commit(vec![Change::Put(key.clone(), key)]).await
            });
        }
        while let Some(done) = writers.join_next().await {
            done.unwrap().unwrap();
        }
        assert_eq!(kv.scan(b"", None, 1_000).await.unwrap().len(), 200);
        kv.close().await;
    }
}
