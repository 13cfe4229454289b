//! Images as qcow2 files and folders under `images/`.
//!
//! `<uuid>.qcow2` is the image of a disk, the folder `<uuid>.root` one of containers, `<uuid>.json` its record with the manifest. The record is written
//! last and removed first: an image that has one is whole. `<uuid>.used` has the time of its last use
//! as its own. A download under way is `<uuid>.partial` with
//! `<uuid>.partial.json`; `packed-…` is the file of an image that a task makes here; everything else temporary is `.<name>.tmp` and removed at start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::download::Download;
use super::manifest::{Compression, Format, ImageFile};
use super::origins::ManifestFuture;
use super::pack::{self, DiskSource, Packed};
use super::publish::Publication;
use super::repository::Repository;
use super::turns::Turns;
use super::unpack::{self, Work};
use super::{
    ContainerImage, Credentials, ImageUsage, Images, Installed, ROOT_FORMAT, RuntimeConfig,
    difference, manifest, oci, origins, usage,
};
use crate::drivers::storage::{IMAGES, Storage, qcow2};
use crate::drivers::{DriverError, files};
use crate::host::SharedExec;

/// A partial download that nobody has continued for this long is removed at start.
const PARTIAL_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Share of the progress that the download takes; unpacking is the rest, percent.
const DOWNLOAD_PERCENT: u8 = 90;

/// Where the driver works.
#[derive(Clone, Debug)]
pub struct FileImagesConfig {
    /// The storage folder; images lie in `images/` under it.
    pub storage_dir: PathBuf,
    /// Base URLs of the repositories, see [`super::sources`].
    pub sources: Vec<Url>,
    /// For those of them that are coordinators.
    pub credentials: Credentials,
    /// Recorded with each image.
    pub pool: String,
    /// Knows the disks that are based on images.
    pub storage: Arc<dyn Storage>,
}

/// The driver for nodes with storage `file`.
#[derive(Debug)]
pub struct FileImages {
    pub(super) folder: PathBuf,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) clock: SharedClock,
    pool: String,
    source_names: Vec<String>,
    repository: Repository,
    exec: SharedExec,
    turns: Turns,
    scratches: AtomicU64,
}

/// What becomes of the file of an image that builds on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// It lies over the file of that one.
    Origin,
    /// It is for somebody else, who has that one.
    None,
}

/// `<uuid>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) manifest: Value,
    zpool: String,
    source: String,
    #[serde(default)]
    pub(super) installed_at: Option<Timestamp>,
    /// Of an image of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<Container>,
}

/// What a record says of an image of containers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Container {
    pub(super) runtime: RuntimeConfig,
    /// All that its files hold, bytes.
    pub(super) size_bytes: u64,
}

impl FileImages {
    /// Opens the driver, makes its folder and removes what crashes left there.
    ///
    /// # Errors
    /// The folder could not be made or read.
    pub async fn open(
        config: FileImagesConfig,
        exec: SharedExec,
        clock: &SharedClock,
        entropy: SharedEntropy,
    ) -> Result<Self, DriverError> {
        let folder = config.storage_dir.join(IMAGES);
        files::make_folder(&folder).await?;
        sweep(&folder, clock).await?;
        let opened = Self {
            folder,
            storage: config.storage,
            clock: clock.clone(),
            pool: config.pool,
            source_names: config.sources.iter().map(Url::to_string).collect(),
            repository: Repository::new(config.sources, config.credentials, entropy)?,
            exec,
            turns: Turns::default(),
            scratches: AtomicU64::new(0),
        };
        opened.sweep_leftovers().await?;
        Ok(opened)
    }

    pub(super) fn path(&self, image: ImageUuid) -> PathBuf {
        self.folder.join(format!("{image}.qcow2"))
    }

    /// The folder of an image of containers.
    pub(super) fn root(&self, image: ImageUuid) -> PathBuf {
        self.path(image).with_extension(ROOT_FORMAT)
    }

    async fn existing_root(&self, image: ImageUuid) -> Result<PathBuf, DriverError> {
        let root = self.root(image);
        match tokio::fs::metadata(&root).await {
            Ok(found) if found.is_dir() => Ok(root),
            Ok(_) => {
                Err(DriverError::failed(format!("open {}", root.display()), "it is no folder"))
            }
            Err(error) => Err(files::failed("open", &root, error)),
        }
    }

    pub(super) fn record_path(&self, image: ImageUuid) -> PathBuf {
        self.path(image).with_extension("json")
    }

    /// The file whose time is that of the last use.
    pub(super) fn use_path(&self, image: ImageUuid) -> PathBuf {
        self.path(image).with_extension(usage::USED)
    }

    /// Images that have a record, by UUID.
    pub(super) async fn recorded(&self) -> Result<Vec<ImageUuid>, DriverError> {
        let paths = files::list(&self.folder).await?;
        let records = paths.iter().filter(|path| path.extension().is_some_and(|e| e == "json"));
        Ok(records.filter_map(|path| path.file_stem()?.to_str()?.parse().ok()).collect())
    }

    pub(super) async fn record(&self, image: ImageUuid) -> Result<Option<Record>, DriverError> {
        let path = self.record_path(image);
        let Some(content) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&content);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    /// What is said of an image here, or else in its repository.
    pub(super) async fn manifest(&self, image: ImageUuid) -> Result<Value, DriverError> {
        match self.record(image).await? {
            Some(record) => Ok(record.manifest),
            None => self.repository.manifest(image).await.map(|(manifest, _)| manifest),
        }
    }

    /// Fetches what the image builds on, and then the image.
    async fn fetch(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let (manifest, source) = self.repository.manifest(image).await?;
        manifest::parse(image, &manifest)?;
        let manifest_of = |other| -> ManifestFuture<'_> { Box::pin(self.manifest(other)) };
        let origins = origins::chain(image, &manifest, &manifest_of).await?;
        for origin in origins.into_iter().rev() {
            let there = async { self.record(origin).await.map(|record| record.is_some()) };
            let fetch = Box::pin(async {
                let found = self.repository.manifest(origin).await?;
                self.fetch_one(origin, found, Backing::Origin, &|_| (), cancelled).await
            });
            self.turns.ensure(origin, cancelled, there, fetch).await?;
        }
        let found = (manifest, source);
        Box::pin(self.fetch_one(image, found, Backing::Origin, progress, cancelled)).await
    }

    /// As [`Images::ensure`]; of an image that builds on another one the file alone, which is none of a
    /// disk.
    pub(super) async fn ensure_apart(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let there = async { self.record(image).await.map(|record| record.is_some()) };
        let fetch = Box::pin(async {
            let found = self.repository.manifest(image).await?;
            self.fetch_one(image, found, Backing::None, progress, cancelled).await
        });
        self.turns.ensure(image, cancelled, there, fetch).await
    }

    async fn fetch_one(
        &self,
        image: ImageUuid,
        (manifest, source): (Value, usize),
        backing: Backing,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let file = manifest::parse(image, &manifest)?;
        let work = self.work(image);
        progress(0);
        let download = Download {
            repository: &self.repository,
            image,
            file: &file,
            source,
            partial: work.partial.clone(),
            progress: &|percent| {
                let share = u16::from(percent) * u16::from(DOWNLOAD_PERCENT) / 100;
                progress(u8::try_from(share).unwrap_or(DOWNLOAD_PERCENT));
            },
        };
        download.run().await?;
        drop(download);
        let unfinished = Unfinished(&work);
        // On the heap, as everything that waits for a turn within another one: it is large.
        let install = Box::pin(async {
            let made = match file.format {
                Format::Container => self.make_root(image, &file, &work, progress, cancelled).await,
                _ => self.make_disk(image, &file, &work, backing, cancelled).await,
            };
            if made.is_err() {
                // What was verified and can't be used won't get better; a full disk needs the space.
                discard(&work).await?;
            }
            let (container, installed_at) = (made?, Some(self.clock.wall()));
            let source = self.source_names.get(source).cloned().unwrap_or_default();
            let zpool = self.pool.clone();
            let record = Record { manifest, zpool, source, installed_at, container };
            let record = serde_json::to_vec(&record).expect("a manifest has only string keys");
            files::write(&self.record_path(image), &record).await
        });
        match file.origin.filter(|_| backing == Backing::Origin) {
            // Its origin does not go until the record says that it is needed.
            Some(origin) => self.turns.wait(origin, install).await?,
            None => install.await?,
        }
        drop(unfinished);
        discard(&work).await?;
        progress(100);
        tracing::info!(image_uuid = %image, "image installed");
        Ok(())
    }

    async fn make_disk(
        &self,
        image: ImageUuid,
        file: &ImageFile,
        work: &Work,
        backing: Backing,
        cancelled: &CancellationToken,
    ) -> Result<Option<Container>, DriverError> {
        let made = unpack::unpack(image, file, work, &self.exec, cancelled).await?;
        let path = self.path(image);
        files::rename(&made, &path).await?;
        if let Some(origin) = file.origin.filter(|_| backing == Backing::Origin) {
            if self.record(origin).await?.is_none() {
                let text = format!("image {origin}, on which image {image} builds, was removed");
                return Err(DriverError::refused(Code::ImageNotInstalled, text));
            }
            // Under its name: as long as it has another one, it is to be what was downloaded.
            unpack::lay_over(&path, &self.path(origin), &self.exec, cancelled).await?;
        }
        Ok(None)
    }

    async fn make_root(
        &self,
        image: ImageUuid,
        file: &ImageFile,
        work: &Work,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<Option<Container>, DriverError> {
        let archive = unpack::plain(image, file, work).await?;
        let (root, scratch) = (self.root(image), self.scratch(image));
        let share = |percent: u8| progress(DOWNLOAD_PERCENT + percent / 10);
        let unpacked = oci::unpack(archive, &scratch, cancelled.clone(), &share).await;
        let unpacked = unpacked.map_err(|fault| oci::refusal(image, fault))?;
        if root.exists() {
            // It has its name since it was whole, and containers may lie over it.
            files::remove_folder(&scratch).await?;
        } else {
            files::rename(&scratch, &root).await?;
        }
        unpacked.folder.keep();
        let (runtime, size_bytes) = (unpacked.runtime, unpacked.size_bytes);
        Ok(Some(Container { runtime, size_bytes }))
    }

    /// From what the origin holds, however it is kept.
    pub(super) async fn pack_what_differs(
        &self,
        task: &TaskId,
        compression: Compression,
        origin: &mut dyn DiskSource,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        difference::pack(&pack::path(&self.folder, task), compression, origin, disk).await
    }

    /// Where a root folder is while it is made or removed, each time another one: an attempt that was
    /// given up may still be at work.
    pub(super) fn scratch(&self, image: ImageUuid) -> PathBuf {
        let count = self.scratches.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!(".{image}.{count}.{ROOT_FORMAT}.tmp"))
    }

    pub(super) fn work(&self, image: ImageUuid) -> Work {
        Work {
            partial: self.folder.join(format!("{image}.partial")),
            unpacked: self.folder.join(format!(".{image}.unpacked.tmp")),
            converted: self.folder.join(format!(".{image}.qcow2.tmp")),
        }
    }
}

/// Removes what an install has unpacked when it goes out of scope: it is cancelled by being
/// dropped. Not as a task of its own, which could come after the next attempt has begun.
struct Unfinished<'a>(&'a Work);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for path in [&self.0.unpacked, &self.0.converted] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "what was unpacked stays");
                }
                Ok(()) | Err(_) => {}
            }
        }
    }
}

pub(super) async fn discard(work: &Work) -> Result<(), DriverError> {
    for path in [&work.partial, &work.unpacked, &work.converted] {
        files::remove(path).await?;
    }
    files::remove(&Download::record(&work.partial)).await
}

/// Removes temporary files, and partial downloads that are old or have no record.
async fn sweep(folder: &Path, clock: &SharedClock) -> Result<(), DriverError> {
    let now: std::time::SystemTime = clock.wall().into();
    for path in files::list(folder).await? {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let temporary = name.starts_with('.') && name.ends_with(".tmp");
        let old = || {
            let changed = path.symlink_metadata().and_then(|found| found.modified()).ok();
            let age = changed.and_then(|changed| now.duration_since(changed).ok());
            age.is_some_and(|age| age > PARTIAL_LIFETIME)
        };
        let partial = name.ends_with(".partial");
        let stale = partial && (old() || !Download::record(&path).exists());
        if temporary || stale {
            tracing::info!(path = %path.display(), "removing what an unfinished install left");
            match path.is_dir() {
                true => files::remove_folder(&path).await?,
                false => files::remove(&path).await?,
            }
            if stale {
                files::remove(&Download::record(&path)).await?;
            }
        }
    }
    Ok(())
}

#[async_trait]
impl Images for FileImages {
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError> {
        let Some(record) = self.record(image).await? else { return Ok(None) };
        if let Some(container) = record.container {
            let (manifest, path) = (record.manifest, self.existing_root(image).await?);
            let (format, size_bytes) = (ROOT_FORMAT.to_owned(), container.size_bytes);
            return Ok(Some(Installed { manifest, path, format, size_bytes }));
        }
        let path = self.path(image);
        let header_bytes = u64::try_from(qcow2::HEADER_BYTES).unwrap_or(u64::MAX);
        let start = files::head(&path, header_bytes).await?;
        let size_bytes = match qcow2::parse(&start) {
            Ok(Some(header)) => header.size_bytes,
            Ok(None) | Err(_) => {
                let action = format!("read the header of {}", path.display());
                return Err(DriverError::failed(action, "it is not a usable qcow2 file"));
            }
        };
        let format = "qcow2".to_owned();
        Ok(Some(Installed { manifest: record.manifest, path, format, size_bytes }))
    }

    async fn container(&self, image: ImageUuid) -> Result<Option<ContainerImage>, DriverError> {
        let Some(Record { manifest, container: Some(container), .. }) = self.record(image).await?
        else {
            return Ok(None);
        };
        let root = self.existing_root(image).await?;
        Ok(Some(ContainerImage { manifest, root, runtime: container.runtime }))
    }

    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let there = async { self.record(image).await.map(|record| record.is_some()) };
        let fetch = Box::pin(self.fetch(image, progress, cancelled));
        self.turns.ensure(image, cancelled, there, fetch).await
    }

    async fn list(&self) -> Result<Vec<ImageUsage>, DriverError> {
        self.usages().await
    }

    async fn note_use(&self, image: ImageUuid) -> Result<(), DriverError> {
        self.note(image).await
    }

    async fn pack(
        &self,
        task: &TaskId,
        compression: Compression,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        pack::pack(&pack::path(&self.folder, task), compression, disk).await
    }

    async fn pack_difference(
        &self,
        task: &TaskId,
        compression: Compression,
        origin: ImageUuid,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        let mut origin = difference::ContentSource::open(&self.origin(origin).await?.path).await?;
        self.pack_what_differs(task, compression, &mut origin, disk).await
    }

    async fn publish(&self, task: &TaskId, what: &Publication) -> Result<Value, DriverError> {
        self.repository.publish(task, what, &pack::path(&self.folder, task)).await
    }

    async fn withdraw(
        &self,
        task: &TaskId,
        url: Option<&Url>,
        image: ImageUuid,
    ) -> Result<(), DriverError> {
        self.repository.withdraw(task, url, image).await
    }

    async fn drop_packed(&self, task: &TaskId) -> Result<(), DriverError> {
        let packed = pack::path(&self.folder, task);
        files::remove(&files::temporary(&packed)).await?;
        files::remove(&packed).await
    }

    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError> {
        self.turns.wait(image, self.take_away(image)).await
    }
}
