//! The writing side: a group goes to the log, and now and then all of the log to the database.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::mpsc;

use super::super::committer::{Changes, Writer};
use super::super::ledger::Ledger;
use super::super::{KvError, MAX_COMMIT_BYTES, io_error};
use super::log::{Log, frame_bytes};
use super::recent::SharedRecent;
use super::{FILE, Shared, corrupt_is_damaged, guarded, records};
use crate::threads::{Threads, yield_to_others};

/// Bytes of changes from which on the database takes them over. The more there are, the more of them
/// share a page; a start after a crash reads them, and they are kept in memory, twice at most.
pub(super) const SETTLE_BYTES: u64 = 2 * 1024 * 1024;

/// The only writer of a map.
pub(super) struct RedbWriter {
    path: PathBuf,
    db: Shared,
    recent: SharedRecent,
    log: Log,
    /// The last group in the log.
    group: u64,
    filling: Size,
    settler: Settler,
}

/// Changes that the database does not have.
#[derive(Clone, Copy, Default)]
struct Size {
    changes: u64,
    bytes: u64,
}

impl RedbWriter {
    /// A writer of a map whose database has all groups so far, as the ledger says.
    pub(super) fn new(
        path: &Path,
        db: Shared,
        recent: SharedRecent,
        ledger: Ledger,
        log: Log,
        threads: &dyn Threads,
    ) -> Self {
        let settler = Settler::start(path, &db, &recent, ledger, threads);
        let (path, group) = (path.to_owned(), ledger.groups);
        Self { path, db, recent, log, group, filling: Size::default(), settler }
    }

    /// Has the database take over what the log holds, and begins the log anew. Waits for the last
    /// time to end.
    fn turn(&mut self) -> Result<(), KvError> {
        self.settler.wait()?;
        if self.filling.changes == 0 {
            return Ok(());
        }
        let changes = self.recent.write().settle();
        self.settler.begin(Batch { changes, group: self.group }, self.filling)?;
        self.filling = Size::default();
        self.log.turn();
        Ok(())
    }
}

impl Writer for RedbWriter {
    fn group_bytes(&self) -> usize {
        MAX_COMMIT_BYTES
    }

    /// The group's frame; then, for it and those before it: a change rewrites its leaf and the
    /// branches above, and a value may fill half of its pages.
    fn disk_bytes(&self, changes: u64, bytes: u64) -> u64 {
        const PATH_BYTES: u64 = 16 * 1024;
        let pages = |size: Size| {
            size.bytes.saturating_mul(4).saturating_add(size.changes.saturating_mul(PATH_BYTES))
        };
        let group = frame_bytes(changes, bytes).saturating_add(pages(Size { changes, bytes }));
        group.saturating_add(pages(self.filling)).saturating_add(pages(self.settler.size))
    }

    fn settle(&mut self) -> Result<(), KvError> {
        self.turn()?;
        self.settler.wait()
    }

    fn write(&mut self, changes: &Changes) -> Result<u64, KvError> {
        self.settler.look()?;
        if changes.is_empty() {
            return Ok(self.group);
        }
        if self.filling.bytes >= SETTLE_BYTES {
            self.turn()?;
        }
        self.log.append(self.group + 1, changes)?;
        self.recent.write().add(changes);
        self.group += 1;
        for (key, value) in changes {
            self.filling.changes += 1;
            let bytes = key.len() + value.as_ref().map_or(0, bytes::Bytes::len);
            self.filling.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
        Ok(self.group)
    }

    fn close(&mut self) -> Result<(), KvError> {
        let settled = self.settle();
        drop(self.db.write().take());
        settled?;
        Log::remove(&self.path)
    }

    fn locked_file(&self) -> PathBuf {
        self.path.join(FILE)
    }
}

/// What the database is to take over, up to a group.
struct Batch {
    changes: Arc<Changes>,
    group: u64,
}

/// The way to the thread that writes to the database.
struct Settler {
    work: mpsc::Sender<Batch>,
    done: Receiver<Result<(), KvError>>,
    /// What it is at.
    size: Size,
    /// The first failure: later groups must not follow those that were not written.
    failed: Option<KvError>,
}

impl Settler {
    fn start(
        path: &Path,
        db: &Shared,
        recent: &SharedRecent,
        mut ledger: Ledger,
        threads: &dyn Threads,
    ) -> Self {
        let (work, mut batches) = mpsc::channel::<Batch>(1);
        let (tell, done): (SyncSender<Result<(), KvError>>, _) = sync_channel(1);
        let (folder, db, recent) = (path.to_owned(), Arc::clone(db), Arc::clone(recent));
        let run = async move {
            yield_to_others();
            while let Some(batch) = batches.recv().await {
                let settled = settle(&folder, &db, &batch, ledger).map(|after| {
                    ledger = after;
                    let changes = recent.write().settled();
                    drop(changes);
                });
                if tell.send(settled).is_err() {
                    return;
                }
            }
        };
        threads.run("kv-settler", Box::pin(run));
        Self { work, done, size: Size::default(), failed: None }
    }

    /// Begins with a batch; the last one must have ended.
    fn begin(&mut self, batch: Batch, size: Size) -> Result<(), KvError> {
        match self.work.try_send(batch) {
            Ok(()) => self.size = size,
            Err(_) => self.failed = Some(gone()),
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Whether a batch failed, as far as they have ended.
    fn look(&mut self) -> Result<(), KvError> {
        if let Ok(outcome) = self.done.try_recv() {
            self.ended(outcome);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until the last batch has ended.
    fn wait(&mut self) -> Result<(), KvError> {
        if self.failed.is_none() && self.size.changes > 0 {
            let outcome = self.done.recv().unwrap_or_else(|_| Err(gone()));
            self.ended(outcome);
        }
        self.look()
    }

    fn ended(&mut self, outcome: Result<(), KvError>) {
        self.size = Size::default();
        self.failed = outcome.err();
    }
}

/// Nothing is damaged: the groups are in the log.
fn gone() -> KvError {
    io_error("write to", io::Error::other("the thread that writes to the database has ended"))
}

/// Writes a batch to the database, durably; the ledger is that before it, and is returned as it is
/// after it. Whatever fails is final: its groups are acknowledged.
fn settle(path: &Path, db: &Shared, batch: &Batch, ledger: Ledger) -> Result<Ledger, KvError> {
    let guard = db.read();
    let db = guard.as_ref().ok_or(KvError::Closed)?;
    let settled = guarded("write to", path, || {
        let mut txn = db.begin_write()?;
        // The pages are synced before the root that names them is written.
        txn.set_two_phase_commit(true);
        let ledger = records::apply(&txn, &batch.changes, batch.group, ledger)?;
        txn.commit()?;
        Ok(ledger)
    });
    settled.map_err(corrupt_is_damaged(path))
}
