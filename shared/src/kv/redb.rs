//! The map on redb: copy-on-write pages, of which only the root is ever overwritten.
//!
//! - The [committer](super::committer) writes each group to a [`log`] with one sync. Now and then the
//!   database takes over all that is there, as one transaction with two syncs ([`writer`]): one for
//!   the pages, one for the root that names them. A cut between them leaves the old root, and the log.
//! - Who reads gets what the database does not have yet from memory ([`recent`]).
//! - redb verifies no checksum when it reads, so each record has its own ([`records`]).
//! - A file is opened over a layer in memory first ([`Overlay`]), and every page and record of it
//!   is checked, those from the log included; redb gets the file itself only if all that was
//!   acknowledged is there.

mod log;
mod overlay;
mod recent;
mod records;
mod survey;
mod writer;

pub(in crate::kv) use self::survey::verify;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase};

use self::log::Log;
use self::overlay::Overlay;
use self::recent::SharedRecent;
use self::records::{Count, Direction, Failure};
use self::writer::RedbWriter;
use super::acknowledged::Acknowledged;
use super::committer::{Queue, make_room_to_open};
use super::ledger::Ledger;
use super::panics::caught;
use super::{Change, Kv, KvError, damaged, io_error, sync_dir};
use crate::entropy::{Entropy as _, SeededEntropy};
use crate::folders::make_private;
use crate::threads::Threads;

/// Name of the file in the map's folder.
pub(super) const FILE: &str = "records.redb";
/// The table of the ledger is empty, or holds something else.
const NO_LEDGER: &str = "its ledger can't be read";
/// A file smaller than this is not compacted, bytes.
const COMPACT_FROM: u64 = 64 * 1024 * 1024;
/// Nor is one that is less than so many times what its records take.
const COMPACT_AT: u64 = 4;

/// The database, gone once closed.
type Shared = Arc<RwLock<Option<Database>>>;

/// A map in a directory. One process at a time can have it open.
pub struct RedbKv {
    path: PathBuf,
    db: Shared,
    recent: SharedRecent,
    queue: Queue,
}

impl fmt::Debug for RedbKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbKv").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RedbKv {
    /// Opens or creates the map in the directory `path`, with `cache_bytes` of page cache; the
    /// committer runs on a thread of its own, taken from `threads`. Blocks while every page and
    /// record is checked.
    ///
    /// # Errors
    /// [`KvError::InUse`] when another process has it open; [`KvError::Damaged`]: the files are as
    /// they were; [`KvError::Io`].
    pub fn open(path: &Path, cache_bytes: u64, threads: &dyn Threads) -> Result<Self, KvError> {
        make_private(path).map_err(|e| io_error("create", e))?;
        make_room_to_open(path)?;
        let file = path.join(FILE);
        if !file.exists() {
            if Acknowledged::read(path)?.is_some() {
                return Err(damaged(path, &format!("the file {FILE} is gone")));
            }
            create(path)?;
        }
        let found = check(path, cache_bytes)?;
        let mut db = guarded("open", path, || Ok(builder(cache_bytes).open(&file)?))?;
        let id = SeededEntropy::from_os().u64();
        if let Some(damage) = replay(&db, path, Some(id))? {
            return Err(damaged(path, &damage));
        }
        compact(&mut db, path, found.bytes)?;
        let log = Log::create(path, id)?;
        let acknowledged = Acknowledged::open(path, found.ledger.groups)?;
        Ok(Self::start(path, db, found.ledger, log, acknowledged, threads))
    }

    fn start(
        path: &Path,
        db: Database,
        ledger: Ledger,
        log: Log,
        acknowledged: Acknowledged,
        threads: &dyn Threads,
    ) -> Self {
        let db: Shared = Arc::new(RwLock::new(Some(db)));
        let recent = SharedRecent::default();
        let writer =
            RedbWriter::new(path, Arc::clone(&db), Arc::clone(&recent), ledger, log, threads);
        let queue = Queue::start(writer, path, acknowledged, threads);
        Self { path: path.to_owned(), db, recent, queue }
    }

    fn read<T>(&self, f: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, KvError> {
        let db = self.db.read();
        let db = db.as_ref().ok_or(KvError::Closed)?;
        guarded("read", &self.path, || f(db))
    }
}

#[async_trait]
impl Kv for RedbKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let recent = self.recent.read().get(key);
        self.read(|db| recent.map_or_else(|| records::get(db, key), Ok))
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, KvError> {
        self.read(|db| {
            // Both of one moment: what leaves the one is in the other then.
            let recent = self.recent.read();
            let (newer, moment) = (recent.changes(prefix, after), records::moment(db)?);
            drop(recent);
            records::scan(&moment, newer, prefix, after, limit)
        })
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError> {
        self.queue.commit(changes).await
    }

    async fn close(&self) {
        self.queue.close().await;
    }
}

fn builder(cache_bytes: u64) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(usize::try_from(cache_bytes).unwrap_or(usize::MAX));
    builder
}

/// Runs `f`. redb panics on some kinds of damage, and must not take its caller along.
fn guarded<T>(
    action: &'static str,
    path: &Path,
    f: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, KvError> {
    caught(f)
        .map_err(|panic| damaged(path, &format!("{action}: redb panicked: {panic}")))?
        .map_err(|failure| failure.in_folder(action, path))
}

/// An error of redb's.
fn engine_error(action: &'static str, path: &Path, error: redb::Error) -> KvError {
    match error {
        redb::Error::DatabaseAlreadyOpen => KvError::InUse { path: path.display().to_string() },
        redb::Error::DatabaseClosed => KvError::Closed,
        redb::Error::Io(e) if super::is_malformed(&e) => damaged(path, &e.to_string()),
        redb::Error::Io(e) => io_error(action, e),
        redb::Error::PreviousIo => {
            io_error(action, io::Error::other("the device failed before; open the map again"))
        }
        other => damaged(path, &format!("{action}: {other}")),
    }
}

/// Makes an empty map. It has its name only once it is whole and synced.
fn create(path: &Path) -> Result<(), KvError> {
    let failed = |e| io_error("create a file in", e);
    let partial = path.join(format!("{FILE}.new"));
    match std::fs::remove_file(&partial) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    guarded("create", path, || {
        let db = Database::create(&partial)?;
        let mut txn = db.begin_write()?;
        txn.set_two_phase_commit(true);
        records::initialize(&txn)?;
        txn.commit()?;
        db.close()?;
        Ok(())
    })?;
    File::open(&partial).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(&partial, path.join(FILE)).map_err(failed)?;
    sync_dir(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => Ok(()),
    }
}

/// Checks every page and every record without writing, and that nothing acknowledged is missing.
fn check(path: &Path, cache_bytes: u64) -> Result<Count, KvError> {
    let acknowledged = Acknowledged::read(path)?;
    let db = open_over(path, cache_bytes, true)?;
    if let Some(damage) = replay(&db, path, None)? {
        return Err(damaged(path, &damage));
    }
    let (ledger, mut found) = guarded("check", path, || {
        let txn = db.begin_read()?;
        let found = records::walk(&txn, Direction::Forward, |record| {
            record.map(|_| ControlFlow::Continue(()))
        })?;
        Ok((records::ledger(&txn)?, found))
    })
    .map_err(corrupt_is_damaged(path))?;
    let ledger = ledger.ok_or_else(|| damaged(path, NO_LEDGER))?;
    if let Some(what) = ledger.shortfall(&found.ledger, acknowledged) {
        return Err(damaged(path, &what));
    }
    found.ledger = ledger;
    Ok(found)
}

/// Writes the groups of the log to the database, and with them the id of the next log, if there is to
/// be one. What is wrong with the log is returned; the groups before that are written then.
fn replay(db: &Database, path: &Path, next_id: Option<u64>) -> Result<Option<String>, KvError> {
    let (ledger, id) = guarded("read", path, || {
        let txn = db.begin_read()?;
        Ok((records::ledger(&txn)?, records::log_id(&txn)?))
    })?;
    let Some(mut ledger) = ledger else { return Ok(Some(NO_LEDGER.to_owned())) };
    let found = id.map(|id| Log::read(path, id, ledger.groups)).transpose()?.unwrap_or_default();
    if !found.groups.is_empty() || next_id.is_some() {
        guarded("write to", path, || {
            let mut txn = db.begin_write()?;
            txn.set_two_phase_commit(true);
            for (number, changes) in &found.groups {
                ledger = records::apply(&txn, changes, *number, ledger)?;
            }
            if let Some(id) = next_id {
                records::write_log_id(&txn, id)?;
            }
            Ok(txn.commit()?)
        })
        .map_err(corrupt_is_damaged(path))?;
    }
    let missing = ledger.groups + 1;
    Ok(found.beyond.map(|beyond| format!("its log has group {beyond}, but no group {missing}")))
}

/// For what reads or writes more than the record that a caller asks for.
fn corrupt_is_damaged(path: &Path) -> impl Fn(KvError) -> KvError {
    move |error| match error {
        KvError::Corrupt { .. } => damaged(path, &error.to_string()),
        other => other,
    }
}

/// Opens the map over a layer in memory; nothing is ever written to its file.
fn open_over(path: &Path, cache_bytes: u64, verify: bool) -> Result<Database, KvError> {
    // The lock needs it to be open for writing.
    let file = File::options().read(true).write(true).open(path.join(FILE));
    let file = file.map_err(|e| io_error("open a file of", e))?;
    let empty = file.metadata().map_err(|e| io_error("measure", e))?.len() == 0;
    if empty {
        // redb would make a new database there.
        return Err(damaged(path, &format!("the file {FILE} is empty")));
    }
    guarded("open", path, || {
        let mut builder = builder(cache_bytes);
        builder.set_check_integrity_on_open(verify);
        Ok(builder.create_with_backend(Overlay::new(file)?)?)
    })
}

/// Gives free pages back to the file system, if there are many.
fn compact(db: &mut Database, path: &Path, record_bytes: u64) -> Result<(), KvError> {
    let size = |path: &Path| {
        std::fs::metadata(path.join(FILE)).map(|m| m.len()).map_err(|e| io_error("measure", e))
    };
    let before = size(path)?;
    if before < COMPACT_FROM || before / COMPACT_AT < record_bytes {
        return Ok(());
    }
    guarded("compact", path, || {
        db.compact()?;
        Ok(())
    })?;
    let after = size(path)?;
    tracing::info!(path = %path.display(), before, after, record_bytes, "compacted the map");
    Ok(())
}

#[cfg(test)]
mod tests;
