//! Disks as qcow2 files on backing files: for hosts without ZFS.
//!
//! `vols/<vm>/disk<N>.qcow2` is the disk, `disk<N>.json` beside it the stamp of its owner. The
//! stamp is made durable first and the disk gets its name last: a disk that can be seen is whole
//! and has an owner, and whatever else a crash leaves is overwritten or removed by its task.

mod bases;
mod disks;
mod fill;
mod inventory;
mod removal;
mod roots;
mod snapshots;
mod stamp;
mod stash;
mod variables;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::reserve::Reserve;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use tokio_util::sync::CancellationToken;

use self::inventory::Sizes;
use self::stamp::Stamp;
use super::copies::Copies;
use super::marker::Marker;
use super::turns::RootTurns;
use super::{
    Bases, Disk, DiskSpec, MIN_FREE_BYTES, RESERVE_BYTES, RecordCopy, Role, SnapshotPiece, Storage,
    Usage, Variables, Volume, VolumeSnapshot, lock, qcow2,
};
use crate::drivers::cluster::Cluster;
use crate::drivers::{DriverError, files};
use crate::host::{Command, SharedExec};

/// The folder of the disks in the storage folder.
pub const DISKS: &str = "vols";
/// The folder of the images in the storage folder.
pub const IMAGES: &str = "images";
/// The folder of the copies of VM records in the storage folder.
pub const RECORD_COPIES: &str = "records";

/// Free beside the reserve once it is taken; a pool with less is as good as full, bytes.
const BESIDE_RESERVE_BYTES: u64 = 64 * MIB;

/// Where the driver works and for whom.
#[derive(Clone, Debug)]
pub struct FileStorageConfig {
    /// The storage folder; disks lie in `vols/` under it, images in `images/`, copies of VM records
    /// in `records/`.
    pub storage_dir: PathBuf,
    /// The agent's data folder, whose room is what tasks need to be written down.
    pub data_dir: PathBuf,
    /// Stamped on every disk.
    pub server_uuid: ServerUuid,
    /// Stamped on every disk, once it is known.
    pub cluster: Arc<Cluster>,
    /// Name under which the space is reported.
    pub pool: String,
}

/// The driver `file`.
#[derive(Debug)]
pub struct FileStorage {
    config: FileStorageConfig,
    vols: PathBuf,
    images: PathBuf,
    copies: Copies,
    marker: Marker,
    exec: SharedExec,
    reserve: Reserve,
    sizes: Sizes,
    /// Read by who renames a disk, written by who must see every disk under one of its names.
    names: tokio::sync::RwLock<()>,
    root_turns: RootTurns,
    /// Roots were seen under ids of their containers' own.
    maps_ids: tokio::sync::Mutex<bool>,
}

impl FileStorage {
    /// Opens the driver and makes its folders, unless the pool was used before and is not there: see
    /// [`Storage::problems`].
    ///
    /// # Errors
    /// A folder could not be made.
    pub async fn open(config: FileStorageConfig, exec: SharedExec) -> Result<Self, DriverError> {
        let at = |name: &str| config.storage_dir.join(name);
        let (vols, images, copies) = (at(DISKS), at(IMAGES), Copies::new(at(RECORD_COPIES)));
        let marker = Marker::new(&config.pool, &config.storage_dir, &config.data_dir);
        if marker.open(config.server_uuid).await? {
            files::make_folder(&vols).await?;
            copies.make().await?;
        }
        let reserve = Reserve::new(&config.data_dir, RESERVE_BYTES, BESIDE_RESERVE_BYTES);
        Ok(Self {
            config,
            vols,
            images,
            copies,
            marker,
            exec,
            reserve,
            sizes: Sizes::default(),
            names: tokio::sync::RwLock::default(),
            root_turns: RootTurns::default(),
            maps_ids: tokio::sync::Mutex::default(),
        })
    }

    /// Disks are based on the images in this folder, which lie in another pool.
    ///
    /// # Errors
    /// The path is empty.
    pub fn with_images_of(mut self, storage_dir: &Path) -> Result<Self, DriverError> {
        let folder = std::path::absolute(storage_dir.join(IMAGES));
        self.images = folder.map_err(|e| files::failed("find", storage_dir, e))?;
        Ok(self)
    }

    /// Whether the images are those of another pool.
    fn borrows_images(&self) -> bool {
        self.images != self.config.storage_dir.join(IMAGES)
    }

    fn folder(&self, vm: VmUuid) -> PathBuf {
        self.vols.join(vm.to_string())
    }
}

/// Runs a program to its end; returns what it printed.
async fn run(
    exec: &SharedExec,
    argv: impl IntoIterator<Item = String>,
    timeout: Duration,
) -> Result<Vec<u8>, DriverError> {
    let command = Command::new(argv, timeout);
    let words = || command.argv.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
    // What it writes is not to be cut off in the middle.
    let ran = exec.run(&command, &CancellationToken::new()).await;
    match ran.and_then(|output| output.checked(&words())) {
        Ok(output) => Ok(output.stdout),
        Err(error) if error.to_string().contains("No space left on device") => {
            Err(super::store_full(format!("no space left to run {}", words())))
        }
        Err(error) => Err(DriverError::failed(words(), error)),
    }
}

async fn stamp(disk: &Path) -> Result<Option<Stamp>, DriverError> {
    let path = disk.with_extension("json");
    let Some(content) = files::read(&path).await? else { return Ok(None) };
    let parsed = serde_json::from_slice(&content);
    parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
}

/// Virtual size of a qcow2 file, from its header.
async fn virtual_size(path: &Path) -> Result<u64, DriverError> {
    let start = files::head(path, u64::try_from(qcow2::HEADER_BYTES).unwrap_or(u64::MAX)).await?;
    let unusable = |problem: &str| {
        DriverError::failed(format!("read the header of {}", path.display()), problem.to_owned())
    };
    match qcow2::parse(&start) {
        Ok(Some(header)) => Ok(header.size_bytes),
        Ok(None) => Err(unusable("it is not a qcow2 file")),
        Err(error) => Err(unusable(&error.to_string())),
    }
}

/// The index in `disk<N>.qcow2`.
fn index_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("disk")?.strip_suffix(".qcow2")?.parse().ok()
}

#[async_trait]
impl Storage for FileStorage {
    fn name(&self) -> &'static str {
        "file"
    }

    fn pools(&self) -> Vec<String> {
        vec![self.config.pool.clone()]
    }

    async fn create_disk(&self, spec: &DiskSpec, owner: &TaskId) -> Result<Disk, DriverError> {
        self.make_disk(spec, owner).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Vec<Disk>, DriverError> {
        let mut disks = Vec::new();
        for path in files::list(&self.folder(vm)).await? {
            if let Some(index) = index_of(&path) {
                disks.push(self.disk_at(vm, path, index).await?);
            }
        }
        disks.sort_by_key(|disk| disk.index);
        Ok(disks)
    }

    async fn check_idle(&self, vm: VmUuid) -> Result<(), DriverError> {
        for (_, path) in self.volumes_of(vm).await? {
            let held = lock::is_held(&path).map_err(|e| files::failed("look at", &path, e))?;
            if held {
                let text = format!("{} is in use by a process", path.display());
                return Err(DriverError::refused(Code::DatasetBusy, text));
            }
        }
        Ok(())
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
        self.remove_disk(vm, index, owner).await
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError> {
        self.enlarge(vm, index, size_mib).await
    }

    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError> {
        let volumes = self.volumes_of(vm).await?.into_iter().map(|(volume, _)| volume);
        let root = self.root_stamp(vm).await?.map(|_| Role::Root);
        Ok(volumes.chain(root).collect())
    }

    async fn variables(&self, vm: VmUuid, template: &Path) -> Result<Variables, DriverError> {
        self.make_variables(vm, template).await
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
        self.make_snapshot(vm, name, of).await
    }

    async fn delete_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        self.remove_snapshot(vm, name, from).await
    }

    async fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        match volume {
            Role::Root => self.piece_of_pack(vm, name, from).await,
            _ => self.piece_of_snapshot(vm, volume, name, from).await,
        }
    }

    async fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        match volume {
            Role::Root => self.begin_root_fill(vm, size_bytes, owner).await,
            _ => self.start_filling(vm, volume, size_bytes, owner).await,
        }
    }

    async fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        match volume {
            Role::Root => self.fill_root(vm, offset, data, durable).await,
            _ => self.write_piece(vm, volume, offset, data, durable).await,
        }
    }

    async fn end_fill(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        match volume {
            Role::Root => self.end_root_fill(vm).await,
            _ => self.stop_filling(vm, volume).await,
        }
    }

    async fn roll_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let done = self.go_back(vm, name).await;
        // They may have been grown since.
        for path in files::list(&self.folder(vm)).await? {
            self.sizes.forget(&path);
        }
        done
    }

    async fn stash_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let _renames = self.names.read().await;
        self.put_aside(vm, index, task).await
    }

    async fn restore_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let _renames = self.names.read().await;
        self.bring_back(vm, index, task).await
    }

    async fn purge_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        self.drop_stash(vm, index).await
    }

    async fn put_copy(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError> {
        self.marker.check().await?;
        self.copies.put(vm, copy).await
    }

    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.copies.remove(vm).await
    }

    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError> {
        self.copies.list().await
    }

    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        self.copies.read(vm).await
    }

    async fn volumes(&self) -> Result<Vec<Volume>, DriverError> {
        self.list_volumes().await
    }

    async fn bases(&self) -> Result<Bases, DriverError> {
        self.find_bases().await
    }

    async fn keep_room(&self) -> Result<bool, DriverError> {
        self.reserve.keep().map_err(|e| files::failed("keep room in", &self.config.data_dir, e))
    }

    async fn lend_room(&self) -> Result<bool, DriverError> {
        let lent = self.reserve.lend();
        lent.map_err(|e| files::failed("give back room of", &self.config.data_dir, e))
    }

    async fn usage(&self) -> Result<Vec<Usage>, DriverError> {
        // What lies in its place has another one's figures.
        if self.marker.check().await.is_err() {
            return Ok(vec![Usage { pool: self.config.pool.clone(), ..Usage::default() }]);
        }
        Ok(vec![self.sum_up().await?])
    }

    fn problems(&self) -> Vec<String> {
        self.marker.problem().into_iter().collect()
    }
}
