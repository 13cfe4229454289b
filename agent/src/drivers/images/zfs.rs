//! Images as ZFS volumes with a snapshot `@final`, of which disks are clones.
//!
//! What a repository has is fetched and checked as with the file driver, and written onto a volume
//! under another name, which is renamed once it has its snapshot. The record with the manifest is
//! written last and removed first: an image that has one is whole.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::file::{FileImages, Record};
use super::manifest::Compression;
use super::pack::{DiskSource, Packed};
use super::publish::Publication;
use super::turns::Turns;
use super::usage::{USED, modified_at, touch};
use super::{ContainerImage, ImageUsage, Images, Installed, ROOT_FORMAT, origin_of};
use crate::drivers::storage::zfs::{Devices, IMAGE, Names, Owner, Pool, Row, Source};
use crate::drivers::storage::{Dependents, Storage};
use crate::drivers::zfs::{Properties, Zfs};
use crate::drivers::{DriverError, files};

/// Share of the progress that the fetch takes; writing the volume is the rest, percent.
const FETCH_PERCENT: u16 = 90;
/// Sizes of volumes are multiples of this, whatever blocks a pool gives them, bytes.
const ALIGNMENT_BYTES: u64 = 128 * 1024;

/// Where the driver works.
#[derive(Clone, Debug)]
pub struct ZfsImagesConfig {
    /// The pool.
    pub pool: String,
    /// The folder of the fetched files; records lie there, too.
    pub folder: PathBuf,
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
    clock: SharedClock,
    turns: Turns,
}

impl ZfsImages {
    /// Images fetched by `fetched`, in the folder of the configuration, become volumes.
    #[must_use]
    pub fn new(
        config: ZfsImagesConfig,
        fetched: FileImages,
        zfs: Arc<dyn Zfs>,
        devices: Arc<dyn Devices>,
        clock: SharedClock,
    ) -> Self {
        let (pool, names) = (Pool::new(&config.pool, zfs), Names::new(&config.pool));
        Self { config, fetched, pool, names, devices, clock, turns: Turns::default() }
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

    /// The image's volume, if it is whole.
    async fn volume(&self, image: ImageUuid) -> Result<Option<Row>, DriverError> {
        let (name, snapshot) = (self.names.image(image), self.names.final_snapshot(image));
        let rows = self.pool.rows(&name).await?;
        let is_whole = rows.iter().any(|row| row.name == snapshot);
        Ok(rows.into_iter().find(|row| is_whole && row.is_volume() && row.name == name))
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
        self.fetched.ensure(image, &share, cancelled).await?;
        if self.fetched.container(image).await?.is_some() {
            progress(100);
            return Ok(());
        }
        let gone = || DriverError::failed(format!("install image {image}"), "its file is gone");
        let file = self.fetched.get(image).await?.ok_or_else(gone)?;
        if self.volume(image).await?.is_none() {
            self.write(image, &file, cancelled).await?;
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
        for left in [&partial, &name] {
            self.pool.remove(left).await?;
        }
        let mut properties: Properties = self.config.owner.stamp();
        properties.insert(IMAGE.to_owned(), image.to_string());
        let size_bytes = file.size_bytes.next_multiple_of(ALIGNMENT_BYTES);
        self.pool.create_volume(&partial, size_bytes, properties).await?;
        let content = Source { path: &file.path, format: &file.format };
        let filled = self.devices.fill(&partial, content, cancelled).await;
        if filled.is_err() {
            self.pool.remove(&partial).await?;
        }
        filled?;
        self.pool.snapshot(&[Names::final_of(&partial)]).await?;
        self.pool.rename(&partial, &name).await?;
        self.devices.wait(&name).await
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
        for volume in [self.names.image(image), self.names.partial_image(image)] {
            self.pool.remove(&volume).await?;
        }
        files::remove(&self.path(image, USED)).await?;
        self.fetched.discard(image).await
    }

    /// A clone that is no disk of a VM keeps an image as well.
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
        let Some(volume) = self.volume(image).await? else { return Ok(None) };
        Ok(Some(ImageUsage {
            image,
            manifest: record.manifest,
            used_bytes: volume.number("used").unwrap_or(0),
            installed_at: record.installed_at.unwrap_or(Timestamp::UNIX_EPOCH),
            last_used_at: modified_at(&self.path(image, USED)).await?,
            dependents: Dependents::default(),
        }))
    }
}

#[async_trait]
impl Images for ZfsImages {
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError> {
        let Some(record) = self.record(image).await? else {
            // Images of containers stay what was fetched.
            let fetched = self.fetched.get(image).await?;
            return Ok(fetched.filter(|fetched| fetched.format == ROOT_FORMAT));
        };
        let volume = self.volume(image).await?;
        Ok(volume.map(|volume| Installed {
            manifest: record.manifest,
            path: self.devices.path(&volume.name),
            format: "raw".to_owned(),
            size_bytes: volume.number("volsize").unwrap_or(0),
        }))
    }

    async fn container(&self, image: ImageUuid) -> Result<Option<ContainerImage>, DriverError> {
        self.fetched.container(image).await
    }

    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let there = async { self.get(image).await.map(|installed| installed.is_some()) };
        let install = self.install(image, progress, cancelled);
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
