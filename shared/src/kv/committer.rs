//! The committer of an engine: one thread that drains a bounded queue, makes one group of the
//! commits that wait, has the engine write it, and only then acknowledges them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::acknowledged::Acknowledged;
use super::{Change, KvError, check_limits, io_error};
use crate::error_chain::Chain;
use crate::reserve::{Reserve, available_bytes};
use crate::threads::Threads;
use crate::units::MIB;

/// Commits that may wait for the committer. Each waits in a task of its caller, so this bounds
/// callers, not bytes; it is far above what one sync can't absorb.
const QUEUE_COMMITS: usize = 4_096;
/// Most commits in one group; bounds how long the first of them waits.
const GROUP_COMMITS: usize = 1_024;
/// Left free on the file system for what an engine may write without being asked, and for what
/// only removes. No engine can go on after a failed write.
const SPARE_BYTES: u64 = 16 * MIB;
/// What a removal must leave of that.
const LEAST_SPARE_BYTES: u64 = 4 * MIB;
/// Kept in a file, for the day when others have filled the file system to its last byte: a start
/// and removals then still find room.
const RESERVE_BYTES: u64 = 32 * MIB;
/// Free beside that file when it is made.
const BESIDE_RESERVE_BYTES: u64 = 64 * MIB;
/// A group that writes no more than this, beside what it removes, counts as a removal: the store
/// writes its revision with each commit.
const REMOVAL_BYTES: usize = 1_024;

/// The reserve of the map in `folder`.
fn reserve(folder: &Path) -> Reserve {
    Reserve::new(folder, RESERVE_BYTES, BESIDE_RESERVE_BYTES)
}

/// Makes sure, as far as the reserve can, that an engine finds the room that it needs to open.
///
/// # Errors
/// [`KvError::Io`].
pub(super) fn make_room_to_open(folder: &Path) -> Result<(), KvError> {
    let failed = |error| io_error("find room in", error);
    if available_bytes(folder).map_err(failed)? < RESERVE_BYTES
        && reserve(folder).lend().map_err(failed)?
    {
        let folder = folder.display();
        tracing::warn!(%folder, "the file system is full: the room kept in reserve is given back");
    }
    Ok(())
}

/// What a group changes: of several changes of a key the last holds; `None` removes it.
pub(super) type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// The writing side of an engine; it lives on the committer's thread.
pub(super) trait Writer: Send + 'static {
    /// A group takes no further commits past this many bytes.
    fn group_bytes(&self) -> usize;

    /// Most bytes that a group of so many changes and bytes takes on the file system, and what was
    /// written before and takes its room later.
    fn disk_bytes(&self, changes: u64, bytes: u64) -> u64;

    /// Has what was written before take its room now.
    ///
    /// # Errors
    /// As of [`Writer::write`].
    fn settle(&mut self) -> Result<(), KvError> {
        Ok(())
    }

    /// Writes all changes or none and returns once they survive a power cut: the number of groups
    /// written so far.
    ///
    /// # Errors
    /// [`KvError::Io`] and [`KvError::Damaged`] are final; after any other the next group may
    /// succeed.
    fn write(&mut self, changes: &Changes) -> Result<u64, KvError>;

    /// Lets go of the database; what waits for a read meanwhile finds it closed.
    ///
    /// # Errors
    /// As of [`Writer::write`]; what was written is found again when the map is opened.
    fn close(&mut self) -> Result<(), KvError>;

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
        let reserve = reserve(&folder);
        let committer = Committer {
            writer,
            folder,
            reserve,
            is_reserve_due: true,
            acknowledged,
            is_tight: false,
            failed: None,
        };
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
    reserve: Reserve,
    /// The reserve was lent, or was not looked at yet.
    is_reserve_due: bool,
    acknowledged: Acknowledged,
    /// The last group found no room: each commit is a group of its own, so that one that removes
    /// does not fail with those that add.
    is_tight: bool,
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

    fn only_removes(&self) -> bool {
        let (mut removed, mut written) = (0, 0);
        for (key, value) in &self.changes {
            match value {
                Some(value) => written += key.len() + value.len(),
                None => removed += 1,
            }
        }
        removed > 0 && written <= REMOVAL_BYTES
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
                if !self.is_tight && !group.is_full(self.writer.group_bytes()) {
                    next = requests.try_recv().ok();
                }
            }
            self.write(group);
        }
        self.note(self.acknowledged.sync());
        if let Err(error) = self.writer.close() {
            let path = self.folder.display();
            tracing::error!(%path, error = %Chain(&error), "the map was not closed cleanly");
        }
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

    /// A group that only removes may take what others must leave, and the reserve.
    fn check_room(&mut self, group: &Group) -> Result<(), KvError> {
        let long = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let (changes, bytes) = (long(group.changes.len()), long(group.bytes));
        let mut free_bytes = self.free_bytes()?;
        if free_bytes < self.writer.disk_bytes(changes, bytes).saturating_add(SPARE_BYTES) {
            self.writer.settle()?;
            free_bytes = self.free_bytes()?;
        }
        let own_bytes = self.writer.disk_bytes(changes, bytes);
        let needed_bytes = own_bytes.saturating_add(SPARE_BYTES);
        if free_bytes >= needed_bytes {
            self.is_tight = false;
            if free_bytes - needed_bytes >= RESERVE_BYTES + BESIDE_RESERVE_BYTES {
                self.keep_reserve();
            }
            return Ok(());
        }
        self.is_tight = true;
        if group.only_removes() {
            let least_bytes = own_bytes.saturating_add(LEAST_SPARE_BYTES);
            if free_bytes < least_bytes && self.lend_reserve()? {
                free_bytes = self.free_bytes()?;
            }
            if free_bytes >= least_bytes {
                return Ok(());
            }
        }
        Err(KvError::Full { free_bytes, needed_bytes })
    }

    fn free_bytes(&self) -> Result<u64, KvError> {
        available_bytes(&self.folder).map_err(|e| io_error("measure", e))
    }

    fn lend_reserve(&mut self) -> Result<bool, KvError> {
        let is_lent = self.reserve.lend().map_err(|e| io_error("give back room of", e))?;
        if is_lent {
            self.is_reserve_due = true;
            let path = self.folder.display();
            tracing::warn!(%path, "the file system is full: the room kept in reserve is given back");
        }
        Ok(is_lent)
    }

    /// Takes the reserve as soon as there is room for it. Without it all goes on; only a full file
    /// system would be harder to empty.
    fn keep_reserve(&mut self) {
        if !std::mem::take(&mut self.is_reserve_due) {
            return;
        }
        if let Err(error) = self.reserve.keep() {
            let path = self.folder.display();
            tracing::warn!(%path, error = %Chain(&error), "no room can be kept in reserve");
        }
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
