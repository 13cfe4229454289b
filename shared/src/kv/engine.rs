//! The engines, and how a map comes from one to the other.
//!
//! A map of another kind than the one that is wanted is converted when it is opened: copied to a
//! new folder beside it, compared by a digest, and only then put in its place. The old folder is
//! moved aside, never removed.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::contents::{Contents, Report};
use super::{Change, KvError, RedbKv, SharedKv, SledKv, damaged, io_error, redb, sled, sync_dir};
use crate::threads::Threads;

/// Bytes of a commit while a map is copied.
pub(super) const STEP_BYTES: usize = 1024 * 1024;
/// Records read at a time while a map is copied.
const STEP_RECORDS: usize = 64;
/// In the folder of a copy that is whole: what it holds.
const CONVERTED: &str = "converted";

/// What keeps a map's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// [`RedbKv`].
    #[default]
    Redb,
    /// [`SledKv`].
    Sled,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
        })
    }
}

impl Engine {
    /// The engine of the map in a folder; `None`: there is none.
    #[must_use]
    pub fn of(folder: &Path) -> Option<Self> {
        let has = |name: &str| folder.join(name).exists();
        if has(redb::FILE) {
            Some(Self::Redb)
        } else {
            (has(sled::LOG) || has("format")).then_some(Self::Sled)
        }
    }

    /// Whether there is a map in a folder, or the copy that an interrupted conversion put beside it.
    #[must_use]
    pub fn is_there(folder: &Path) -> bool {
        Self::of(folder).is_some() || beside(folder, ".new").join(CONVERTED).exists()
    }

    pub(super) fn open(
        self,
        folder: &Path,
        cache_bytes: u64,
        threads: &dyn Threads,
    ) -> Result<SharedKv, KvError> {
        Ok(match self {
            Self::Redb => Arc::new(RedbKv::open(folder, cache_bytes, threads)?),
            Self::Sled => Arc::new(SledKv::open(folder, cache_bytes, threads)?),
        })
    }

    /// Reads the whole map in a folder that nobody has open, without changing its files.
    ///
    /// # Errors
    /// [`KvError::InUse`], [`KvError::Io`]. Damage is in the report.
    pub fn verify(self, folder: &Path, cache_bytes: u64) -> Result<Report, KvError> {
        self.read_sound(folder, cache_bytes, &mut |_, _| {})
    }

    /// As [`Self::verify`]; `each` gets every record that is sound.
    ///
    /// # Errors
    /// See [`Self::verify`].
    pub(super) fn read_sound(
        self,
        folder: &Path,
        cache_bytes: u64,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Report, KvError> {
        match self {
            Self::Redb => redb::verify(folder, cache_bytes, each),
            Self::Sled => sled::verify(folder, cache_bytes, each),
        }
    }
}

/// Opens or creates the map in `folder` on `engine`; one of another kind is converted first, and
/// its folder moved aside under a name with `now` in it.
///
/// # Errors
/// See [`RedbKv::open`]. [`KvError::Full`]: there is no room for a copy. Whatever failed, the next
/// call goes on where this one stopped, or begins anew.
pub async fn open_as(
    engine: Engine,
    folder: &Path,
    cache_bytes: u64,
    threads: &dyn Threads,
    now: Timestamp,
) -> Result<SharedKv, KvError> {
    let conversion = Conversion { folder, cache_bytes, threads };
    conversion.finish()?;
    if let Some(from) = Engine::of(folder).filter(|found| *found != engine) {
        conversion.run(from, engine, now).await?;
    }
    engine.open(folder, cache_bytes, threads)
}

/// `folder` with something added to its name.
fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Puts a copy in the place of a map.
pub(super) struct Conversion<'a> {
    pub(super) folder: &'a Path,
    pub(super) cache_bytes: u64,
    pub(super) threads: &'a dyn Threads,
}

impl Conversion<'_> {
    pub(super) fn beside(&self, suffix: &str) -> PathBuf {
        beside(self.folder, suffix)
    }

    fn sync_parent(&self) -> Result<(), KvError> {
        match self.folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
            _ => sync_dir(Path::new(".")),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), KvError> {
        std::fs::rename(from, to).map_err(|e| io_error("rename", e))?;
        self.sync_parent()
    }

    /// Ends a conversion that was interrupted: between its two renames it is finished, before
    /// that it is thrown away.
    pub(super) fn finish(&self) -> Result<(), KvError> {
        let copy = self.beside(".new");
        if !copy.exists() {
            return Ok(());
        }
        if !self.folder.exists() && copy.join(CONVERTED).exists() {
            tracing::info!(store = %self.folder.display(), "finishing an interrupted conversion");
            return self.rename(&copy, self.folder);
        }
        tracing::info!(copy = %copy.display(), "removing the copy of an interrupted conversion");
        std::fs::remove_dir_all(&copy).map_err(|e| io_error("remove a copy beside", e))
    }

    async fn run(&self, from: Engine, to: Engine, now: Timestamp) -> Result<(), KvError> {
        let store = self.folder.display();
        tracing::info!(%store, %from, %to, "converting the store");
        let copy = self.beside(".new");
        let source = from.open(self.folder, self.cache_bytes, self.threads)?;
        let copied = self.copy(&source, &copy, to).await;
        source.close().await;
        let contents = copied?;
        self.mark(&copy, from, &contents)?;
        let aside = self.beside(&format!(".{from}.{}", now.as_millisecond()));
        self.replace(&copy, &aside)?;
        tracing::info!(
            %store, %from, %to, old = %aside.display(), records = contents.records,
            bytes = contents.bytes, digest = contents.digest,
            "converted the store; the old one can be removed once this one is backed up"
        );
        Ok(())
    }

    /// Moves the map to `aside` and its copy to its place.
    pub(super) fn replace(&self, copy: &Path, aside: &Path) -> Result<(), KvError> {
        self.rename(self.folder, aside)?;
        self.rename(copy, self.folder)
    }

    /// Copies all records to a new map and reads that back.
    async fn copy(
        &self,
        source: &SharedKv,
        to: &Path,
        engine: Engine,
    ) -> Result<Contents, KvError> {
        let target = engine.open(to, self.cache_bytes, self.threads)?;
        let written = copy_records(source, &target).await;
        target.close().await;
        written?;
        let before = Contents::of(source.as_ref()).await?;
        let target = engine.open(to, self.cache_bytes, self.threads)?;
        let after = Contents::of(target.as_ref()).await;
        target.close().await;
        if after? != before {
            return Err(damaged(to, "the copy is not what it was made from"));
        }
        Ok(before)
    }

    /// Notes in a copy that it is whole.
    pub(super) fn mark(
        &self,
        copy: &Path,
        from: Engine,
        contents: &Contents,
    ) -> Result<(), KvError> {
        use std::io::Write as _;
        let Contents { records, bytes, digest } = contents;
        let write = || -> io::Result<()> {
            let mut file = File::create(copy.join(CONVERTED))?;
            writeln!(file, "from {from}: {records} records, {bytes} bytes, sha256 {digest}")?;
            file.sync_all()
        };
        write().map_err(|e| io_error("mark the copy beside", e))?;
        sync_dir(copy)?;
        self.sync_parent()
    }
}

async fn copy_records(from: &SharedKv, to: &SharedKv) -> Result<(), KvError> {
    let mut after: Option<bytes::Bytes> = None;
    loop {
        let entries = from.scan(b"", after.as_deref(), STEP_RECORDS).await?;
        let last = entries.len() < STEP_RECORDS;
        after = entries.last().map(|(key, _)| key.clone());
        let mut changes = Vec::new();
        let mut bytes = 0;
        for (key, value) in entries {
            bytes += key.len() + value.len();
            changes.push(Change::Put(key, value));
            if bytes >= STEP_BYTES {
                to.commit(std::mem::take(&mut changes)).await?;
                bytes = 0;
            }
        }
        if !changes.is_empty() {
            to.commit(changes).await?;
        }
        if last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::threads::OsThreads;

    const CACHE_BYTES: u64 = 8 * 1024 * 1024;
    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    async fn open(engine: Engine, folder: &Path) -> Result<SharedKv, KvError> {
        open_as(engine, folder, CACHE_BYTES, &OsThreads, NOW).await
    }

    async fn fill(kv: &SharedKv) -> Contents {
        for n in 0..40_u8 {
            let value = Bytes::from(vec![n; usize::from(n) * 3_000]);
            kv.commit(vec![Change::Put(Bytes::from(vec![n, 0, n]), value)]).await.unwrap();
        }
        Contents::of(kv.as_ref()).await.unwrap()
    }

    #[tokio::test]
    async fn a_store_of_the_other_kind_is_converted_and_the_old_one_kept() {
        for (from, to) in [(Engine::Sled, Engine::Redb), (Engine::Redb, Engine::Sled)] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("store");
            let kv = open(from, &folder).await.unwrap();
            let contents = fill(&kv).await;
            kv.close().await;
            for _ in 0..2 {
                let kv = open(to, &folder).await.unwrap();
                assert_eq!(Engine::of(&folder), Some(to));
                assert_eq!(Contents::of(kv.as_ref()).await.unwrap(), contents);
                kv.close().await;
            }
            let aside = dir.path().join(format!("store.{from}.0"));
            let old = from.open(&aside, CACHE_BYTES, &OsThreads).unwrap();
            assert_eq!(Contents::of(old.as_ref()).await.unwrap(), contents);
            old.close().await;
        }
    }

    /// A crash leaves one of these; each start after it ends with all records on the new engine.
    #[tokio::test]
    async fn an_interrupted_conversion_is_finished_or_begun_anew() {
        let made = tempfile::tempdir().unwrap();
        let (old, new) = (made.path().join("old"), made.path().join("new"));
        let kv = open(Engine::Sled, &old).await.unwrap();
        let contents = fill(&kv).await;
        kv.close().await;
        let conversion = Conversion { folder: &new, cache_bytes: CACHE_BYTES, threads: &OsThreads };
        let source = Engine::Sled.open(&old, CACHE_BYTES, &OsThreads).unwrap();
        conversion.copy(&source, &new, Engine::Redb).await.unwrap();
        source.close().await;
        for crash in ["while copying", "before the mark", "before the renames", "between them"] {
            let dir = tempfile::tempdir().unwrap();
            let (folder, copy) = (dir.path().join("store"), dir.path().join("store.new"));
            copy_folder(&old, &folder);
            match crash {
                "while copying" => {
                    std::fs::create_dir(&copy).unwrap();
                    std::fs::write(copy.join("records.redb.new"), "half").unwrap();
                }
                _ => copy_folder(&new, &copy),
            }
            if crash.ends_with("renames") || crash == "between them" {
                std::fs::write(copy.join(CONVERTED), "").unwrap();
            }
            if crash == "between them" {
                std::fs::rename(&folder, dir.path().join("store.sled.0")).unwrap();
            }
            assert!(Engine::is_there(&folder), "{crash}");
            let kv = open(Engine::Redb, &folder).await.unwrap();
            assert_eq!(Contents::of(kv.as_ref()).await.unwrap(), contents, "{crash}");
            kv.close().await;
            assert!(!copy.exists(), "{crash}");
            assert!(dir.path().join("store.sled.0").exists(), "{crash}");
        }
    }

    #[tokio::test]
    async fn a_damaged_store_is_not_converted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("store");
        let kv = open(Engine::Sled, &folder).await.unwrap();
        fill(&kv).await;
        kv.close().await;
        let log = folder.join("db");
        let mut content = std::fs::read(&log).unwrap();
        content.truncate(content.len() / 2);
        std::fs::write(&log, &content).unwrap();
        for _ in 0..2 {
            let error = open(Engine::Redb, &folder).await.unwrap_err();
            assert!(error.is_damage(), "{error}");
            assert!(error.to_string().contains(&folder.display().to_string()), "{error}");
            assert_eq!(std::fs::read(&log).unwrap(), content, "left as it was");
        }
    }

    #[tokio::test]
    async fn a_check_reports_what_is_there_and_every_damage() {
        for engine in [Engine::Redb, Engine::Sled] {
            let dir = tempfile::tempdir().unwrap();
            let kv = open(engine, dir.path()).await.unwrap();
            let contents = fill(&kv).await;
            let error = engine.verify(dir.path(), CACHE_BYTES).unwrap_err();
            assert!(matches!(error, KvError::InUse { .. }), "{engine}: {error}");
            kv.close().await;
            let report = engine.verify(dir.path(), CACHE_BYTES).unwrap();
            assert_eq!((report.contents, report.damages.len()), (contents, 0), "{engine}");
            let name = if engine == Engine::Redb { redb::FILE } else { sled::LOG };
            let path = dir.path().join(name);
            let mut content = std::fs::read(&path).unwrap();
            // In every copy of a long value, so not in a name or a number.
            for part in content.chunks_exact_mut(1_000).filter(|part| part.iter().all(|&b| b == 39))
            {
                part[100] = 38;
            }
            std::fs::write(&path, &content).unwrap();
            let report = engine.verify(dir.path(), CACHE_BYTES).unwrap();
            assert!(!report.damages.is_empty(), "{engine}");
            assert_eq!(std::fs::read(&path).unwrap(), content, "left as it was");
        }
    }

    fn copy_folder(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
}
