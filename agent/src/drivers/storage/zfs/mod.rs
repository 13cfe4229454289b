//! Disks as ZFS volumes, roots of containers as file systems: clones of images, snapshots of all of a VM
//! at one moment.
//!
//! `<pool>/<vm>` holds what a VM has: `disk<N>`, or `root`, what was put aside under its name with an
//! ending, and what its firmware keeps. Who made a volume is in its user properties, which it gets
//! as it is made. What has to be written first is made under another name and renamed: a volume
//! under its own name is whole and has an owner, or says that it is still being filled.
//!
//! `<pool>/muster` is the agent's own, with the copies of VM records, and the archives of roots, in a file
//! system; below it lies
//! what was destroyed while something had it open, until it goes.

mod arrival;
mod device;
mod devices;
mod disks;
mod fill;
mod home;
mod inventory;
mod mounts;
mod names;
mod pool;
mod removal;
mod root_fill;
mod roots;
mod snapshots;
mod stamp;
mod variables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::reserve::Reserve;
use muster_shared::units::MIB;
use parking_lot::Mutex;

use self::home::Home;
use super::turns::RootTurns;
use super::{
    Bases, Disk, DiskSpec, RESERVE_BYTES, RecordCopy, Role, SnapshotPiece, Storage, Usage,
    Variables, Volume, VolumeSnapshot,
};
use crate::drivers::zfs::Zfs;
use crate::drivers::{DriverError, files};

pub use device::{Access, Device};
pub use devices::{Devices, HostDevices, SimDevices, Source};
pub use mounts::{HostMounts, Mounts, SimMounts};
pub use names::Names;
pub(crate) use pool::{Pool, Row};
pub(crate) use roots::unmounted;
pub(crate) use stamp::IMAGE;
pub use stamp::Owner;

/// Free beside the reserve once it is taken; a data folder with less is as good as full, bytes.
const BESIDE_RESERVE_BYTES: u64 = 64 * MIB;

/// Where the driver works and for whom.
#[derive(Clone, Debug)]
pub struct ZfsStorageConfig {
    /// The pool.
    pub pool: String,
    /// The agent's data folder, whose room is what tasks need to be written down.
    pub data_dir: PathBuf,
    /// Under which file systems are mounted: `/`.
    pub root: PathBuf,
    /// Where roots of containers are shown while they run.
    pub roots: PathBuf,
    /// Stamped on every dataset.
    pub owner: Owner,
}

/// The driver `zfs`, of one pool.
#[derive(Debug)]
pub struct ZfsStorage {
    pool: Pool,
    names: Names,
    devices: Arc<dyn Devices>,
    mounts: Arc<dyn Mounts>,
    owner: Owner,
    home: Home,
    data_dir: PathBuf,
    roots: PathBuf,
    reserve: Reserve,
    /// The pool with the images, if that is another one.
    images: Option<Arc<ZfsStorage>>,
    /// Read by who renames a volume, written by who must see every one under one of its names.
    renames: tokio::sync::RwLock<()>,
    /// Opened devices of volumes that are being filled, by volume.
    filling: Mutex<BTreeMap<String, Arc<dyn Device>>>,
    /// At what takes its time with a VM's root. Taken before `renames`.
    turns: RootTurns,
}

/// An image as another pool's disks are made from it.
#[derive(Clone, Debug)]
struct Borrowed {
    path: PathBuf,
    format: String,
    size_bytes: u64,
}

impl ZfsStorage {
    /// Opens the driver, makes its dataset and removes what could not go before, unless the pool is
    /// not there: see [`Storage::problems`].
    ///
    /// # Errors
    /// The host could not be read.
    pub async fn open(
        config: ZfsStorageConfig,
        zfs: Arc<dyn Zfs>,
        devices: Arc<dyn Devices>,
        mounts: Arc<dyn Mounts>,
    ) -> Result<Self, DriverError> {
        let (pool, names) = (Pool::new(&config.pool, zfs), Names::new(&config.pool));
        let home = Home::new(names.own(), &config);
        let opened = Self {
            reserve: Reserve::new(&config.data_dir, RESERVE_BYTES, BESIDE_RESERVE_BYTES),
            data_dir: config.data_dir,
            roots: config.roots,
            owner: config.owner,
            images: None,
            renames: tokio::sync::RwLock::default(),
            filling: Mutex::default(),
            turns: RootTurns::default(),
            mounts,
            pool,
            names,
            devices,
            home,
        };
        if opened.home.open(&opened.pool, &opened.owner).await {
            opened.sweep().await;
        }
        Ok(opened)
    }

    /// Disks are copies of the images of another pool.
    #[must_use]
    pub fn with_images_of(self, first: Arc<Self>) -> Self {
        Self { images: Some(first), ..self }
    }

    /// An image of this pool, for disks of another one.
    async fn borrow(&self, image: ImageUuid) -> Result<Option<Borrowed>, DriverError> {
        let name = self.names.image(image);
        let Some(row) = self.pool.row(&name).await? else { return Ok(None) };
        let size_bytes = row.number("volsize");
        Ok(size_bytes.map(|size_bytes| Borrowed {
            path: self.devices.path(&name),
            format: "raw".to_owned(),
            size_bytes,
        }))
    }
}

#[async_trait]
impl Storage for ZfsStorage {
    fn name(&self) -> &'static str {
        "zfs"
    }

    fn pools(&self) -> Vec<String> {
        vec![self.pool.name().to_owned()]
    }

    async fn create_disk(&self, spec: &DiskSpec, owner: &TaskId) -> Result<Disk, DriverError> {
        self.make_disk(spec, owner).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Vec<Disk>, DriverError> {
        let disk = |(role, row)| match role {
            Role::Disk(index) => Some(self.disk_of(vm, index, &row)),
            Role::Firmware | Role::Root => None,
        };
        Ok(self.of_vm(vm).await?.into_iter().filter_map(disk).collect())
    }

    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError> {
        // A VM that is about to be made has none: that is told without a program.
        if !self.pool.exists(&self.names.of_vm(vm)).await? {
            return Ok(Vec::new());
        }
        Ok(self.of_vm(vm).await?.into_iter().map(|(role, _)| role).collect())
    }

    async fn variables(&self, vm: VmUuid, template: &Path) -> Result<Variables, DriverError> {
        self.make_variables(vm, template).await
    }

    async fn check_idle(&self, vm: VmUuid) -> Result<(), DriverError> {
        let found = self.of_vm(vm).await?;
        let mut volumes = found.iter().filter(|(role, _)| *role != Role::Root);
        volumes.try_for_each(|(_, row)| self.check_free(&row.name))
    }

    async fn destroy_disks(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        self.destroy_all(vm, owner).await
    }

    async fn destroy_disk(
        &self,
        vm: VmUuid,
        index: u32,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        self.destroy_one(vm, index, owner).await
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError> {
        self.enlarge(vm, index, size_mib).await
    }

    async fn snapshots(&self, vm: VmUuid) -> Result<Vec<VolumeSnapshot>, DriverError> {
        self.list_snapshots(vm).await
    }

    async fn create_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        of: &[Role],
    ) -> Result<(), DriverError> {
        self.take(vm, name, of).await
    }

    async fn delete_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        self.drop_snapshot(vm, name, from).await
    }

    async fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        self.piece_of_snapshot(vm, volume, name, from).await
    }

    async fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        self.start_filling(vm, volume, size_bytes, owner).await
    }

    async fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        self.write_piece(vm, volume, offset, data, durable).await
    }

    async fn end_fill(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        self.stop_filling(vm, volume).await
    }

    async fn roll_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        self.go_back(vm, name).await
    }

    async fn stash_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let _renames = self.renames.read().await;
        self.put_aside(vm, index, task).await
    }

    async fn restore_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let _renames = self.renames.read().await;
        self.bring_back(vm, index, task).await
    }

    async fn purge_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        self.drop_stash(vm, index).await
    }

    async fn put_copy(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError> {
        self.home.ready(&self.pool, &self.owner).await?.copies.put(vm, copy).await
    }

    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.home.ready(&self.pool, &self.owner).await?.copies.remove(vm).await
    }

    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError> {
        self.home.ready(&self.pool, &self.owner).await?.copies.list().await
    }

    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        self.home.ready(&self.pool, &self.owner).await?.copies.read(vm).await
    }

    async fn volumes(&self) -> Result<Vec<Volume>, DriverError> {
        // One that is put aside or brought back meanwhile could be missed under both names.
        let _still = self.renames.write().await;
        self.list_volumes().await
    }

    async fn bases(&self) -> Result<Bases, DriverError> {
        let _still = self.renames.write().await;
        self.find_bases().await
    }

    async fn keep_room(&self) -> Result<bool, DriverError> {
        self.reserve.keep().map_err(|e| files::failed("keep room in", &self.data_dir, e))
    }

    async fn lend_room(&self) -> Result<bool, DriverError> {
        self.reserve.lend().map_err(|e| files::failed("give back room of", &self.data_dir, e))
    }

    async fn usage(&self) -> Result<Vec<Usage>, DriverError> {
        // One that is not there has none.
        if self.home.ready(&self.pool, &self.owner).await.is_err() {
            return Ok(vec![Usage { pool: self.pool.name().to_owned(), ..Usage::default() }]);
        }
        Ok(vec![self.sum_up().await?])
    }

    fn problems(&self) -> Vec<String> {
        self.home.problem().into_iter().collect()
    }
}
