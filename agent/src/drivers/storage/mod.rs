//! Storage: the disks of VMs.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod copies;
mod file;
mod fill;
mod imports;
mod lock;
mod marker;
mod packs;
mod pools;
pub mod qcow2;
mod question;
mod refusals;
mod roots;
pub mod sim;
#[cfg(test)]
mod tests;
mod turns;
mod wishes;
pub mod zfs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::units::MIB;

use super::DriverError;

pub use crate::vm_record::Identity;
pub use file::{DISKS, FileStorage, FileStorageConfig, IMAGES, RECORD_COPIES};
pub use fill::{MAX_PIECE_BYTES, SnapshotPiece, check_piece, not_being_filled};
pub use pools::Pools;
use refusals::not_supported;
pub use refusals::{
    bytes_of, check_pool, disk_exists, disk_size, find_pool, image_not_installed, no_pool,
    snapshot_not_found, store_full, unknown_pool,
};
pub use roots::{ContainerRoots, PackedRoot, no_root};
pub use wishes::{RootWishes, SetAside, Wishes};

/// A disk to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Whose.
    pub vm: VmUuid,
    /// 0 is the boot disk.
    pub index: u32,
    /// The pool that it is to lie in; the first one without.
    pub pool: Option<String>,
    /// Contents; blank without.
    pub image: Option<ImageUuid>,
    /// Size, MiB; the image's own size without. Never smaller than the image.
    pub size_mib: Option<u64>,
    /// How it is kept.
    pub wishes: Wishes,
}

/// A disk that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// 0 is the boot disk.
    pub index: u32,
    /// What it is known by; none when nothing tells who made it.
    pub identity: Option<Identity>,
    /// Where it is.
    pub path: PathBuf,
    /// Format as QEMU names it: `qcow2` or `raw`.
    pub format: String,
    /// Virtual size, bytes.
    pub size_bytes: u64,
    /// Space it takes, bytes.
    pub used_bytes: u64,
}

/// Whether a volume with this path is a block device; else it is a file.
#[must_use]
pub fn is_device(path: &Path) -> bool {
    path.starts_with("/dev")
}

/// What a volume is to its VM. Snapshots are of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// What its UEFI firmware keeps.
    Firmware,
    /// A disk, by its index.
    Disk(u32),
    /// The root folder of a container.
    Root,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str("the firmware's variables"),
            Self::Disk(index) => write!(f, "disk {index}"),
            Self::Root => f.write_str("the root folder"),
        }
    }
}

/// The file in which the UEFI firmware of a VM keeps its variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variables {
    /// Where it is.
    pub path: PathBuf,
    /// Format as QEMU names it.
    pub format: String,
}

/// A snapshot of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSnapshot {
    /// The volume.
    pub volume: Role,
    /// The snapshot, as the file or pool names it.
    pub name: String,
}

/// The copy of a VM's record that lies beside its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCopy {
    /// The VM, by the copy's name.
    pub vm: VmUuid,
    /// What was put there. Empty when it can't be a copy.
    pub content: Vec<u8>,
}

/// A volume that is here, whether or not its VM has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Whose, by the name of what holds it.
    pub vm: VmUuid,
    /// What it is to that VM.
    pub role: Role,
    /// It was put aside for another one.
    pub is_aside: bool,
    /// What it is known by; none of what firmware keeps, and when nothing tells who made it.
    pub identity: Option<Identity>,
    /// The pool that it lies in.
    pub pool: String,
    /// Where it is.
    pub path: PathBuf,
    /// Virtual size, bytes; none of a damaged one.
    pub size_bytes: Option<u64>,
    /// Space it takes, bytes.
    pub used_bytes: u64,
}

/// What is based on an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dependents {
    /// Disks, those put aside among them.
    pub disks: usize,
    /// VMs that have these disks.
    pub vms: usize,
}

impl Dependents {
    /// Those of one of the [`Bases`].
    #[must_use]
    pub fn of(bases: &Bases, image: ImageUuid) -> Self {
        bases
            .get(&image)
            .map_or_else(Self::default, |vms| Self { disks: vms.values().sum(), vms: vms.len() })
    }
}

/// Images that disks are based on, with how many disks of each VM.
pub type Bases = BTreeMap<ImageUuid, BTreeMap<VmUuid, usize>>;

/// Space of one pool, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Name of the pool (`zones` by default, also for the `file` driver).
    pub pool: String,
    /// Size of the pool.
    pub size_bytes: u64,
    /// Used by anything.
    pub alloc_bytes: u64,
    /// Used by images.
    pub images_bytes: u64,
    /// Used by the disks of VMs.
    pub disks_used_bytes: u64,
    /// Sum of the virtual sizes of the disks of VMs.
    pub disks_virtual_bytes: u64,
}

/// Holds disks.
#[async_trait]
pub trait Storage: ContainerRoots {
    /// `file`, `zfs`, `sim`.
    fn name(&self) -> &'static str;

    /// The names of its pools, the first one that of disks that name none.
    fn pools(&self) -> Vec<String>;

    /// Makes a disk stamped with its owner, or returns it when this owner has made it before.
    /// Durable when it returns.
    ///
    /// # Errors
    /// `DatasetExists` when another task made a disk of that name; `ImageNotInstalled`;
    /// `InvalidParameters` when the size is below the image's or there is no such pool; `StoreFull`.
    async fn create_disk(&self, spec: &DiskSpec, owner: &TaskId) -> Result<Disk, DriverError>;

    /// The VM's disks, by index.
    ///
    /// # Errors
    /// The host could not be read.
    async fn disks(&self, vm: VmUuid) -> Result<Vec<Disk>, DriverError>;

    /// What volumes a VM has: the firmware's variables, if there are any, and the disks by index.
    ///
    /// # Errors
    /// The host could not be read.
    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError>;

    /// The variables of a VM's UEFI firmware; made from the raw file `template` if there are none.
    /// Durable when it returns.
    ///
    /// # Errors
    /// `StoreFull`; or they could not be made.
    async fn variables(&self, vm: VmUuid, template: &Path) -> Result<Variables, DriverError>;

    /// Refuses what a process has open.
    ///
    /// # Errors
    /// `DatasetBusy` when that is one of the VM's volumes; or the host could not be read.
    async fn check_idle(&self, vm: VmUuid) -> Result<(), DriverError>;

    /// Destroys the VM's disks that `owner` made, or all of them when `None`; with the last one go
    /// the firmware's variables. Missing ones are no error.
    ///
    /// # Errors
    /// `DatasetBusy` when a process has one open: nothing was removed then. Or something could not
    /// be removed.
    async fn destroy_disks(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError>;

    /// Destroys one disk, if `owner` made it, or whoever made it when `None`. One that is not there, or is
    /// another's, is no error. Durable when it returns.
    ///
    /// # Errors
    /// `DatasetBusy` when a process has it open. Or it could not be removed.
    async fn destroy_disk(
        &self,
        vm: VmUuid,
        index: u32,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError>;

    /// Makes a disk at least this large. Nobody may have a file open that is smaller: whoever has it
    /// open makes it larger first. Whoever has a device open hears of it afterwards. Durable when it
    /// returns.
    ///
    /// # Errors
    /// There is no such disk, or it could not be made larger.
    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError>;

    /// Every snapshot of each of the VM's volumes, the oldest of each first; also while it runs.
    ///
    /// # Errors
    /// The host could not be read.
    async fn snapshots(&self, vm: VmUuid) -> Result<Vec<VolumeSnapshot>, DriverError>;

    /// Takes a snapshot of those of these volumes that do not have it yet. Nobody may have one open
    /// that is a file, or change a root meanwhile. Durable when it returns.
    ///
    /// # Errors
    /// `StoreFull`; a failed one may leave some volumes with the snapshot.
    async fn create_snapshot(&self, vm: VmUuid, name: &str, of: &[Role])
    -> Result<(), DriverError>;

    /// Deletes a snapshot from those of these volumes that have it. Nobody may have one open that is a
    /// file.
    ///
    /// # Errors
    /// It could not be deleted.
    async fn delete_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError>;

    /// The first piece of what a snapshot holds of a volume, at or after `from`, that may be more
    /// than zeros; also while the VM runs. What one call reads is bounded, so that the answer may be
    /// that there are zeros for a while.
    ///
    /// # Errors
    /// `SnapshotNotFound` when there is no such volume, or it lacks the snapshot; `NotSupported` by
    /// a driver that can't; or the host could not be read.
    async fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let _: (VmUuid, Role, &str, u64) = (vm, volume, name, from);
        Err(not_supported(self.name(), "read the content of snapshots"))
    }

    /// Lets what `owner` made of a VM be filled: its disks are there and blank, and what its firmware
    /// keeps is made by this. May be repeated; nothing that was written is lost then.
    ///
    /// # Errors
    /// `DatasetNotFound` when there is no such disk of this owner; `StoreFull`; `NotSupported`.
    async fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let _: (VmUuid, Role, u64, &TaskId) = (vm, volume, size_bytes, owner);
        Err(not_supported(self.name(), "fill volumes"))
    }

    /// Writes a piece of a volume that is being filled. With `durable`, everything that was written
    /// to it before survives a power cut as well. What was never written reads as zeros.
    ///
    /// # Errors
    /// `DatasetNotFound` when it is not being filled; `InvalidParameters` beyond its end; `StoreFull`.
    async fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        let _: (VmUuid, Role, u64, &[u8], bool) = (vm, volume, offset, data, durable);
        Err(not_supported(self.name(), "fill volumes"))
    }

    /// Makes what was written the content of the volume. Nobody may write to it meanwhile. Durable
    /// when it returns; may be repeated, also once it is done.
    ///
    /// # Errors
    /// `StoreFull`; what was written is still there then.
    async fn end_fill(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        let _: (VmUuid, Role) = (vm, volume);
        Err(not_supported(self.name(), "fill volumes"))
    }

    /// Gives every disk the content of the snapshot, and the firmware's variables theirs if it
    /// holds any. The VM must not run. Newer snapshots stay, except in a pool of ZFS, which destroys
    /// them. Durable when it returns; may be repeated.
    ///
    /// # Errors
    /// `SnapshotNotFound` when a disk lacks it; `DatasetHasClones` when a newer one that would go has
    /// a clone; nothing was changed then.
    async fn roll_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError>;

    /// Puts a disk aside, so that `task` can make another one of its index. What was put aside
    /// keeps its content and its snapshots. With disk 0 go the firmware's variables: they name what
    /// it boots. May be repeated, also once `task` has made the other.
    ///
    /// # Errors
    /// It could not be renamed.
    async fn stash_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError>;

    /// Brings a disk that was put aside back, over the one that `task` made. Without a stash
    /// nothing happens.
    ///
    /// # Errors
    /// `DatasetExists` when the disk in its place is another task's.
    async fn restore_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError>;

    /// Removes a disk that was put aside; none is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn purge_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError>;

    /// Puts a copy of a VM's record beside its disks, in place of an earlier one. Durable when it
    /// returns.
    ///
    /// # Errors
    /// `StoreFull`; or it could not be written. The earlier one is there then.
    async fn put_copy(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError>;

    /// Removes a VM's copy; durable when it returns. None is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError>;

    /// The VMs that have a copy of their record here.
    ///
    /// # Errors
    /// The host could not be read.
    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError>;

    /// A VM's copy, of at most [`MAX_COPY_BYTES`](crate::vm_record::MAX_COPY_BYTES): a larger one comes
    /// empty, as one that can't be read.
    ///
    /// # Errors
    /// The host could not be read.
    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError>;

    /// Every volume here, those put aside among them, by VM and role. A damaged one is no error.
    ///
    /// # Errors
    /// The host could not be read.
    async fn volumes(&self) -> Result<Vec<Volume>, DriverError>;

    /// Every image that disks are based on, those put aside among them, whether or not there is a
    /// record of their VM.
    ///
    /// # Errors
    /// The host could not be read, or a damaged disk does not tell.
    async fn bases(&self) -> Result<Bases, DriverError>;

    /// Keeps [`RESERVE_BYTES`] of the first pool in reserve if there is enough; false when they are not kept.
    ///
    /// # Errors
    /// The host could not be read.
    async fn keep_room(&self) -> Result<bool, DriverError>;

    /// Gives the reserve back, for a task that frees more; false when there is none.
    ///
    /// # Errors
    /// The host failed.
    async fn lend_room(&self) -> Result<bool, DriverError>;

    /// Space of its pools, of the first one first. Another one that can't be read, or does not
    /// answer, is left out; one that is not there has none.
    ///
    /// # Errors
    /// The host could not be read.
    async fn usage(&self) -> Result<Vec<Usage>, DriverError>;

    /// What was found wrong with pools when they were used last, a line for people each.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// The pools in which the volumes of a VM lie, as its record has it; `None`: there is no record
    /// any more. A VM that nobody told of may have some in every pool.
    fn expect(&self, vm: VmUuid, pools: Option<BTreeSet<String>>) {
        drop((vm, pools));
    }
}

/// What is kept in reserve, bytes. The task journal refuses to go below 16 MiB, and guests that run
/// take what is given back as well.
pub const RESERVE_BYTES: u64 = 64 * MIB;

/// Space a fresh disk needs, with room to boot; below this no disk is made, and a copy leaves as much,
/// bytes.
const MIN_FREE_BYTES: u64 = 16 * MIB;

/// Name of the pool when none is configured.
pub const DEFAULT_POOL: &str = "zones";
