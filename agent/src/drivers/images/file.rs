//! Images as qcow2 files under `images/`.
//!
//! `<uuid>.qcow2` is the image, `<uuid>.json` its record with the manifest. The record is written
//! last and removed first: an image that has one is whole. `<uuid>.used` has the time of its last use
//! as its own. A download under way is `<uuid>.partial` with
//! `<uuid>.partial.json`; `packed-…` is the file of an image that a task makes here; everything else temporary is `.<name>.tmp` and removed at start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::{ImageUuid, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::download::Download;
use super::manifest::Compression;
use super::pack::{self, DiskSource, Packed};
use super::publish::Publication;
use super::repository::Repository;
use super::turns::Turns;
use super::unpack::{self, Work};
use super::{Credentials, ImageUsage, Images, Installed, manifest, usage};
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
}

/// `<uuid>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) manifest: Value,
    zpool: String,
    source: String,
    #[serde(default)]
    pub(super) installed_at: Option<Timestamp>,
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
        };
        opened.sweep_leftovers().await?;
        Ok(opened)
    }

    pub(super) fn path(&self, image: ImageUuid) -> PathBuf {
        self.folder.join(format!("{image}.qcow2"))
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

    async fn fetch(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let (manifest, source) = self.repository.manifest(image).await?;
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
        let made = unpack::unpack(image, &file, &work, &self.exec, cancelled).await;
        if made.is_err() {
            // What was verified and can't be used won't get better; a full disk needs the space.
            discard(&work).await?;
        }
        let path = self.path(image);
        files::rename(&made?, &path).await?;
        drop(unfinished);
        let source = self.source_names.get(source).cloned().unwrap_or_default();
        let installed_at = Some(self.clock.wall());
        let record = Record { manifest, zpool: self.pool.clone(), source, installed_at };
        let record = serde_json::to_vec(&record).expect("a manifest has only string keys");
        files::write(&self.record_path(image), &record).await?;
        discard(&work).await?;
        progress(100);
        tracing::info!(image_uuid = %image, "image installed");
        Ok(())
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
            let changed = path.metadata().and_then(|found| found.modified()).ok();
            let age = changed.and_then(|changed| now.duration_since(changed).ok());
            age.is_some_and(|age| age > PARTIAL_LIFETIME)
        };
        let partial = name.ends_with(".partial");
        let stale = partial && (old() || !Download::record(&path).exists());
        if temporary || stale {
            tracing::info!(path = %path.display(), "removing what an unfinished install left");
            files::remove(&path).await?;
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

    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        let there = async { self.record(image).await.map(|record| record.is_some()) };
        let fetch = self.fetch(image, progress, cancelled);
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
        files::remove(&pack::path(&self.folder, task)).await
    }

    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError> {
        self.turns.wait(image, self.take_away(image)).await
    }
}
