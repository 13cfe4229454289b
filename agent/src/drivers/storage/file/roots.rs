//! Roots of containers: what differs from an image lies in `roots/<vm>/upper`, and an overlay shows
//! both as one on `roots/<vm>/root`.
//!
//! `root.json` is the stamp of the owner. It is made durable first and removed last, under another name
//! of the whole folder. See [`mapped`], [`snapshots`] and [`stash`] for what else there is.

mod fill;
mod mapped;
mod packs;
mod snapshots;
mod stash;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;
use tokio::fs;

use super::{FileStorage, Stamp, files};
use crate::drivers::DriverError;
use crate::drivers::storage::roots::{ContainerRoots, PackedRoot, no_root};
use crate::drivers::storage::{Bases, Identity, Role, RootWishes, Volume};
use crate::drivers::trees::{self, Measure};
use crate::host::idmap::IdRange;
use crate::host::mounts::{self, Overlay};

/// The folder of the roots in the storage folder.
const ROOTS: &str = "roots";
const STAMP: &str = "root.json";
/// What is in a root's folder beside the stamp.
const PARTS: [&str; 3] = ["upper", "work", "root"];

impl FileStorage {
    fn root_folder(&self, vm: VmUuid) -> PathBuf {
        self.config.storage_dir.join(ROOTS).join(vm.to_string())
    }

    pub(super) async fn root_stamp(&self, vm: VmUuid) -> Result<Option<Stamp>, DriverError> {
        stamp_in(&self.root_folder(vm)).await
    }

    fn unmount_root_of(&self, vm: VmUuid) -> Result<(), DriverError> {
        let folder = self.root_folder(vm);
        mapped::unmount(&folder).map_err(|e| files::failed("unmount", &folder, e))
    }

    /// The folders of all roots, those put aside or being removed among them, with their VMs.
    async fn root_folders(&self) -> Result<Vec<(VmUuid, PathBuf)>, DriverError> {
        let folders = files::list(&self.config.storage_dir.join(ROOTS)).await?.into_iter();
        Ok(folders.filter_map(|path| Some((vm_of(&path)?, path))).collect())
    }

    async fn root_volume(&self, vm: VmUuid, path: PathBuf) -> Result<Volume, DriverError> {
        let pool = self.config.pool.clone();
        let stamp = stamp_in(&path).await.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), error = %Chain(&error), "whose is this root?");
            None
        });
        let identity = stamp.map(|it| Identity::of_root(vm, &pool, &it.task_id, it.image_uuid));
        let (is_aside, upper) = (path != self.root_folder(vm), path.join("upper"));
        let measured =
            trees::beside("measure a root folder", (), move |stop| match upper.exists() {
                true => Measure::of(&upper, stop),
                false => Ok(Measure::default()),
            });
        let used_bytes = measured.await?.copy_bytes(false);
        Ok(Volume {
            vm,
            role: Role::Root,
            is_aside,
            identity,
            pool,
            path,
            size_bytes: None,
            used_bytes,
        })
    }

    /// Adds the images of all roots, each as one disk.
    pub(super) async fn add_roots(&self, bases: &mut Bases) -> Result<(), DriverError> {
        for (vm, folder) in self.root_folders().await? {
            if let Some(image) = stamp_in(&folder).await?.and_then(|stamp| stamp.image_uuid) {
                *bases.entry(image).or_default().entry(vm).or_default() += 1;
            }
        }
        Ok(())
    }
}

async fn stamp_in(folder: &Path) -> Result<Option<Stamp>, DriverError> {
    let path = folder.join(STAMP);
    let Some(content) = files::read(&path).await? else { return Ok(None) };
    let parsed = serde_json::from_slice(&content);
    parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
}

/// Whose root lies in a folder, by its name.
fn vm_of(folder: &Path) -> Option<VmUuid> {
    let name = folder.file_name()?.to_str()?;
    let vm = [stash::STASH, stash::GONE].iter().find_map(|suffix| name.strip_suffix(suffix));
    vm.unwrap_or(name).parse().ok()
}

#[async_trait]
impl ContainerRoots for FileStorage {
    async fn create_root(
        &self,
        vm: VmUuid,
        image: ImageUuid,
        _wishes: &RootWishes,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let folder = self.root_folder(vm);
        match self.root_stamp(vm).await? {
            Some(stamp) if stamp.task_id != *owner => {
                let text = format!("Dataset {}/{vm} exists.", self.config.pool);
                return Err(DriverError::refused(Code::DatasetExists, text));
            }
            Some(_) => {}
            None => {
                let stamp = Stamp {
                    server_uuid: self.config.server_uuid,
                    cluster_id: self.config.cluster.id(),
                    vm_uuid: vm,
                    task_id: owner.clone(),
                    image_uuid: Some(image),
                };
                let stamp = serde_json::to_vec(&stamp).expect("a stamp has only string keys");
                files::make_folder(&folder).await?;
                files::write(&folder.join(STAMP), &stamp).await?;
            }
        }
        for part in PARTS {
            files::make_folder(&folder.join(part)).await?;
        }
        Ok(())
    }

    async fn change_root(&self, vm: VmUuid, _wishes: &RootWishes) -> Result<(), DriverError> {
        self.root_stamp(vm).await?.map(drop).ok_or_else(|| no_root(vm))
    }

    async fn root(&self, vm: VmUuid) -> Result<Option<ImageUuid>, DriverError> {
        Ok(self.root_stamp(vm).await?.and_then(|stamp| stamp.image_uuid))
    }

    async fn lacks_ids(&self, ids: IdRange) -> Option<String> {
        self.cant_map(ids).await.err().map(|error| Chain(&error).to_string())
    }

    async fn mount_root(
        &self,
        vm: VmUuid,
        image_root: &Path,
        ids: Option<IdRange>,
    ) -> Result<PathBuf, DriverError> {
        if self.root(vm).await?.is_none() {
            return Err(no_root(vm));
        }
        let folder = self.root_folder(vm);
        let [upper, work, root] = PARTS.map(|part| folder.join(part));
        let failed = |e| files::failed("mount", &root, e);
        if mounts::is_mounted(&root).map_err(failed)? {
            return Ok(root);
        }
        // The overlay's own root has the rights of this folder.
        let rights = fs::metadata(image_root).await.map_err(failed)?.permissions().mode();
        let rights = std::fs::Permissions::from_mode(rights & 0o7777);
        fs::set_permissions(&upper, rights).await.map_err(failed)?;
        match ids {
            Some(ids) => mapped::show(&folder, image_root, ids).await?,
            None => {
                let overlay = Overlay { lower: image_root, upper: &upper, work: &work };
                overlay.mount(&root).map_err(failed)?;
            }
        }
        Ok(root)
    }

    async fn unmount_root(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.unmount_root_of(vm)
    }

    async fn destroy_root(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        let folder = self.root_folder(vm);
        if let Some(owner) = owner {
            let theirs = match self.root_stamp(vm).await? {
                Some(stamp) => stamp.task_id != *owner,
                // The stamp is made first: without it, and empty, it is what a crash left of one.
                None => folder.join(PARTS[0]).exists(),
            };
            if theirs {
                return Ok(());
            }
        }
        let _turn = self.root_turns.take(vm).await;
        let _renames = self.names.read().await;
        self.discard_root(vm, &folder).await?;
        match owner {
            Some(_) => Ok(()),
            None => {
                self.discard_root(vm, &self.root_named(vm, stash::STASH)).await?;
                self.root_turns.forget(vm);
                Ok(())
            }
        }
    }

    async fn pack_root(
        &self,
        vm: VmUuid,
        name: &str,
        image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        self.pack_root_snapshot(vm, name, image_root).await
    }

    async fn stash_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let _turn = self.root_turns.take(vm).await;
        let _renames = self.names.read().await;
        self.put_root_aside(vm, task).await
    }

    async fn restore_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let _turn = self.root_turns.take(vm).await;
        let _renames = self.names.read().await;
        self.bring_root_back(vm, task).await
    }

    async fn purge_root_stash(&self, vm: VmUuid) -> Result<(), DriverError> {
        let _renames = self.names.read().await;
        self.discard_root(vm, &self.root_named(vm, stash::STASH)).await
    }

    async fn rooted(&self) -> Result<Vec<VmUuid>, DriverError> {
        let vms: BTreeSet<VmUuid> =
            self.root_folders().await?.into_iter().map(|(vm, _)| vm).collect();
        Ok(vms.into_iter().collect())
    }

    async fn root_volumes(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError> {
        let mut found = Vec::new();
        for (of, folder) in self.root_folders().await? {
            if of == vm {
                found.push(self.root_volume(vm, folder).await?);
            }
        }
        Ok(found)
    }
}
