//! Roots of containers lie where the images do: in the first pool.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};

use super::Pools;
use crate::drivers::DriverError;
use crate::drivers::storage::{ContainerRoots, PackedRoot, RootWishes, Volume};
use crate::host::idmap::IdRange;

#[async_trait]
impl ContainerRoots for Pools {
    async fn create_root(
        &self,
        vm: VmUuid,
        image: ImageUuid,
        wishes: &RootWishes,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        self.first.create_root(vm, image, wishes, owner).await
    }

    async fn change_root(&self, vm: VmUuid, wishes: &RootWishes) -> Result<(), DriverError> {
        self.first.change_root(vm, wishes).await
    }

    async fn root(&self, vm: VmUuid) -> Result<Option<ImageUuid>, DriverError> {
        self.first.root(vm).await
    }

    async fn lacks_ids(&self, ids: IdRange) -> Option<String> {
        self.first.lacks_ids(ids).await
    }

    async fn mount_root(
        &self,
        vm: VmUuid,
        image_root: &Path,
        ids: Option<IdRange>,
    ) -> Result<PathBuf, DriverError> {
        self.first.mount_root(vm, image_root, ids).await
    }

    async fn unmount_root(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.first.unmount_root(vm).await
    }

    async fn destroy_root(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        self.first.destroy_root(vm, owner).await
    }

    async fn pack_root(
        &self,
        vm: VmUuid,
        name: &str,
        image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        self.first.pack_root(vm, name, image_root).await
    }

    async fn stash_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        self.first.stash_root(vm, task).await
    }

    async fn restore_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        self.first.restore_root(vm, task).await
    }

    async fn purge_root_stash(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.first.purge_root_stash(vm).await
    }

    async fn rooted(&self) -> Result<Vec<VmUuid>, DriverError> {
        self.first.rooted().await
    }

    async fn root_volumes(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError> {
        self.first.root_volumes(vm).await
    }
}
