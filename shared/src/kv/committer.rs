//! The committer of an engine: one thread that drains a bounded queue, makes one group of the
//! commits that wait, has the engine write it, and only then acknowledges them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::acknowledged::Acknowledged;
use super::{Change, KvError, check_limits, io_error};
use crate::error_chain::Chain;
use crate::threads::Threads;

/// Commits that may wait for the committer. Each waits in a task of its caller, so this bounds
/// callers, not bytes; it is far above what one sync can't absorb.
const QUEUE_COMMITS: usize = 4_096;
/// Most commits in one group; bounds how long the first of them waits.
const GROUP_COMMITS: usize = 1_024;
/// Kept free on the file system for what an engine may write without being asked. No engine can
/// go on after a failed write.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// What a group changes: of several changes of a key the last holds; `None` removes it.
pub(super) type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// The writing side of an engine; it lives on the committer's thread.
pub(super) trait Writer: Send + 'static {
    /// A group takes no further commits past this many bytes.
    fn group_bytes(&self) -> usize;

    /// Most bytes that writing a group of so many changes and bytes takes on the file system.
    fn disk_bytes(changes: u64, bytes: u64) -> u64;

    /// Writes all changes or none and returns once they survive a power cut: the number of groups
    /// written so far.
    ///
    /// # Errors
    /// [`KvError::Io`] and [`KvError::Damaged`] are final; after any other the next group may
    /// succeed.
    fn write(&mut self, changes: &Changes) -> Result<u64, KvError>;

    /// Lets go of the database; what waits for a read meanwhile finds it closed.
    fn close(&mut self);

    /// The file that the engine keeps locked while it is open.
    fn locked_file(&self) -> PathBuf;
}

enum Request {
    Commit { changes: Vec<Change>, done: oneshot::Sender<Result<(), KvError>> },
    Close { done: oneshot::Sender<()> },
}

/// The way to a committer.
#[derive(Debug)]
pub(super) struct Queue(mpsc::Sender<Request>);

impl Queue {
    /// Starts a committer for the map in `folder`, on a thread of its own.
    pub(super) fn start<W: Writer>(
        writer: W,
        folder: &Path,
        acknowledged: Acknowledged,
        threads: &dyn Threads,
    ) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_COMMITS);
        let folder = folder.to_owned();
        let committer = Committer { writer, folder, acknowledged, failed: None };
        threads.run("kv-committer", Box::pin(committer.run(requests)));
        Self(queue)
    }

    /// See [`super::Kv::commit`].
    pub(super) async fn commit(&self, changes: Vec<Change>) -> Result<(), KvError> {
        check_limits(&changes)?;
        let (done, outcome) = oneshot::channel();
        self.0.try_send(Request::Commit { changes, done }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => KvError::Busy,
            mpsc::error::TrySendError::Closed(_) => KvError::Closed,
        })?;
        outcome.await.unwrap_or(Err(KvError::Closed))
    }

    /// See [`super::Kv::close`].
    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.0.send(Request::Close { done }).await.is_ok() {
            // An error means that the committer is gone already.
            closed.await.unwrap_or(());
        }
    }
}

struct Committer<W> {
    writer: W,
    folder: PathBuf,
    acknowledged: Acknowledged,
    /// The first failure of the device; all later commits get it too.
    failed: Option<KvError>,
}

/// Commits that are written as one.
#[derive(Default)]
struct Group {
    changes: Changes,
    bytes: usize,
    waiting: Vec<oneshot::Sender<Result<(), KvError>>>,
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

    fn is_full(&self, most_bytes: usize) -> bool {
        self.waiting.len() >= GROUP_COMMITS || self.bytes >= most_bytes
    }
}

impl<W: Writer> Committer<W> {
    /// Runs until the map is closed or dropped. Blocks its thread in every sync.
    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
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
                if !group.is_full(self.writer.group_bytes()) {
                    next = requests.try_recv().ok();
                }
            }
            self.write(group);
        }
        self.note(self.acknowledged.sync());
        self.writer.close();
        self.wait_released();
        if let Some(done) = closing {
            // Nobody waits for it any more: nothing to tell.
            done.send(()).unwrap_or(());
        }
    }

    /// An engine's own threads may let go of its files, and of their lock, a moment after us.
    #[expect(clippy::disallowed_methods, reason = "this thread blocks in every sync anyway")]
    fn wait_released(&self) {
        const LOOKS: u32 = 1_000;
        const PAUSE: Duration = Duration::from_millis(1);
        let path = self.writer.locked_file();
        for _ in 0..LOOKS {
            match File::open(&path) {
                Ok(file) if file.try_lock().is_err() => std::thread::sleep(PAUSE),
                // Moved away, or free.
                Ok(_) | Err(_) => return,
            }
        }
        tracing::warn!(path = %path.display(), "the database is still locked");
    }

    fn write(&mut self, group: Group) {
        if group.waiting.is_empty() {
            return;
        }
        let written = match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.check_room(&group).and_then(|()| self.writer.write(&group.changes)),
        };
        if let Ok(groups) = written {
            self.note(self.acknowledged.advance(groups));
        }
        let outcome = written.map(|_| ());
        if let Err(error) = &outcome
            && error.is_final()
            && self.failed.is_none()
        {
            let path = self.folder.display();
            tracing::error!(%path, error = %Chain(error), "the data directory failed");
            self.failed = Some(error.clone());
        }
        for done in group.waiting {
            // A caller that went away does not undo its commit.
            done.send(outcome.clone()).unwrap_or(());
        }
    }

    /// The group itself is durable whatever happened to the number beside it, so its callers are
    /// not told; what is lost is that a later loss would be noticed.
    fn note(&self, outcome: Result<(), KvError>) {
        if let Err(error) = outcome {
            let path = self.folder.display();
            tracing::error!(%path, error = %Chain(&error), "cannot note what was acknowledged");
        }
    }

    fn check_room(&self, group: &Group) -> Result<(), KvError> {
        let stat = nix::sys::statvfs::statvfs(&self.folder)
            .map_err(|e| io_error("measure", io::Error::from(e)))?;
        let free_bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
        let long = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let needed_bytes = RESERVE_BYTES
            .saturating_add(W::disk_bytes(long(group.changes.len()), long(group.bytes)));
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
