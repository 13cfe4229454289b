//! A disk that makes room for another one under its name, and comes back if that one fails.
//!
//! `stash<N>.qcow2` with `stash<N>.json` beside the VM's disks. Every step is a rename; which of
//! the two names a file has, and whose stamp the disk carries, tells how far a crash got.

use std::path::PathBuf;

use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;

use super::{FileStorage, files, stamp};
use crate::drivers::DriverError;

/// The disk with which the firmware's variables go.
const BOOT_DISK: u32 = 0;

/// Names of one disk and of its stash.
struct Names {
    disk: PathBuf,
    stash: PathBuf,
}

impl Names {
    fn stamps(&self) -> (PathBuf, PathBuf) {
        (self.disk.with_extension("json"), self.stash.with_extension("json"))
    }
}

impl FileStorage {
    fn names_of(&self, vm: VmUuid, index: u32) -> Names {
        let folder = self.folder(vm);
        Names {
            disk: folder.join(format!("disk{index}.qcow2")),
            stash: folder.join(format!("stash{index}.qcow2")),
        }
    }

    /// Whether the disk's stamp says that `task` made it.
    async fn is_by(&self, names: &Names, task: &TaskId) -> Result<bool, DriverError> {
        Ok(stamp(&names.disk).await?.is_some_and(|stamp| stamp.task_id == *task))
    }

    pub(super) async fn put_aside(
        &self,
        vm: VmUuid,
        index: u32,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let names = self.names_of(vm, index);
        if self.is_by(&names, task).await? {
            // The new disk is being made already.
            return Ok(());
        }
        if index == BOOT_DISK {
            self.put_variables_aside(vm).await?;
        }
        if names.disk.exists() {
            files::rename(&names.disk, &names.stash).await?;
        }
        let (disk_stamp, stash_stamp) = names.stamps();
        if names.stash.exists() && disk_stamp.exists() {
            files::rename(&disk_stamp, &stash_stamp).await?;
        }
        Ok(())
    }

    pub(super) async fn bring_back(
        &self,
        vm: VmUuid,
        index: u32,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let names = self.names_of(vm, index);
        let (disk_stamp, stash_stamp) = names.stamps();
        if names.stash.exists() {
            // Over what the task made, if it got that far.
            if names.disk.exists() && !self.is_by(&names, task).await? {
                let text = format!("disk {index} of VM {vm} belongs to another task");
                return Err(DriverError::refused(Code::DatasetExists, text));
            }
            files::remove(&files::temporary(&names.disk)).await?;
            files::rename(&names.stash, &names.disk).await?;
        }
        if index == BOOT_DISK {
            self.bring_variables_back(vm).await?;
        }
        if stash_stamp.exists() {
            files::rename(&stash_stamp, &disk_stamp).await?;
        }
        Ok(())
    }

    pub(super) async fn drop_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        let names = self.names_of(vm, index);
        let (_, stash_stamp) = names.stamps();
        files::remove(&names.stash).await?;
        files::remove(&stash_stamp).await?;
        if index == BOOT_DISK {
            self.drop_variables_stash(vm).await?;
        }
        let folder = self.folder(vm);
        if folder.exists() { files::sync_folder(&folder).await } else { Ok(()) }
    }
}
