//! A root that makes room for another one under its name, and comes back if that one fails.
//!
//! `<vm>.stash` beside it; `<vm>.gone` is one that is being removed. Every step is one rename of the
//! whole folder, stamp and snapshots in it; whose stamp the folder under the VM's own name has, if it
//! has any, tells how far a crash got.

use std::path::{Path, PathBuf};

use muster_shared::ids::{TaskId, VmUuid};

use super::{FileStorage, ROOTS, STAMP, files, mapped};
use crate::drivers::DriverError;
use crate::drivers::storage::roots::of_another;

/// What follows the VM's uuid in the name of a folder of its.
pub(super) const STASH: &str = ".stash";
pub(super) const GONE: &str = ".gone";

impl FileStorage {
    /// A root's folder that has not its own name.
    pub(super) fn root_named(&self, vm: VmUuid, suffix: &str) -> PathBuf {
        self.config.storage_dir.join(ROOTS).join(format!("{vm}{suffix}"))
    }

    pub(super) async fn put_root_aside(
        &self,
        vm: VmUuid,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let (folder, stash) = (self.root_folder(vm), self.root_named(vm, STASH));
        let stamp = self.root_stamp(vm).await?;
        if stamp.is_none_or(|stamp| stamp.task_id == *task) {
            // The new one is being made already, or none is there.
            return Ok(());
        }
        self.unmount_root_of(vm)?;
        // Left by an earlier task, which was done with it.
        self.discard_root(vm, &stash).await?;
        files::rename(&folder, &stash).await
    }

    pub(super) async fn bring_root_back(
        &self,
        vm: VmUuid,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let (folder, stash) = (self.root_folder(vm), self.root_named(vm, STASH));
        if !stash.exists() {
            return self.discard_root(vm, &self.root_named(vm, GONE)).await;
        }
        if self.root_stamp(vm).await?.is_some_and(|stamp| stamp.task_id != *task) {
            return Err(of_another(vm));
        }
        self.set_root_gone(vm, &folder).await?;
        files::rename(&stash, &folder).await?;
        self.discard_root(vm, &self.root_named(vm, GONE)).await
    }

    /// Removes a folder of a root, whatever its name. At once it has another name, so that nothing is
    /// ever found half removed under its own.
    pub(super) async fn discard_root(&self, vm: VmUuid, folder: &Path) -> Result<(), DriverError> {
        self.set_root_gone(vm, folder).await?;
        let gone = self.root_named(vm, GONE);
        // The stamp goes last: it names the image that the rest needs.
        for path in files::list(&gone).await?.iter().filter(|path| !path.ends_with(STAMP)) {
            match path.is_dir() {
                true => files::remove_folder(path).await?,
                false => files::remove(path).await?,
            }
        }
        files::remove_folder_durably(&gone).await
    }

    async fn set_root_gone(&self, vm: VmUuid, folder: &Path) -> Result<(), DriverError> {
        let gone = self.root_named(vm, GONE);
        if *folder == *gone || !folder.exists() {
            return Ok(());
        }
        if gone.exists() {
            files::remove_folder(&gone).await?;
        }
        mapped::unmount(folder).map_err(|e| files::failed("unmount", folder, e))?;
        files::rename(folder, &gone).await
    }
}
