//! The root folders of containers, each made from an image that it shares with others.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};

use super::{RootWishes, Volume};
use crate::drivers::DriverError;
use crate::host::idmap::IdRange;

/// The files of a root as one tar archive, like a layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedRoot {
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its checksum, hexadecimal.
    pub sha256: String,
}

/// Holds the root folders of containers.
#[async_trait]
pub trait ContainerRoots: fmt::Debug + Send + Sync + 'static {
    /// Makes the root of a VM from an image and stamps it with its owner; one that this owner has made
    /// before stays. Durable when it returns.
    ///
    /// # Errors
    /// `DatasetExists` when another task made one; `ImageNotInstalled`; `InvalidParameters`; `StoreFull`.
    async fn create_root(
        &self,
        vm: VmUuid,
        image: ImageUuid,
        wishes: &RootWishes,
        owner: &TaskId,
    ) -> Result<(), DriverError>;

    /// Keeps a VM's root as wished from now on, also while it is in use. May be repeated.
    ///
    /// # Errors
    /// `DatasetNotFound`: it has no root; `InvalidParameters`: it takes more than the quota already.
    async fn change_root(&self, vm: VmUuid, wishes: &RootWishes) -> Result<(), DriverError>;

    /// The image that a VM's root was made from; `None`: it has no root.
    ///
    /// # Errors
    /// The host could not be read.
    async fn root(&self, vm: VmUuid) -> Result<Option<ImageUuid>, DriverError>;

    /// Why roots can't be shown under ids of their containers' own; `None`: they can.
    async fn lacks_ids(&self, ids: IdRange) -> Option<String>;

    /// Puts a VM's root together over the files of its image and returns the folder, which stays until
    /// [`Self::unmount_root`] or the next boot of the host. With `ids` each id of its files is shown as the
    /// one of these that it is for the container, also where it was written; without, it is the host's. May
    /// be repeated.
    ///
    /// # Errors
    /// `DatasetNotFound`: it has no root; or the host failed, also as [`Self::lacks_ids`] says.
    async fn mount_root(
        &self,
        vm: VmUuid,
        image_root: &Path,
        ids: Option<IdRange>,
    ) -> Result<PathBuf, DriverError>;

    /// Takes apart what [`Self::mount_root`] has put together; its content stays. None is no error.
    ///
    /// # Errors
    /// The host failed.
    async fn unmount_root(&self, vm: VmUuid) -> Result<(), DriverError>;

    /// Destroys a VM's root, if `owner` made it, or whoever made it when `None`, and then also one that
    /// was put aside. One that is not there, or is another's, is no error. No process may use it.
    ///
    /// # Errors
    /// It could not be removed.
    async fn destroy_root(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError>;

    /// Packs the files that a VM's root had at a snapshot, those of its image among them, as one archive;
    /// one that was packed stays as long as the snapshot. Its content is that of [`Role::Root`] in
    /// [`Storage::read_snapshot`]. Durable when it returns.
    ///
    /// # Errors
    /// `SnapshotNotFound`; `StoreFull`; `NotSupported`.
    ///
    /// [`Role::Root`]: super::Role::Root
    /// [`Storage::read_snapshot`]: super::Storage::read_snapshot
    async fn pack_root(
        &self,
        vm: VmUuid,
        name: &str,
        image_root: &Path,
    ) -> Result<PackedRoot, DriverError>;

    /// Puts a VM's root aside with its snapshots, so that `task` can make another one. May be repeated,
    /// also once `task` has made the other. No process may use it.
    ///
    /// # Errors
    /// It could not be renamed.
    async fn stash_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError>;

    /// Brings a root that was put aside back, in place of the one that `task` made. Without a stash
    /// nothing happens. No process may use it.
    ///
    /// # Errors
    /// `DatasetExists` when the root in its place is another task's.
    async fn restore_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError>;

    /// Removes a root that was put aside; none is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn purge_root_stash(&self, vm: VmUuid) -> Result<(), DriverError>;

    /// The VMs that have a root here, or of whose root something is left.
    ///
    /// # Errors
    /// The host could not be read.
    async fn rooted(&self) -> Result<Vec<VmUuid>, DriverError>;

    /// What is here of a VM's root, that which was put aside among it; all of it is read to be measured.
    ///
    /// # Errors
    /// The host could not be read.
    async fn root_volumes(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError>;
}

/// `DatasetNotFound`.
#[must_use]
pub fn no_root(vm: VmUuid) -> DriverError {
    DriverError::refused(Code::DatasetNotFound, format!("VM {vm} has no root folder"))
}

/// `DatasetExists`: the root in the place of one that was put aside.
#[must_use]
pub(super) fn of_another(vm: VmUuid) -> DriverError {
    let text = format!("the root folder of VM {vm} belongs to another task");
    DriverError::refused(Code::DatasetExists, text)
}
