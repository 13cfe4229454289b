//! Makes a sound map of what can be read of a damaged one.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::runtime::Handle;

use super::contents::Report;
use super::engine::{Conversion, STEP_BYTES};
use super::{Change, Engine, KvError, SharedKv, damaged};
use crate::threads::Threads;

/// What a [`restore`] did.
#[derive(Clone, Debug)]
pub struct Restored {
    /// What was kept, and what was wrong with the old map.
    pub report: Report,
    /// Where the old map lies now.
    pub aside: PathBuf,
}

/// Copies every record that can be read of the map in `folder`, which nobody has open, to a new map
/// on `engine`, has `finish` write to it what has to be there from the start, and puts it in the old
/// one's place. The old folder stays, under a name with `now` in it. What can't be read is lost; the
/// report names it. Blocks.
///
/// # Errors
/// [`KvError::Damaged`]: there is no map; [`KvError::InUse`], [`KvError::Full`], [`KvError::Io`], or
/// that of `finish`. The map is as it was.
pub fn restore<E: From<KvError>>(
    engine: Engine,
    folder: &Path,
    cache_bytes: u64,
    threads: &dyn Threads,
    now: Timestamp,
    runtime: &Handle,
    finish: impl FnOnce(&SharedKv) -> Result<(), E>,
) -> Result<Restored, E> {
    let conversion = Conversion { folder, cache_bytes, threads };
    conversion.finish()?;
    let from = Engine::of(folder).ok_or_else(|| damaged(folder, "there is no map"))?;
    let copy = conversion.beside(".new");
    let target = engine.open(&copy, cache_bytes, threads)?;
    let mut writer =
        Writer { target: &target, runtime, changes: Vec::new(), bytes: 0, failed: None };
    let report = from.read_sound(folder, cache_bytes, &mut |key, value| writer.add(key, value));
    let written = writer.finish().map_err(E::from).and_then(|()| finish(&target));
    runtime.block_on(target.close());
    let report = report?;
    written?;
    conversion.mark(&copy, from, &report.contents)?;
    let aside = conversion.beside(&format!(".damaged.{}", now.as_millisecond()));
    conversion.replace(&copy, &aside)?;
    Ok(Restored { report, aside })
}

/// Writes records in commits of some size.
struct Writer<'a> {
    target: &'a SharedKv,
    runtime: &'a Handle,
    changes: Vec<Change>,
    bytes: usize,
    failed: Option<KvError>,
}

impl Writer<'_> {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += key.len() + value.len();
        self.changes.push(Change::Put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        if self.bytes >= STEP_BYTES {
            self.write();
        }
    }

    fn write(&mut self) {
        self.bytes = 0;
        let changes = std::mem::take(&mut self.changes);
        if self.failed.is_none() && !changes.is_empty() {
            self.failed = self.runtime.block_on(self.target.commit(changes)).err();
        }
    }

    fn finish(mut self) -> Result<(), KvError> {
        self.write();
        self.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::FileExt as _;

    use super::super::{redb, sled};
    use super::*;
    use crate::threads::OsThreads;

    const CACHE_BYTES: u64 = 8 * 1024 * 1024;

    type Records = BTreeMap<Bytes, Bytes>;

    fn records() -> Records {
        let value = |n: u8| Bytes::from(vec![n; 200 + usize::from(n) * 30]);
        (0..200_u8).map(|n| (Bytes::from(vec![n / 16, n]), value(n))).collect()
    }

    fn write(runtime: &Handle, engine: Engine, folder: &Path) {
        let kv = engine.open(folder, CACHE_BYTES, &OsThreads).unwrap();
        for (key, value) in records() {
            runtime.block_on(kv.commit(vec![Change::Put(key, value)])).unwrap();
        }
        runtime.block_on(kv.close());
    }

    fn read(runtime: &Handle, engine: Engine, folder: &Path) -> Records {
        let kv = engine.open(folder, CACHE_BYTES, &OsThreads).unwrap();
        let all = runtime.block_on(kv.scan(b"", None, 1_000)).unwrap();
        runtime.block_on(kv.close());
        all.into_iter().collect()
    }

    /// Restores to the default engine.
    fn restored(runtime: &Handle, folder: &Path) -> (Restored, Records) {
        let now = Timestamp::UNIX_EPOCH;
        let done =
            restore::<KvError>(Engine::Redb, folder, CACHE_BYTES, &OsThreads, now, runtime, |_| {
                Ok(())
            });
        let done = done.unwrap();
        let kept = read(runtime, Engine::Redb, folder);
        assert_eq!(u64::try_from(kept.len()).unwrap(), done.report.contents.records);
        assert!(done.aside.exists());
        (done, kept)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn what_is_whole_is_kept_although_the_end_was_lost() {
        for engine in [Engine::Redb, Engine::Sled] {
            let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
            let folder = dir.path().join("store");
            write(runtime.handle(), engine, &folder);
            // As if 100 more groups had been acknowledged.
            let ahead = super::super::acknowledged::Acknowledged::open(&folder, 300).unwrap();
            drop(ahead);
            let refused = engine.open(&folder, CACHE_BYTES, &OsThreads).unwrap_err();
            assert!(refused.is_damage(), "{engine}: {refused}");
            let (done, kept) = restored(runtime.handle(), &folder);
            assert_eq!(kept, records(), "{engine}");
            assert!(done.report.damages[0].contains("ends at group 200 of 300"), "{done:?}");
        }
    }

    #[test]
    fn damaged_records_are_lost_and_named_and_the_others_kept() {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let folder = dir.path().join("store");
        write(runtime.handle(), Engine::Redb, &folder);
        let path = folder.join(redb::FILE);
        let content = std::fs::read(&path).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let at = content.windows(100).rposition(|part| part == [77; 100]).unwrap();
        file.write_all_at(&[78], u64::try_from(at).unwrap()).unwrap();
        let (done, kept) = restored(runtime.handle(), &folder);
        let mut expected = records();
        expected.remove(&[4, 77][..]);
        assert_eq!(kept, expected);
        assert!(done.report.damages.iter().any(|d| d.contains("x04M")), "{done:?}");
    }

    #[test]
    fn a_page_that_cannot_be_read_costs_its_own_records_only() {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let folder = dir.path().join("store");
        write(runtime.handle(), Engine::Redb, &folder);
        let path = folder.join(redb::FILE);
        let content = std::fs::read(&path).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        // In every copy of its page, as nothing says which of them is the last.
        let mut zeroed = 0;
        for (n, page) in content.chunks(4_096).enumerate() {
            if page.windows(100).any(|part| part == [77; 100]) {
                let at = u64::try_from(n * 4_096).unwrap();
                file.write_all_at(&[0; 4_096], at).unwrap();
                zeroed += 1;
            }
        }
        assert!(zeroed > 0);
        let (done, kept) = restored(runtime.handle(), &folder);
        assert!(!done.report.damages.is_empty());
        let lost = records().len() - kept.len();
        assert!((1..=30).contains(&lost), "{lost} of 200 are lost: {:?}", done.report.damages);
        assert!(kept.iter().all(|(key, value)| records().get(key) == Some(value)));
    }

    #[test]
    fn what_cannot_be_restored_is_left_alone() {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let folder = dir.path().join("store");
        let now = Timestamp::UNIX_EPOCH;
        let handle = runtime.handle();
        let refuse = |_: &SharedKv| Err(KvError::Busy);
        let restore =
            || restore(Engine::Redb, &folder, CACHE_BYTES, &OsThreads, now, handle, refuse);
        assert!(restore().unwrap_err().is_damage());
        assert!(!folder.exists());
        write(handle, Engine::Sled, &folder);
        assert!(matches!(restore().unwrap_err(), KvError::Busy));
        assert_eq!(read(handle, Engine::Sled, &folder), records(), "it is as it was");
        std::fs::write(folder.join(sled::LOG), [0; 100]).unwrap();
        let (done, kept) = restored(handle, &folder);
        assert!(kept.is_empty() && !done.report.damages.is_empty(), "{done:?}");
    }
}
