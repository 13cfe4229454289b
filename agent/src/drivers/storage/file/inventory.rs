//! What lies in a pool of files, and the space that it takes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;

use super::{FileStorage, files, index_of, stamp, variables, virtual_size};
use crate::drivers::DriverError;
use crate::drivers::storage::{Disk, Identity, Role, Usage, Volume};

/// Virtual sizes of disks: a status report at each change of a VM does not open every disk.
#[derive(Debug, Default)]
pub(super) struct Sizes(Mutex<BTreeMap<PathBuf, (u64, u64)>>);

impl Sizes {
    /// Of the file that has this name now, bytes.
    async fn of(&self, path: &Path) -> Result<u64, DriverError> {
        let found =
            tokio::fs::metadata(path).await.map_err(|e| files::failed("look at", path, e))?;
        if let Some((_, size_bytes)) =
            self.0.lock().get(path).filter(|(inode, _)| *inode == found.ino())
        {
            return Ok(*size_bytes);
        }
        let size_bytes = virtual_size(path).await?;
        self.0.lock().insert(path.to_owned(), (found.ino(), size_bytes));
        Ok(size_bytes)
    }

    pub(super) fn forget(&self, path: &Path) {
        self.0.lock().remove(path);
    }
}

/// What a file of a VM's folder is, and whether it was put aside; `None`: no volume.
fn kind_of(path: &Path) -> Option<(Role, bool)> {
    if variables::is_variables(path) {
        return Some((Role::Firmware, false));
    }
    if variables::is_stashed_variables(path) {
        return Some((Role::Firmware, true));
    }
    if let Some(index) = index_of(path) {
        return Some((Role::Disk(index), false));
    }
    let name = path.file_name()?.to_str()?;
    let index = name.strip_prefix("stash")?.strip_suffix(".qcow2")?.parse().ok()?;
    Some((Role::Disk(index), true))
}

impl FileStorage {
    pub(super) async fn disk_at(
        &self,
        vm: VmUuid,
        path: PathBuf,
        index: u32,
    ) -> Result<Disk, DriverError> {
        let size_bytes = virtual_size(&path).await?;
        let used_bytes = files::used_bytes(&path).await?;
        let identity = self.identity_of(vm, &path, index).await;
        Ok(Disk { index, identity, path, format: "qcow2".to_owned(), size_bytes, used_bytes })
    }

    /// By the stamp beside the disk, which goes aside with it.
    async fn identity_of(&self, vm: VmUuid, path: &Path, index: u32) -> Option<Identity> {
        let stamp = stamp(path).await.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), error = %Chain(&error), "whose is this disk?");
            None
        })?;
        let (owner, origin) = (&stamp.task_id, stamp.image_uuid);
        Some(Identity::of_disk(vm, index, &self.config.pool, owner, origin))
    }

    pub(super) async fn list_volumes(&self) -> Result<Vec<Volume>, DriverError> {
        // One that is put aside or brought back meanwhile could be missed under both names.
        let _still = self.names.write().await;
        let mut found = Vec::new();
        for folder in files::list(&self.vols).await? {
            let vm = folder.file_name().and_then(|name| name.to_str()?.parse::<VmUuid>().ok());
            let Some(vm) = vm else { continue };
            for path in files::list(&folder).await? {
                let Some((role, is_aside)) = kind_of(&path) else { continue };
                let identity = match role {
                    Role::Disk(index) => self.identity_of(vm, &path, index).await,
                    Role::Firmware | Role::Root => None,
                };
                found.push(Volume {
                    vm,
                    role,
                    is_aside,
                    identity,
                    pool: self.config.pool.clone(),
                    size_bytes: self.sizes.of(&path).await.ok(),
                    used_bytes: files::used_bytes(&path).await?,
                    path,
                });
            }
        }
        found.sort_by_key(|volume| (volume.vm, volume.role, volume.is_aside));
        Ok(found)
    }

    pub(super) async fn sum_up(&self) -> Result<Usage, DriverError> {
        let space = files::space_beside(&self.config.storage_dir).await?;
        let mut usage = Usage {
            pool: self.config.pool.clone(),
            size_bytes: space.size_bytes,
            alloc_bytes: space.size_bytes.saturating_sub(space.available_bytes),
            ..Usage::default()
        };
        let images = match self.borrows_images() {
            true => Vec::new(),
            false => files::list(&self.images).await?,
        };
        for path in images {
            usage.images_bytes += files::used_bytes(&path).await?;
        }
        for folder in files::list(&self.vols).await? {
            for path in files::list(&folder).await? {
                if index_of(&path).is_none() {
                    continue;
                }
                usage.disks_used_bytes += files::used_bytes(&path).await?;
                match self.sizes.of(&path).await {
                    Ok(size_bytes) => usage.disks_virtual_bytes += size_bytes,
                    // A disk that was just removed, or a damaged one: the others still count.
                    Err(error) => tracing::debug!(%error, "a disk was left out of the sum"),
                }
            }
        }
        Ok(usage)
    }
}
