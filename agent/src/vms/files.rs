//! Records as files: one JSON file per VM, replaced by rename, durable when a call returns.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::folders::make_private;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::{Loaded, MAX_RECORD_BYTES, Unusable, VmRecord, VmRecords};
use crate::drivers::DriverError;

/// The records of `data_dir/vms`.
#[derive(Clone, Debug)]
pub struct FileVmRecords {
    folder: PathBuf,
}

impl FileVmRecords {
    /// Opens the folder, making it if need be.
    ///
    /// # Errors
    /// It could not be made.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, DriverError> {
        let folder = folder.into();
        make_private(&folder)
            .and_then(|()| sync_folder(folder.parent().unwrap_or(&folder)))
            .map_err(|error| failed("make the folder", &folder, error))?;
        Ok(Self { folder })
    }

    fn path(&self, vm: VmUuid) -> PathBuf {
        self.folder.join(format!("{vm}.json"))
    }

    /// Syncs of a slow disk must not hold up what else the agent does.
    #[expect(clippy::disallowed_methods, reason = "this is the driver of the records")]
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let records = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&records)).await;
        done.map_err(|error| DriverError::failed("work on the VM records", error))
    }

    fn write(&self, record: &VmRecord, create: bool) -> Result<(), DriverError> {
        let path = self.path(record.uuid);
        if create && path.exists() {
            return Err(super::exists(record.uuid));
        }
        let json = super::encode(record)?;
        let fresh = path.with_extension("json.new");
        let written = replace(&fresh, &json, || {
            if create {
                // Unlike a rename, a link fails when there is one.
                std::fs::hard_link(&fresh, &path)?;
                std::fs::remove_file(&fresh)
            } else {
                keep_backup(&path)?;
                std::fs::rename(&fresh, &path)
            }
        })
        .and_then(|()| sync_folder(&self.folder));
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(super::exists(record.uuid))
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let text = format!("no space for the record of VM {}", record.uuid);
                Err(DriverError::refused(Code::StoreFull, text))
            }
            Err(error) => Err(failed("write", &path, error)),
        }
    }

    fn keep(&self, record: &VmRecord, console: &[u8]) -> Result<(), DriverError> {
        let folder = self.folder.join("archive");
        let json = super::encode(record)?;
        let path = folder.join(format!("{}.json", record.uuid));
        let put = |path: &Path, content: &[u8]| {
            let fresh = path.with_extension("new");
            replace(&fresh, content, || std::fs::rename(&fresh, path))
        };
        make_private(&folder)
            .and_then(|()| put(&path.with_extension("console.log"), console))
            .and_then(|()| put(&path, &json))
            .and_then(|()| sync_folder(&folder))
            .and_then(|()| sync_folder(&self.folder))
            .map_err(|error| failed("write", &path, error))
    }

    fn delete(&self, vm: VmUuid) -> io::Result<()> {
        let path = self.path(vm);
        // The backup first: alone it would bring the VM back.
        for path in [path.with_extension("json.bak"), path.with_extension("json.new"), path] {
            remove(&path)?;
        }
        sync_folder(&self.folder)
    }

    fn read_all(&self) -> io::Result<Loaded> {
        let mut vms = BTreeSet::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let name = name.to_str().unwrap_or_default();
            // A backup alone is what a crash leaves that came while a damaged record was replaced.
            let stem = name.strip_suffix(".json").or_else(|| name.strip_suffix(".json.bak"));
            vms.extend(stem.and_then(|stem| stem.parse::<VmUuid>().ok()));
        }
        let mut loaded = Loaded::default();
        for vm in vms {
            match self.read_or_set_aside(vm)? {
                Ok(record) => loaded.records.push(record),
                Err(problem) => drop(loaded.unusable.insert(vm, problem)),
            }
        }
        Ok(loaded)
    }

    fn read_or_set_aside(&self, vm: VmUuid) -> io::Result<Result<VmRecord, Unusable>> {
        let path = self.path(vm);
        match read(&path, vm) {
            Ok(record) => return Ok(Ok(record)),
            // Left as it is for the version that wrote it.
            Err(problem @ Unusable::Newer(_)) => return Ok(Err(problem)),
            Err(Unusable::Damaged(problem)) => {
                tracing::error!(vm_uuid = %vm, problem, "a VM record is damaged and set aside");
            }
        }
        match std::fs::rename(&path, path.with_extension("json.damaged")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let backup = path.with_extension("json.bak");
        let record = match read(&backup, vm) {
            Ok(record) => record,
            Err(problem) => {
                tracing::error!(vm_uuid = %vm, %problem, "it has no usable backup");
                return Ok(Err(problem));
            }
        };
        let fresh = path.with_extension("json.new");
        replace(&fresh, &std::fs::read(&backup)?, || std::fs::rename(&fresh, &path))?;
        sync_folder(&self.folder)?;
        Ok(Ok(record))
    }
}

#[async_trait]
impl VmRecords for FileVmRecords {
    async fn load(&self) -> Result<Loaded, DriverError> {
        let failed = |error| failed("read", &self.folder, error);
        self.blocking(move |records| records.read_all()).await?.map_err(failed)
    }

    async fn put(&self, record: &VmRecord, create: bool) -> Result<(), DriverError> {
        let record = record.clone();
        self.blocking(move |records| records.write(&record, create)).await?
    }

    async fn archive(&self, record: &VmRecord, console: &[u8]) -> Result<(), DriverError> {
        let (record, console) = (record.clone(), console.to_vec());
        self.blocking(move |records| records.keep(&record, &console)).await?
    }

    async fn remove(&self, vm: VmUuid) -> Result<(), DriverError> {
        let removed = self.blocking(move |records| records.delete(vm)).await?;
        removed.map_err(|error| failed("remove", &self.path(vm), error))
    }
}

fn failed(action: &str, path: &Path, error: io::Error) -> DriverError {
    DriverError::failed(format!("{action} {}", path.display()), error)
}

/// Writes and syncs a new file, then puts it in its place.
fn replace(
    fresh: &Path,
    content: &[u8],
    put_in_place: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    // What a crash left may be another name of the record itself, which is not to be written over.
    remove(fresh)?;
    // Metadata may hold secrets of customers.
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    put_in_place()
}

/// The last version stays beside the new one, under a second name.
fn keep_backup(path: &Path) -> io::Result<()> {
    let backup = path.with_extension("json.bak");
    remove(&backup)?;
    match std::fs::hard_link(path, &backup) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

fn read(path: &Path, vm: VmUuid) -> Result<VmRecord, Unusable> {
    let damaged = |error: io::Error| Unusable::Damaged(error.to_string());
    let size = std::fs::metadata(path).map_err(damaged)?.len();
    if usize::try_from(size).is_ok_and(|size| size > MAX_RECORD_BYTES) {
        return Err(Unusable::Damaged(format!("{size} bytes are too many")));
    }
    let record = super::decode(&std::fs::read(path).map_err(damaged)?)?;
    if record.uuid == vm {
        Ok(record)
    } else {
        Err(Unusable::Damaged(format!("it is about VM {}", record.uuid)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::LocalBoxFuture;
    use serde_json::json;

    use super::*;
    use crate::vms::sim::record;

    #[tokio::test]
    async fn records_come_back_and_are_made_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path().join("vms")).unwrap();
        let mut one = record(1);
        records.put(&one, true).await.unwrap();
        let refused = records.put(&one, true).await.unwrap_err();
        assert!(matches!(refused, DriverError::Refused { code: Code::VmExists, .. }));
        one.provisioning = false;
        records.put(&one, false).await.unwrap();
        records.put(&record(2), true).await.unwrap();
        assert_eq!(records.load().await.unwrap().records, [one.clone(), record(2)]);
        records.remove(one.uuid).await.unwrap();
        records.remove(one.uuid).await.unwrap();
        assert_eq!(records.load().await.unwrap().records, [record(2)]);
        let left = std::fs::read_dir(folder.path().join("vms")).unwrap().count();
        assert_eq!(left, 1);
    }

    /// While its records are synced to a slow disk, the agent has other things to do.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the only thread for blocking work is taken")]
    fn records_are_read_and_written_beside_the_async_threads() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let one = record(1);
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let works: [LocalBoxFuture<'_, Result<(), DriverError>>; 4] = [
                Box::pin(records.put(&one, true)),
                Box::pin(records.archive(&one, b"login:")),
                Box::pin(async { records.load().await.map(drop) }),
                Box::pin(records.remove(one.uuid)),
            ];
            for mut work in works {
                let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
                let other = tokio::task::spawn_blocking(move || held.recv());
                assert!(futures_util::poll!(work.as_mut()).is_pending(), "it blocked this thread");
                drop(release);
                other.await.unwrap().unwrap_err();
                work.await.unwrap();
            }
        });
    }

    #[tokio::test]
    async fn what_could_not_be_read_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let mut one = record(1);
        records.put(&one, true).await.unwrap();
        // Small members, which take most room when they are indented.
        one.properties.insert("nics".to_owned(), vec![0; MAX_RECORD_BYTES / 4].into());
        records.put(&one, false).await.unwrap();
        assert_eq!(records.load().await.unwrap().records, [one.clone()]);
        let mut large = one.clone();
        large.properties.insert("x".to_owned(), vec![0; MAX_RECORD_BYTES / 4].into());
        large.properties.insert("nics".to_owned(), vec![0; MAX_RECORD_BYTES / 3].into());
        let refused = records.put(&large, false).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Refused { code: Code::InvalidParameters, .. }));
        assert!(refused.to_string().starts_with("nics: "), "{refused}");
        assert_eq!(records.load().await.unwrap().records, [one]);
    }

    #[tokio::test]
    async fn a_damaged_record_is_replaced_by_its_backup_or_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let old = record(1);
        records.put(&old, true).await.unwrap();
        let new = VmRecord { provisioning: false, ..record(1) };
        records.put(&new, false).await.unwrap();
        records.put(&record(2), true).await.unwrap();
        for uuid in [old.uuid, record(2).uuid] {
            std::fs::write(folder.path().join(format!("{uuid}.json")), "{").unwrap();
        }
        assert_eq!(records.load().await.unwrap().records, vec![old.clone()]);
        assert_eq!(records.load().await.unwrap().records, [old]);
        assert!(folder.path().join(format!("{}.json.damaged", record(2).uuid)).exists());
    }

    #[tokio::test]
    async fn what_is_archived_stays_when_its_record_goes() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let one = record(1);
        for console in ["old", "login:"] {
            records.put(&one, true).await.unwrap();
            records.archive(&one, console.as_bytes()).await.unwrap();
            records.remove(one.uuid).await.unwrap();
        }
        assert_eq!(records.load().await.unwrap().records, []);
        let path = folder.path().join(format!("archive/{}.json", one.uuid));
        assert_eq!(read(&path, one.uuid), Ok(one));
        assert_eq!(std::fs::read(path.with_extension("console.log")).unwrap(), b"login:");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    /// A crash between the two steps of a create leaves the record under two names.
    #[tokio::test]
    async fn a_name_that_a_crash_left_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let old = record(1);
        records.put(&old, true).await.unwrap();
        let path = folder.path().join(format!("{}.json", old.uuid));
        std::fs::hard_link(&path, path.with_extension("json.new")).unwrap();
        let new = VmRecord { provisioning: false, ..record(1) };
        records.put(&new, false).await.unwrap();
        assert_eq!(records.load().await.unwrap().records, [new]);
        assert_eq!(read(&path.with_extension("json.bak"), old.uuid), Ok(old));
    }

    /// A crash after a damaged record was set aside and before its backup took its place.
    #[tokio::test]
    async fn a_backup_alone_brings_its_record_back() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let old = record(1);
        records.put(&old, true).await.unwrap();
        records.put(&VmRecord { provisioning: false, ..record(1) }, false).await.unwrap();
        let path = folder.path().join(format!("{}.json", old.uuid));
        std::fs::rename(&path, path.with_extension("json.damaged")).unwrap();
        assert_eq!(records.load().await.unwrap().records, vec![old.clone()]);
        assert_eq!(read(&path, old.uuid), Ok(old));
    }

    /// Those of the first agents have no number at all.
    #[tokio::test]
    async fn a_record_of_an_older_form_is_written_anew_in_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        for (number, schema) in [(1, json!(null)), (2, json!(1))] {
            let mut old = serde_json::to_value(record(number)).unwrap();
            old["schema"] = schema;
            let members = old.as_object_mut().unwrap();
            members.retain(|name, value| name != "volumes" && !value.is_null());
            let path = folder.path().join(format!("{}.json", record(number).uuid));
            std::fs::write(path, old.to_string()).unwrap();
        }
        let loaded = records.load().await.unwrap();
        let migrated = |number| VmRecord { volumes: None, ..record(number) };
        assert_eq!(loaded.records, [migrated(1), migrated(2)]);
        records.put(&loaded.records[0], false).await.unwrap();
        let path = folder.path().join(format!("{}.json", record(1).uuid));
        let written: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(written["schema"], super::super::SCHEMA);
    }

    /// After a downgrade of the agent.
    #[tokio::test]
    async fn a_record_of_a_newer_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileVmRecords::open(folder.path()).unwrap();
        let path = folder.path().join(format!("{}.json", record(1).uuid));
        let newer = format!("{{\"schema\":3,\"uuid\":\"{}\",\"disk\":7}}", record(1).uuid);
        std::fs::write(&path, &newer).unwrap();
        let loaded = records.load().await.unwrap();
        assert_eq!(loaded.records, []);
        assert!(matches!(loaded.unusable[&record(1).uuid], Unusable::Newer(3)), "{loaded:?}");
        assert!(records.put(&record(1), true).await.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
    }
}
