//! A single disk that goes, while the VM keeps its others and may run with them.

use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;

use super::{FileStorage, files, stamp};
use crate::drivers::DriverError;
use crate::drivers::storage::lock;

impl FileStorage {
    pub(super) async fn remove_disk(
        &self,
        vm: VmUuid,
        index: u32,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        let folder = self.folder(vm);
        if !folder.exists() {
            return Ok(());
        }
        let path = folder.join(format!("disk{index}.qcow2"));
        if let Some(owner) = owner
            && stamp(&path).await?.is_none_or(|stamp| stamp.task_id != *owner)
        {
            return Ok(());
        }
        if lock::is_held(&path).map_err(|e| files::failed("look at", &path, e))? {
            let text = format!("{} is in use by a process", path.display());
            return Err(DriverError::refused(Code::DatasetBusy, text));
        }
        files::remove(&files::temporary(&path)).await?;
        files::remove(&path).await?;
        // Inodes are used again.
        self.sizes.forget(&path);
        // Last: what is left after a crash still has an owner.
        files::remove(&path.with_extension("json")).await?;
        files::sync_folder(&folder).await
    }
}
