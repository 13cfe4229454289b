//! Images as ZFS volumes, those of containers as file systems, with a snapshot `@final`, of which disks
//! and roots are clones.
//!
//! What a repository has is fetched and checked as with the file driver, and written onto a volume or
//! into a file system under another name, which is renamed once it has its snapshot. The record with the manifest is
//! written last and removed first: an image that has one is whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::file::{FileImages, Record};
use super::manifest::Compression;
use super::origins::ManifestFuture;
use super::pack::{DiskSource, Packed};
use super::publish::Publication;
use super::turns::Turns;
use super::usage::{USED, modified_at, touch};
use super::{
    ContainerImage, ImageUsage, Images, Installed, ROOT_FORMAT, difference, origin_of, origins,
};
use crate::drivers::storage::zfs::{
    Access, Device, Devices, IMAGE, Mounts, Names, Owner, Pool, Row, Source, unmounted,
};
use crate::drivers::storage::{Dependents, Storage};
use crate::drivers::trees::{self, Measure};
use crate::drivers::untar::Fault;
use crate::drivers::zfs::{Properties, Zfs};
use crate::drivers::{DriverError, files};

/// Share of the progress that the fetch takes; writing the volume is the rest, percent.
const FETCH_PERCENT: u16 = 90;
/// What a copy of an image leaves free in its pool, bytes.
const STAYS_FREE_BYTES: u64 = 16 * MIB;
/// Sizes of volumes are multiples of this, whatever blocks a pool gives them, bytes.
const ALIGNMENT_BYTES: u64 = 128 * 1024;

/// Where the driver works.
#[derive(Clone, Debug)]
pub struct ZfsImagesConfig {
    /// The pool.
    pub pool: String,
    /// The folder of the fetched files; records lie there, too.
    pub folder: PathBuf,
    /// Where file systems are shown while they are filled.
    pub shown: PathBuf,
    /// Stamped on every volume.
    pub owner: Owner,
    /// Knows the disks that are based on images.
    pub storage: Arc<dyn Storage>,
}

/// The driver for nodes with storage `zfs`.
#[derive(Debug)]
pub struct ZfsImages {
    config: ZfsImagesConfig,
    fetched: FileImages,
    pool: Pool,
    names: Names,
    devices: Arc<dyn Devices>,
    mounts: Arc<dyn Mounts>,
    clock: SharedClock,
    turns: Turns,
    /// Held by who copies files: one that was given up may take a moment to stop.
    copying: Arc<tokio::sync::Mutex<()>>,
}

impl ZfsImages {
    /// Images fetched by `fetched`, in the folder of the configuration, become volumes.
    #[must_use]
    pub fn new(
        config: ZfsImagesConfig,
        fetched: FileImages,
        zfs: Arc<dyn Zfs>,
        devices: Arc<dyn Devices>,
        mounts: Arc<dyn Mounts>,
        clock: SharedClock,
    ) -> Self {
        let (pool, names) = (Pool::new(&config.pool, zfs), Names::new(&config.pool));
        let (turns, copying) = (Turns::default(), Arc::default());
        Self { config, fetched, pool, names, devices, mounts, clock, turns, copying }
    }

    /// Of records and what lies beside them. No image of the file driver is called so.
    fn path(&self, image: ImageUuid, ending: &str) -> PathBuf {
        self.config.folder.join(format!("{}-{image}.{ending}", self.config.pool))
    }

    async fn record(&self, image: ImageUuid) -> Result<Option<Record>, DriverError> {
        let path = self.path(image, "json");
        let Some(content) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&content);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    /// Images that have a record, by UUID.
    async fn recorded(&self) -> Result<Vec<ImageUuid>, DriverError> {
        let start = format!("{}-", self.config.pool);
        let image = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            name.strip_prefix(&start)?.strip_suffix(".json")?.parse().ok()
        };
        Ok(files::list(&self.config.folder).await?.iter().filter_map(image).collect())
    }

    /// The image's volume or file system, if it is whole.
    async fn dataset(&self, image: ImageUuid) -> Result<Option<Row>, DriverError> {
        let (name, snapshot) = (self.names.image(image), self.names.final_snapshot(image));
        let rows = self.pool.rows(&name).await?;
        let is_whole = rows.iter().any(|row| row.name == snapshot);
        let is_it = |row: &Row| {
            row.name == name
                && (row.is_volume() || row.is_filesystem() && row.image() == Some(image))
        };
        Ok(rows.into_iter().find(|row| is_whole && is_it(row)))
    }

    /// As [`Images::get`] says, but without a program: this is asked for every disk that is made.
    async fn is_installed(&self, image: ImageUuid) -> Result<bool, DriverError> {
        Ok(self.record(image).await?.is_some()
            && self.pool.exists(&self.names.final_snapshot(image)).await?)
    }

    /// Where the files of an image of containers are shown while they are written.
    fn place(&self, image: ImageUuid) -> PathBuf {
        self.config.shown.join(image.to_string())
    }

    async fn manifest(&self, image: ImageUuid) -> Result<Value, DriverError> {
        match self.record(image).await? {
            Some(record) => Ok(record.manifest),
            None => self.fetched.manifest(image).await,
        }
    }

    /// Installs what the image builds on, and then the image.
    async fn install_all(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        // Whatever its own record says: that may be damaged.
        let manifest = self.fetched.manifest(image).await?;
        let manifest_of = |other| -> ManifestFuture<'_> { Box::pin(self.manifest(other)) };
        let origins = origins::chain(image, &manifest, &manifest_of).await?;
        for origin in origins.into_iter().rev() {
            let there = async { self.get(origin).await.map(|installed| installed.is_some()) };
            let install = Box::pin(self.install(origin, &|_| (), cancelled));
            self.turns.ensure(origin, cancelled, there, install).await?;
        }
        Box::pin(self.install(image, progress, cancelled)).await
    }

    async fn install(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let share = |percent: u8| {
            let share = u16::from(percent) * FETCH_PERCENT / 100;
            progress(u8::try_from(share).unwrap_or(percent));
        };
        self.fetched.ensure_apart(image, &share, cancelled).await?;
        let gone = || DriverError::failed(format!("install image {image}"), "its file is gone");
        let file = self.fetched.get(image).await?.ok_or_else(gone)?;
        if self.dataset(image).await?.is_none() {
            match file.format == ROOT_FORMAT {
                true => self.copy(image, file.path, cancelled).await?,
                false => self.write(image, &file, cancelled).await?,
            }
        }
        let mut record = self.fetched.record(image).await?.ok_or_else(gone)?;
        record.installed_at = Some(self.clock.wall());
        let record = serde_json::to_vec(&record).expect("a manifest has only string keys");
        files::write(&self.path(image, "json"), &record).await?;
        self.fetched.discard(image).await?;
        progress(100);
        Ok(())
    }

    async fn write(
        &self,
        image: ImageUuid,
        file: &Installed,
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let (partial, name) = (self.names.partial_image(image), self.names.image(image));
        self.remove_left(image).await?;
        let size_bytes = file.size_bytes.next_multiple_of(ALIGNMENT_BYTES);
        let filled = match origin_of(&file.manifest) {
            None => {
                self.pool.create_volume(&partial, size_bytes, self.stamp(image)).await?;
                let content = Source { path: &file.path, format: &file.format };
                self.devices.fill(&partial, content, cancelled).await
            }
            Some(origin) => {
                let make = async {
                    self.clone_of(origin, image, size_bytes).await?;
                    self.apply(&partial, &file.path).await
                };
                let made = cancelled.run_until_cancelled(make).await;
                made.unwrap_or_else(|| Err(super::cancelled(image)))
            }
        };
        if filled.is_err() {
            self.pool.remove(&partial).await?;
        }
        filled?;
        self.pool.snapshot(&[Names::final_of(&partial)]).await?;
        self.pool.rename(&partial, &name).await?;
        self.devices.wait(&name).await
    }

    /// What becomes an image, as its origin is. As long as it is there the origin stays.
    async fn clone_of(
        &self,
        origin: ImageUuid,
        image: ImageUuid,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        let (partial, snapshot) =
            (self.names.partial_image(image), self.names.final_snapshot(origin));
        let cloned = self.turns.wait(origin, async {
            let Some(found) = self.dataset(origin).await?.filter(Row::is_volume) else {
                let text =
                    format!("image {origin}, on which image {image} builds, is no disk here");
                return Err(DriverError::refused(Code::ImageNotInstalled, text));
            };
            self.pool.clone_of(&snapshot, &partial, self.stamp(image)).await?;
            Ok(found.number("volsize").unwrap_or(0))
        });
        if cloned.await? < size_bytes {
            let size = Properties::from([("volsize".to_owned(), size_bytes.to_string())]);
            self.pool.set(&partial, size).await?;
        }
        Ok(())
    }

    async fn apply(&self, volume: &str, file: &Path) -> Result<(), DriverError> {
        self.devices.wait(volume).await?;
        let device = self.open(volume, Access::Write).await?;
        difference::apply(file, device.as_ref()).await
    }

    async fn open(&self, volume: &str, access: Access) -> Result<Arc<dyn Device>, DriverError> {
        let opened = self.devices.open(volume, access).await?;
        opened.ok_or_else(|| DriverError::failed(format!("open {volume}"), "its device is gone"))
    }

    fn stamp(&self, image: ImageUuid) -> Properties {
        let mut properties: Properties = self.config.owner.stamp();
        properties.insert(IMAGE.to_owned(), image.to_string());
        properties
    }

    /// Removes what is here under the image's names.
    async fn remove_left(&self, image: ImageUuid) -> Result<(), DriverError> {
        let (mounts, at) = (Arc::clone(&self.mounts), self.place(image));
        let hide = move |_: &_| {
            mounts.unmount(&at).map_err(|e| Fault::Host(files::failed("unmount", &at, e)))
        };
        trees::beside("unmount an image", (), hide).await?;
        for left in [self.names.partial_image(image), self.names.image(image)] {
            self.pool.remove(&left).await?;
        }
        Ok(())
    }

    /// Copies a folder into a file system.
    async fn copy(
        &self,
        image: ImageUuid,
        from: PathBuf,
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let turn = Arc::clone(&self.copying).lock_owned().await;
        let (partial, name) = (self.names.partial_image(image), self.names.image(image));
        self.remove_left(image).await?;
        let mut properties = self.stamp(image);
        properties.extend(unmounted());
        self.pool.create_filesystem(&partial, properties).await?;
        let (mounts, at, of) = (Arc::clone(&self.mounts), self.place(image), partial.clone());
        let copying = move |stop: &CancellationToken| {
            let failed = |error| Fault::Host(files::failed("mount", &at, error));
            mounts.mount(&of, &at).map_err(failed)?;
            let copied = Measure::of(&from, stop).and_then(|measure| {
                trees::check_room(measure.copy_bytes(false), &at, STAYS_FREE_BYTES)?;
                trees::copy_into(&from, &at, stop)
            });
            mounts.unmount(&at).map_err(failed)?;
            copied
        };
        let copied = tokio::select! {
            copied = trees::beside("copy an image", turn, copying) => copied,
            () = cancelled.cancelled() => Err(super::cancelled(image)),
        };
        if copied.is_err() {
            let _stopped = self.copying.lock().await;
            self.pool.remove(&partial).await?;
        }
        copied?;
        self.pool.snapshot(&[Names::final_of(&partial)]).await?;
        self.pool.rename(&partial, &name).await
    }

    async fn take_away(&self, image: ImageUuid) -> Result<(), DriverError> {
        let dependents = Dependents::of(&self.config.storage.bases().await?, image);
        let mut children = 0;
        for other in self.recorded().await? {
            // Its own record may be damaged, and goes then like any other.
            if other != image
                && let Some(record) = self.record(other).await?
                && origin_of(&record.manifest) == Some(image)
            {
                children += 1;
            }
        }
        super::check_unused(image, dependents, children)?;
        self.check_no_clones(image).await?;
        files::remove(&self.path(image, "json")).await?;
        files::sync_folder(&self.config.folder).await?;
        self.remove_left(image).await?;
        files::remove(&self.path(image, USED)).await?;
        self.fetched.discard(image).await
    }

    /// A clone that is no disk or root of a VM keeps an image as well.
    async fn check_no_clones(&self, image: ImageUuid) -> Result<(), DriverError> {
        let rows = self.pool.rows(&self.names.image(image)).await?;
        let mut clones = rows.iter().filter_map(|row| row.text("clones"));
        let Some(clones) = clones.find(|clones| !clones.is_empty()) else { return Ok(()) };
        let text = format!("image {image} is in use: {clones} is a clone of it");
        Err(DriverError::refused(Code::ImageHasDependentClones, text))
    }

    async fn usage(&self, image: ImageUuid) -> Result<Option<ImageUsage>, DriverError> {
        let record = match self.record(image).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(error) => {
                let error = Chain(&error).to_string();
                tracing::warn!(image_uuid = %image, error, "an image's record is of no use");
                return Ok(None);
            }
        };
        let Some(dataset) = self.dataset(image).await? else { return Ok(None) };
        Ok(Some(ImageUsage {
            image,
            manifest: record.manifest,
            used_bytes: dataset.number("used").unwrap_or(0),
            installed_at: record.installed_at.unwrap_or(Timestamp::UNIX_EPOCH),
            last_used_at: modified_at(&self.path(image, USED)).await?,
            dependents: Dependents::default(),
        }))
    }
}

#[async_trait]
impl Images for ZfsImages {
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError> {
        let Some(record) = self.record(image).await? else { return Ok(None) };
        let Some(dataset) = self.dataset(image).await? else { return Ok(None) };
        let manifest = record.manifest;
        Ok(Some(match record.container {
            Some(container) => Installed {
                manifest,
                path: self.place(image),
                format: ROOT_FORMAT.to_owned(),
                size_bytes: container.size_bytes,
            },
            None => Installed {
                manifest,
                path: self.devices.path(&dataset.name),
                format: "raw".to_owned(),
                size_bytes: dataset.number("volsize").unwrap_or(0),
            },
        }))
    }

    async fn container(&self, image: ImageUuid) -> Result<Option<ContainerImage>, DriverError> {
        let Some(Record { manifest, container: Some(container), .. }) = self.record(image).await?
        else {
            return Ok(None);
        };
        let is_here = self.dataset(image).await?.is_some();
        let (root, runtime) = (self.place(image), container.runtime);
        Ok(is_here.then_some(ContainerImage { manifest, root, runtime }))
    }

    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let there = self.is_installed(image);
        let install = Box::pin(self.install_all(image, progress, cancelled));
        self.turns.ensure(image, cancelled, there, install).await
    }

    async fn list(&self) -> Result<Vec<ImageUsage>, DriverError> {
        let bases = self.config.storage.bases().await?;
        let mut usages = Vec::new();
        for image in self.recorded().await? {
            if let Some(usage) = self.usage(image).await? {
                usages.push(ImageUsage { dependents: Dependents::of(&bases, image), ..usage });
            }
        }
        Ok(usages)
    }

    async fn note_use(&self, image: ImageUuid) -> Result<(), DriverError> {
        touch(&self.path(image, USED), self.clock.wall().into()).await
    }

    async fn pack(
        &self,
        task: &TaskId,
        compression: Compression,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        self.fetched.pack(task, compression, disk).await
    }

    async fn pack_difference(
        &self,
        task: &TaskId,
        compression: Compression,
        origin: ImageUuid,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        self.origin(origin).await?;
        // Nobody writes to an image: it is as its snapshot is.
        let device = self.open(&self.names.image(origin), Access::Read).await?;
        let mut origin = difference::DeviceSource::new(device);
        self.fetched.pack_what_differs(task, compression, &mut origin, disk).await
    }

    async fn origin(&self, image: ImageUuid) -> Result<Installed, DriverError> {
        match (self.get(image).await?, self.record(image).await?) {
            (Some(installed), _) => Ok(installed),
            (None, Some(_)) => Err(origins::no_final_snapshot(image)),
            (None, None) => Err(origins::not_installed(image)),
        }
    }

    async fn publish(&self, task: &TaskId, what: &Publication) -> Result<Value, DriverError> {
        self.fetched.publish(task, what).await
    }

    async fn withdraw(
        &self,
        task: &TaskId,
        url: Option<&Url>,
        image: ImageUuid,
    ) -> Result<(), DriverError> {
        self.fetched.withdraw(task, url, image).await
    }

    async fn drop_packed(&self, task: &TaskId) -> Result<(), DriverError> {
        self.fetched.drop_packed(task).await
    }

    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError> {
        self.turns.wait(image, self.take_away(image)).await
    }
}
