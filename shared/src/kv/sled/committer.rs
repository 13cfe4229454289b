//! The committer thread: the only writer of the database.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::super::{Change, KvError, MAX_COMMIT_BYTES};
use super::{Shared, SyncRule, io_error, layout, sled_error};
use crate::error_chain::Chain;

/// Most commits in one batch; bounds how long the first of them waits.
const GROUP_COMMITS: usize = 1_024;
/// A batch takes no further commits past this size, so it stays under twice
/// [`MAX_COMMIT_BYTES`].
const GROUP_BYTES: usize = MAX_COMMIT_BYTES;
/// Kept free on the file system: what sled may write without being asked (a segment being
/// filled, pages it moves, a snapshot). An error in there would close the database.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes sled may write per byte of a batch: a page is rewritten whole after ten changes.
const AMPLIFICATION: u64 = 4;

pub(super) enum Request {
    /// Apply and sync.
    Commit { changes: Vec<Change>, done: oneshot::Sender<Result<(), KvError>> },
    /// Close the database.
    Close { done: oneshot::Sender<()> },
}

type Waiting = Vec<oneshot::Sender<Result<(), KvError>>>;

pub(super) struct Committer {
    db: Shared,
    /// Our own handle to sled's log, to sync it.
    file: File,
    path: PathBuf,
    rule: SyncRule,
    /// The first failure of the device; all later commits get it too.
    failed: Option<KvError>,
}

/// Commits that become one batch; of several changes of a key the last holds.
#[derive(Default)]
struct Group {
    changes: BTreeMap<Bytes, Option<Bytes>>,
    bytes: usize,
    waiting: Waiting,
}

impl Group {
    fn add(&mut self, changes: Vec<Change>, done: oneshot::Sender<Result<(), KvError>>) {
        for change in changes {
            self.bytes += change.key().len();
            match change {
                Change::Put(key, value) => {
                    self.bytes += value.len();
                    self.changes.insert(key, Some(value));
                }
                Change::Delete(key) => {
                    self.changes.insert(key, None);
                }
            }
        }
        self.waiting.push(done);
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= GROUP_COMMITS || self.bytes >= GROUP_BYTES
    }
}

impl Committer {
    pub(super) fn new(db: Shared, file: File, path: PathBuf, rule: SyncRule) -> Self {
        Self { db, file, path, rule, failed: None }
    }

    /// Runs until the map is closed or dropped. Blocks its thread in every sync.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut closing = None;
        while let Some(request) = requests.recv().await {
            let mut group = Group::default();
            let mut next = Some(request);
            while let Some(request) = next.take() {
                match request {
                    Request::Commit { changes, done } => group.add(changes, done),
                    Request::Close { done } => {
                        // What is queued behind a close was sent in time, so it still counts.
                        requests.close();
                        closing = Some(done);
                    }
                }
                if !group.is_full() {
                    next = requests.try_recv().ok();
                }
            }
            self.write(group);
        }
        drop(self.db.write().take());
        self.wait_released();
        if let Some(done) = closing {
            // Nobody waits for it any more: nothing to tell.
            done.send(()).unwrap_or(());
        }
    }

    /// sled's own threads let go of the database, and of its lock, a moment after us.
    #[expect(clippy::disallowed_methods, reason = "this thread blocks in every sync anyway")]
    fn wait_released(&self) {
        const LOOKS: u32 = 1_000;
        const PAUSE: Duration = Duration::from_millis(1);
        for _ in 0..LOOKS {
            if File::open(self.path.join("db")).is_ok_and(|file| file.try_lock().is_ok()) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        tracing::warn!(path = %self.path.display(), "the database is still locked");
    }

    fn write(&mut self, group: Group) {
        if group.waiting.is_empty() {
            return;
        }
        let outcome = match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.write_durably(&group),
        };
        if let Err(error @ KvError::Io { .. }) = &outcome
            && self.failed.is_none()
        {
            let path = self.path.display();
            tracing::error!(%path, error = %Chain(error), "the data directory failed");
            self.failed = Some(error.clone());
        }
        for done in group.waiting {
            // A caller that went away does not undo its commit.
            done.send(outcome.clone()).unwrap_or(());
        }
    }

    fn write_durably(&self, group: &Group) -> Result<(), KvError> {
        self.check_room(group.bytes)?;
        let guard = self.db.write();
        let db = guard.as_ref().ok_or(KvError::Closed)?;
        let mut batch = sled::Batch::default();
        for (key, value) in &group.changes {
            layout::change(db, &mut batch, key, value.as_ref())?;
        }
        db.apply_batch(batch).map_err(|e| sled_error("write to", e))?;
        let db = db.clone();
        drop(guard);
        db.flush().map_err(|e| sled_error("flush", e))?;
        match self.rule {
            SyncRule::EveryCommit => self.file.sync_data().map_err(|e| io_error("sync", e)),
            SyncRule::UnsafeForTests => Ok(()),
        }
    }

    /// sled can't go on after a failed write, so a full file system is noticed before.
    fn check_room(&self, bytes: usize) -> Result<(), KvError> {
        let stat = nix::sys::statvfs::statvfs(&self.path)
            .map_err(|e| io_error("measure", io::Error::from(e)))?;
        let free_bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let needed_bytes = RESERVE_BYTES.saturating_add(bytes.saturating_mul(AMPLIFICATION));
        if free_bytes < needed_bytes {
            return Err(KvError::Full { free_bytes, needed_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_key_holds() {
        let (a, _ra) = oneshot::channel();
        let (b, _rb) = oneshot::channel();
        let mut group = Group::default();
        group.add(vec![Change::Put("k".into(), "1".into())], a);
        group.add(vec![Change::Delete("k".into()), Change::Put("l".into(), "2".into())], b);
        assert_eq!(group.changes.len(), 2);
        assert_eq!(group.changes[&Bytes::from("k")], None);
        assert_eq!(group.waiting.len(), 2);
    }
}
