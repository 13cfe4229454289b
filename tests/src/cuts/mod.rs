//! Power cuts and damage of a map's files, on all engines alike.
//!
//! A process with many writers commits to a map while a preloaded library logs its writes and makes
//! its syncs slow. From the log the folder is rebuilt as a cut at any moment could have left it:
//! all that a finished sync covered, and of what was written since any part, as a disk with a cache
//! keeps it. Then the map is opened and every acknowledged commit is looked for.

mod disk;
mod files;
mod judge;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use muster_shared::entropy::Entropy;
use muster_shared::kv::{Change, KvError, RedbKv, SharedKv, SledKv, SyncRule};
use muster_shared::threads::OsThreads;

pub use self::disk::Mode;
pub use self::files::damage;
pub use self::judge::Tally;

use self::disk::Recording;
use self::judge::Expected;

/// Page cache of a map, small so that pages leave it.
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// Name of the map's folder in the recorded one.
pub const MAP: &str = "map";
/// Name of the file in the recorded folder that writers note acknowledgements in.
pub const NOTES: &str = "acknowledged-commits";
/// The note that the map is open: no writer has this number.
pub const OPENED: u32 = u32::MAX;
/// Keys that a writer uses in turn.
const KEYS: u32 = 4;

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// [`RedbKv`].
    Redb,
    /// [`SledKv`].
    Sled,
    /// [`SledKv`] with a sync at the end of large groups only: it must be seen to fail.
    SledLargeGroups,
    /// [`SledKv`] without a sync: it must be seen to fail too.
    SledUnsynced,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Redb, Self::Sled, Self::SledLargeGroups, Self::SledUnsynced];

    /// Its name, on command lines and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
            Self::SledLargeGroups => "sled-large-groups",
            Self::SledUnsynced => "sled-unsynced",
        }
    }

    /// Opens the map in a folder.
    ///
    /// # Errors
    /// See the engine's.
    pub fn open(self, folder: &Path) -> Result<SharedKv, KvError> {
        let sled = |rule| SledKv::open_with(folder, CACHE_BYTES, &OsThreads, rule);
        Ok(match self {
            Self::Redb => std::sync::Arc::new(RedbKv::open(folder, CACHE_BYTES, &OsThreads)?),
            Self::Sled => std::sync::Arc::new(sled(SyncRule::EveryCommit)?),
            Self::SledLargeGroups => std::sync::Arc::new(sled(SyncRule::LargeGroupsForTests)?),
            Self::SledUnsynced => std::sync::Arc::new(sled(SyncRule::UnsafeForTests)?),
        })
    }
}

/// Who writes how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A coordinator that is given tasks with large parameters by many clients.
    Coordinator,
    /// An agent's journal at its worst: tasks of all kinds at once, large parameters and results.
    Agent,
    /// A client whose commits are far larger than a group: no engine may count on small ones.
    Large,
}

impl Load {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::Agent, Self::Large];

    /// Its name on command lines and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Agent => "agent",
            Self::Large => "large",
        }
    }

    /// Writers that commit at the same time.
    #[must_use]
    pub fn writers(self) -> u32 {
        match self {
            Self::Coordinator => 128,
            Self::Agent => 16,
            Self::Large => 1,
        }
    }

    /// Commits of each writer, one after the other.
    #[must_use]
    pub fn commits(self) -> u32 {
        match self {
            Self::Coordinator => 12,
            Self::Agent => 48,
            Self::Large => 60,
        }
    }

    /// How much longer a sync takes than it would, ms.
    fn sync_ms(self) -> u32 {
        match self {
            Self::Coordinator => 60,
            Self::Agent => 20,
            Self::Large => 5,
        }
    }

    /// Records that a commit changes.
    fn parts(self) -> u32 {
        match self {
            Self::Coordinator | Self::Agent => 1,
            Self::Large => 32,
        }
    }

    fn sizes(self) -> &'static [usize] {
        match self {
            Self::Coordinator => &[30_000, 600],
            Self::Agent => &[300, 2_000, 30_000, 256 * 1024],
            Self::Large => &[30_000, 600, 60_000],
        }
    }

    /// What commit `number` of a writer changes: records, which every seventh commit removes, and
    /// a small one beside them, as an index.
    #[must_use]
    pub fn changes(self, writer: u32, number: u32) -> Vec<Change> {
        let record = |part| match (key(writer, number, part), self.value(writer, number)) {
            (key, Some(value)) => Change::Put(key, value),
            (key, None) => Change::Delete(key),
        };
        let mut changes: Vec<Change> = (0..self.parts()).map(record).collect();
        let index = Bytes::copy_from_slice(&number.to_be_bytes());
        changes.push(Change::Put(index_key(writer), index));
        changes
    }

    /// The value of a commit: bytes that differ from commit to commit; `None` for a removal.
    fn value(self, writer: u32, number: u32) -> Option<Bytes> {
        if number % 7 == 6 {
            return None;
        }
        let sizes = self.sizes();
        let pick = usize::try_from(writer.wrapping_add(number)).unwrap_or(0) % sizes.len();
        let mut state =
            (u64::from(writer) << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = Vec::with_capacity(sizes[pick] + 8);
        while bytes.len() < sizes[pick] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_be_bytes());
        }
        bytes.truncate(sizes[pick]);
        Some(bytes.into())
    }
}

fn key(writer: u32, number: u32, part: u32) -> Bytes {
    Bytes::from(format!("record/{writer:03}/{}/{part}", number % KEYS))
}

fn index_key(writer: u32) -> Bytes {
    Bytes::from(format!("index/{writer:03}"))
}

/// Records a load on an engine and cuts the power `cuts` times.
///
/// # Errors
/// No C compiler `cc`, or a writer that failed. A damaged map is no error but a finding.
pub async fn cut(
    engine: Engine,
    load: Load,
    cuts: usize,
    entropy: &dyn Entropy,
) -> anyhow::Result<Tally> {
    let dir = scratch()?;
    let recording = record(dir.path(), engine, load)?;
    let mut tally = Tally::default();
    // Without a cut nothing may be missing: else what follows proves nothing.
    recording.replay().image(recording.len(), None, entropy).write(&dir.path().join("all"))?;
    let whole = Expected::after(load, &recording.acknowledged(recording.len()));
    let kept = whole.judge(engine, &dir.path().join("all")).await;
    ensure!(kept.is_kept(), "the rebuilt folder of a run without a cut: {kept:?}");
    let mut replay = recording.replay();
    for (moment, mode) in recording.moments(cuts, entropy) {
        let folder = dir.path().join("cut");
        let image = replay.image(moment, Some(mode), entropy);
        image.write(&folder)?;
        let expected = Expected::after(load, &recording.acknowledged(moment));
        let verdict = expected.judge(engine, &folder).await;
        tally.count(&verdict, &format!("{mode:?}, {} bytes not synced", image.pending_bytes));
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(tally)
}

/// A folder for images: in memory if there is such a file system, because its syncs are free.
fn scratch() -> anyhow::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.context("make a folder for images")
}

/// Runs the writers under the preloaded library.
fn record(dir: &Path, engine: Engine, load: Load) -> anyhow::Result<Recording> {
    let folder = dir.join("recorded");
    std::fs::create_dir(&folder)?;
    let folder = folder.canonicalize()?;
    let library = dir.join("preload.so");
    let source = crate::repository().join("tests/src/cuts/preload.c");
    let built = command("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .context("start the C compiler, which the linker of Rust needs too")?;
    ensure!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
    let log = dir.join("log");
    let output = command(&crate::binary("cut-writer").display().to_string())
        .args([engine.name(), load.name()])
        .arg(&folder)
        .env("LD_PRELOAD", &library)
        .env("CUTS_FOLDER", &folder)
        .env("CUTS_LOG", &log)
        .env("CUTS_SYNC_MS", load.sync_ms().to_string())
        .output()
        .context("start the writers")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the writers failed ({}): {stderr}", output.status);
    let recording = Recording::read(&folder, std::fs::read(&log)?)?;
    std::fs::remove_file(&log)?;
    Ok(recording)
}

#[expect(clippy::disallowed_methods, reason = "the test's tools are processes")]
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}
