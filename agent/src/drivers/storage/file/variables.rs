//! What the UEFI firmware of a VM keeps, in `uefi-vars.qcow2` beside its disks: it has snapshots
//! like them, goes aside and comes back with the boot disk, and is destroyed with them.

use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;

use super::disks::CREATE_TIMEOUT;
use super::{FileStorage, files, index_of, run};
use crate::drivers::DriverError;
use crate::drivers::storage::{Role, Variables};

pub(super) const NAME: &str = "uefi-vars.qcow2";
/// While a reprovision may still bring the boot disk back.
const STASH: &str = "stash-uefi-vars.qcow2";

/// Whether a file of a VM's folder has its variables.
pub(super) fn is_variables(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == NAME)
}

/// Whether a file of a VM's folder has those that were put aside.
pub(super) fn is_stashed_variables(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == STASH)
}

impl FileStorage {
    /// Every volume of a VM with its file: the variables, then the disks by index.
    pub(super) async fn volumes_of(&self, vm: VmUuid) -> Result<Vec<(Role, PathBuf)>, DriverError> {
        let volume = |path: PathBuf| {
            let volume = match index_of(&path) {
                Some(index) => Role::Disk(index),
                None if is_variables(&path) => Role::Firmware,
                None => return None,
            };
            Some((volume, path))
        };
        let mut volumes: Vec<_> =
            files::list(&self.folder(vm)).await?.into_iter().filter_map(volume).collect();
        volumes.sort();
        Ok(volumes)
    }

    pub(super) async fn make_variables(
        &self,
        vm: VmUuid,
        template: &Path,
    ) -> Result<Variables, DriverError> {
        let path = self.folder(vm).join(NAME);
        let exists = tokio::fs::try_exists(&path).await;
        if !exists.map_err(|error| files::failed("look for", &path, error))? {
            self.marker.check().await?;
            self.convert_variables(template, &path).await?;
        }
        Ok(Variables { path, format: "qcow2".to_owned() })
    }

    async fn convert_variables(&self, template: &Path, path: &Path) -> Result<(), DriverError> {
        files::make_folder(path.parent().unwrap_or(&self.vols)).await?;
        let temporary = files::temporary(path);
        files::remove(&temporary).await?;
        let argv = ["qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2"].map(str::to_owned);
        let files = [template, &temporary].map(|file| file.display().to_string());
        let made = run(&self.exec, argv.into_iter().chain(files), CREATE_TIMEOUT).await;
        if let Err(error) = made {
            files::remove(&temporary).await?;
            return Err(error);
        }
        files::sync_file(&temporary).await?;
        files::rename(&temporary, path).await
    }

    /// Those of the disk that is about to be put aside; may be repeated.
    pub(super) async fn put_variables_aside(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.rename_variables(vm, NAME, STASH).await
    }

    /// Over those that were made since; may be repeated.
    pub(super) async fn bring_variables_back(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.rename_variables(vm, STASH, NAME).await
    }

    async fn rename_variables(&self, vm: VmUuid, from: &str, to: &str) -> Result<(), DriverError> {
        let folder = self.folder(vm);
        let from = folder.join(from);
        let exists = tokio::fs::try_exists(&from).await;
        match exists.map_err(|error| files::failed("look for", &from, error))? {
            true => files::rename(&from, &folder.join(to)).await,
            false => Ok(()),
        }
    }

    /// Not yet durable.
    pub(super) async fn drop_variables_stash(&self, vm: VmUuid) -> Result<(), DriverError> {
        files::remove(&self.folder(vm).join(STASH)).await
    }
}
