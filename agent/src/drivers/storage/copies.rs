//! Copies of VM records beside the disks: `records/<vm>.json`.

use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;

use crate::drivers::storage::RecordCopy;
use crate::drivers::{DriverError, files};
use crate::vm_record::MAX_COPY_BYTES;

/// The folder of the copies.
#[derive(Debug)]
pub(super) struct Copies {
    folder: PathBuf,
}

impl Copies {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) async fn make(&self) -> Result<(), DriverError> {
        files::make_folder(&self.folder).await
    }

    fn path(&self, vm: VmUuid) -> PathBuf {
        self.folder.join(format!("{vm}.json"))
    }

    pub(super) async fn put(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError> {
        files::write(&self.path(vm), copy).await
    }

    pub(super) async fn remove(&self, vm: VmUuid) -> Result<(), DriverError> {
        let path = self.path(vm);
        if !path.exists() {
            return Ok(());
        }
        files::remove(&path).await?;
        files::sync_folder(&self.folder).await
    }

    /// The VMs that have one.
    pub(super) async fn list(&self) -> Result<Vec<VmUuid>, DriverError> {
        let vm_of = |path: &PathBuf| {
            let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"))?;
            stem.parse::<VmUuid>().ok()
        };
        Ok(files::list(&self.folder).await?.iter().filter_map(vm_of).collect())
    }

    pub(super) async fn read(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        let content = bounded(&self.path(vm)).await?;
        Ok(content.map(|content| RecordCopy { vm, content }))
    }
}

/// The content; nothing when it has gone, and none of what is too large to be a copy.
async fn bounded(path: &Path) -> Result<Option<Vec<u8>>, DriverError> {
    let limit = u64::try_from(MAX_COPY_BYTES).unwrap_or(u64::MAX);
    match tokio::fs::metadata(path).await {
        Ok(found) if found.len() > limit => Ok(Some(Vec::new())),
        Ok(_) => files::read(path).await,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(files::failed("look at", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn copies_come_back_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let copies = Copies::new(folder.path().join("records"));
        copies.make().await.unwrap();
        let vm = VmUuid(uuid::Uuid::from_u128(1));
        copies.put(vm, b"old").await.unwrap();
        copies.put(vm, b"new").await.unwrap();
        std::fs::write(folder.path().join("records/notes.txt"), "x").unwrap();
        assert_eq!(copies.list().await.unwrap(), [vm]);
        let new = RecordCopy { vm, content: b"new".to_vec() };
        assert_eq!(copies.read(vm).await.unwrap(), Some(new));
        let large = std::fs::File::create(copies.path(vm)).unwrap();
        large.set_len(u64::try_from(MAX_COPY_BYTES).unwrap() + 1).unwrap();
        let refused = RecordCopy { vm, content: Vec::new() };
        assert_eq!(copies.read(vm).await.unwrap(), Some(refused));
        copies.remove(vm).await.unwrap();
        copies.remove(vm).await.unwrap();
        assert_eq!(copies.read(vm).await.unwrap(), None);
        assert_eq!(copies.list().await.unwrap(), []);
    }
}
