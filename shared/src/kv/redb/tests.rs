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
    assert_eq!(replay(&db, dir.path(), Some(7)).unwrap(), None);
    let log = Log::create(dir.path(), 7).unwrap();
    let acknowledged = Acknowledged::open(dir.path(), ledger.groups).unwrap();
    let kv = RedbKv::start(dir.path(), db, ledger, log, acknowledged, &OsThreads);
    kv.commit(put("a", "2")).await.unwrap();
    broken.store(true, Ordering::SeqCst);
    // The log's device is another one: commits succeed until the database is to have them.
    let value = |n: u8| Bytes::from(vec![n; 200_000]);
    let mut last = 0;
    let error = loop {
        match kv.commit(vec![Change::Put("b".into(), value(last + 1))]).await {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 100, "it is never told");
    };
    assert!(matches!(error, KvError::Io { .. }), "{error:?}");
    assert!(u64::from(last) * 200_000 >= writer::SETTLE_BYTES, "{last}");
    for fixed in [false, true] {
        broken.store(!fixed, Ordering::SeqCst);
        let error = kv.commit(put("a", "3")).await.unwrap_err();
        assert!(matches!(error, KvError::Io { .. }), "{error:?}");
    }
    assert_eq!(kv.get(b"b").await.unwrap(), Some(value(last)));
    kv.close().await;
    let kv = open(dir.path()).unwrap();
    assert_eq!(kv.get(b"a").await.unwrap(), Some("2".into()));
    assert_eq!(kv.get(b"b").await.unwrap(), Some(value(last)));
    kv.commit(put("a", "4")).await.unwrap();
    assert_eq!(kv.get(b"a").await.unwrap(), Some("4".into()));
    kv.close().await;
}

/// Has no thread for the database.
#[derive(Debug)]
struct NoSettler;

impl Threads for NoSettler {
    fn run(&self, name: &str, work: futures_util::future::BoxFuture<'static, ()>) {
        if name != "kv-settler" {
            OsThreads.run(name, work);
        }
    }

    fn compute(&self, work: crate::threads::Work) {
        work();
    }

    fn compute_aside(&self, work: crate::threads::Work) {
        work();
    }
}

#[tokio::test]
async fn without_a_thread_for_the_database_nothing_that_was_acknowledged_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let kv = RedbKv::open(dir.path(), CACHE_BYTES, &NoSettler).unwrap();
    let value = |n: u8| Bytes::from(vec![n; 200_000]);
    let mut last = 0;
    let error = loop {
        match kv.commit(vec![Change::Put("b".into(), value(last + 1))]).await {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 100, "it is never told");
    };
    assert!(error.is_final() && !error.is_damage(), "{error:?}");
    assert_eq!(kv.get(b"b").await.unwrap(), Some(value(last)));
    kv.close().await;
    let kv = open(dir.path()).unwrap();
    assert_eq!(kv.get(b"b").await.unwrap(), Some(value(last)));
    kv.close().await;
}

/// The files as a crash leaves them now.
fn killed(path: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[tokio::test]
async fn after_a_crash_the_log_has_what_the_database_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    let key = |n: u8| Bytes::from(vec![b'k', n]);
    // Three times what is settled at once, each key written twice and one in three removed.
    for n in (0..60).chain(0..60) {
        let mut changes = vec![Change::Put(key(n), vec![n; 50_000].into())];
        if n % 3 == 0 {
            changes.push(Change::Delete(key(n / 2)));
        }
        kv.commit(changes).await.unwrap();
    }
    let all = kv.scan(b"k", None, 100).await.unwrap();
    assert_eq!(all.len(), 60 - 20, "what is removed was written before");
    let crashed = killed(dir.path());
    kv.close().await;
    assert!(!dir.path().join("log.0").exists() && !dir.path().join("log.1").exists());
    let report = |folder: &Path| verify(folder, CACHE_BYTES, &mut |_, _| {}).unwrap();
    let (closed, found) = (report(dir.path()), report(crashed.path()));
    assert_eq!((found.contents, found.damages), (closed.contents, vec![]));

    let again = open(crashed.path()).unwrap();
    assert_eq!(again.scan(b"k", None, 100).await.unwrap(), all);
    again.commit(put("later", "1")).await.unwrap();
    // A crash soon after the start: the log of the time before counts no more.
    let crashed = killed(crashed.path());
    again.close().await;
    let again = open(crashed.path()).unwrap();
    assert_eq!(again.scan(b"k", None, 100).await.unwrap(), all);
    assert_eq!(again.get(b"later").await.unwrap(), Some("1".into()));
    again.close().await;
}

#[tokio::test]
async fn a_commit_of_nothing_is_no_group() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    kv.commit(put("a", "1")).await.unwrap();
    kv.close().await;
    let kv = open(dir.path()).unwrap();
    kv.commit(vec![]).await.unwrap();
    let crashed = killed(dir.path());
    kv.close().await;
    for folder in [dir.path(), crashed.path()] {
        let kv = open(folder).unwrap();
        assert_eq!(kv.get(b"a").await.unwrap(), Some("1".into()));
        kv.close().await;
    }
}

#[tokio::test]
async fn a_log_that_is_lost_or_damaged_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let kv = open(dir.path()).unwrap();
    for n in 0..5_u8 {
        kv.commit(vec![Change::Put(vec![n].into(), "1".into())]).await.unwrap();
    }
    let refused = |harm: &dyn Fn(&Path)| {
        let crashed = killed(dir.path());
        harm(crashed.path());
        let (error, report) = (
            open(crashed.path()).unwrap_err(),
            verify(crashed.path(), CACHE_BYTES, &mut |_, _| {}).unwrap(),
        );
        assert!(error.is_damage() && !report.damages.is_empty(), "{error} {report:?}");
        (error.to_string(), report)
    };
    let (error, _) = refused(&|folder| Log::remove(folder).unwrap());
    assert!(error.contains("it ends at group 0 of 5"), "{error}");
    let log = |folder: &Path| File::options().write(true).open(folder.join("log.0")).unwrap();
    let (error, _) = refused(&|folder| log(folder).set_len(4 * 4_096).unwrap());
    assert!(error.contains("it ends at group 4 of 5"), "{error}");
    let (error, report) = refused(&|folder| {
        use std::os::unix::fs::FileExt as _;
        log(folder).write_all_at(&[0xff], 2 * 4_096 + 40).unwrap();
        // Even if the number beside the map were lost too.
        std::fs::remove_file(folder.join(super::super::acknowledged::NAME)).unwrap();
    });
    assert!(error.contains("its log has group 4, but no group 3"), "{error}");
    assert_eq!(report.contents.records, 2, "what came before can be read");
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
