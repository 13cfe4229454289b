use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use super::super::conformance;
use super::*;
use crate::kv::SharedKv;
use crate::threads::OsThreads;

const CACHE_BYTES: u64 = 8 * 1024 * 1024;

fn open(path: &Path) -> Result<RedbKv, KvError> {
    RedbKv::open(path, CACHE_BYTES, &OsThreads)
}

fn put(key: &'static str, value: &'static str) -> Vec<Change> {
    vec![Change::Put(key.into(), value.into())]
}

#[tokio::test]
async fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv");
    let open: conformance::Open = Box::new(move || Arc::new(open(&path).unwrap()) as SharedKv);
    conformance::run(open).await;
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

#[tokio::test]
async fn a_map_that_ends_early_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    kv.commit(put("a", "1")).await.unwrap();
    kv.close().await;
    let early = std::fs::read(dir.path().join(FILE)).unwrap();
    let kv = open(dir.path()).unwrap();
    kv.commit(put("a", "2")).await.unwrap();
    kv.close().await;
    std::fs::write(dir.path().join(FILE), &early).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("it ends at group 1 of 2"), "{error}");
    assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), early, "left as it was");
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert!(error.is_damage(), "{error}");
}

/// A device whose writes fail once it is told so.
#[derive(Debug)]
struct Failing {
    file: FileBackend,
    broken: Arc<AtomicBool>,
}

impl Failing {
    fn check(&self) -> io::Result<()> {
        if self.broken.load(Ordering::SeqCst) { Err(io::Error::other("broken")) } else { Ok(()) }
    }
}

impl StorageBackend for Failing {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
    fn try_lock_range(
        &self,
        start: std::ops::Bound<u64>,
        end: std::ops::Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }
}

#[tokio::test]
async fn a_failed_device_fails_all_commits_until_the_map_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    kv.commit(put("a", "1")).await.unwrap();
    kv.close().await;
    let file = File::options().read(true).write(true).open(dir.path().join(FILE)).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let backend = Failing { file: FileBackend::new(file).unwrap(), broken: Arc::clone(&broken) };
    let db = builder(CACHE_BYTES).create_with_backend(backend).unwrap();
    let ledger = records::ledger(&db.begin_read().unwrap()).unwrap().unwrap();
    let acknowledged = Acknowledged::open(dir.path(), ledger.groups).unwrap();
    let kv = RedbKv::start(dir.path(), db, ledger, acknowledged, &OsThreads);
    kv.commit(put("a", "2")).await.unwrap();
    broken.store(true, Ordering::SeqCst);
    for fixed in [false, false, true] {
        broken.store(!fixed, Ordering::SeqCst);
        let error = kv.commit(put("a", "3")).await.unwrap_err();
        assert!(matches!(error, KvError::Io { .. }), "{error:?}");
    }
    kv.close().await;
    let kv = open(dir.path()).unwrap();
    assert_eq!(kv.get(b"a").await.unwrap(), Some("2".into()));
    kv.commit(put("a", "4")).await.unwrap();
    assert_eq!(kv.get(b"a").await.unwrap(), Some("4".into()));
    kv.close().await;
}

/// redb itself would return the flipped value.
#[tokio::test]
async fn a_record_that_changes_while_the_map_is_open_is_named() {
    use std::os::unix::fs::FileExt as _;
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    let value = vec![0x5a; 300];
    kv.commit(vec![Change::Put("task/7".into(), value.clone().into())]).await.unwrap();
    kv.close().await;
    // Without a cache every read goes to the file.
    let kv = RedbKv::open(dir.path(), 0, &OsThreads).unwrap();
    let path = dir.path().join(FILE);
    let content = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for at in content.windows(value.len()).enumerate().filter(|(_, w)| *w == value) {
        file.write_all_at(&[0x5b], u64::try_from(at.0 + 9).unwrap()).unwrap();
    }
    let error = kv.get(b"task/7").await.unwrap_err();
    assert!(matches!(&error, KvError::Corrupt { key, .. } if key == "task/7"), "{error:?}");
    assert!(kv.scan(b"task/", None, 10).await.unwrap_err().is_damage());
    kv.close().await;
    assert!(open(dir.path()).unwrap_err().is_damage());
}
