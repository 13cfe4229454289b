//! What the file driver tells about its images. When one was last used is the time of an empty
//! file beside it, so that a create costs no more than one write.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use jiff::Timestamp;
use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use tokio::fs;

use super::ImageUsage;
use super::file::FileImages;
use crate::drivers::storage::Dependents;
use crate::drivers::{DriverError, files};

/// Ending of the name of the file that tells the last use.
pub(super) const USED: &str = "used";

impl FileImages {
    pub(super) async fn note(&self, image: ImageUuid) -> Result<(), DriverError> {
        touch(&self.use_path(image), self.clock.wall().into()).await
    }

    pub(super) async fn usages(&self) -> Result<Vec<ImageUsage>, DriverError> {
        let bases = self.storage.bases().await?;
        let mut usages = Vec::new();
        for image in self.recorded().await? {
            // It may go while the others are looked at.
            let record = match self.record(image).await {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(error) => {
                    let error = Chain(&error).to_string();
                    tracing::warn!(image_uuid = %image, error, "an image's record is of no use");
                    continue;
                }
            };
            let path = self.path(image);
            // Older agents wrote no time; their files have that of their last byte.
            let installed_at = match record.installed_at {
                Some(at) => Some(at),
                None => modified_at(&path).await?,
            };
            usages.push(ImageUsage {
                image,
                manifest: record.manifest,
                used_bytes: match record.container {
                    Some(container) => container.size_bytes,
                    None => files::used_bytes(&path).await?,
                },
                installed_at: installed_at.unwrap_or(Timestamp::UNIX_EPOCH),
                last_used_at: modified_at(&self.use_path(image)).await?,
                dependents: Dependents::of(&bases, image),
            });
        }
        Ok(usages)
    }
}

/// Gives a file this time; made if it is not there.
pub(super) async fn touch(path: &Path, now: SystemTime) -> Result<(), DriverError> {
    let is_new = !path.exists();
    let touch = async {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path).await?;
        let file = file.into_std().await;
        file.set_modified(now)?;
        fs::File::from_std(file).sync_all().await
    };
    touch.await.map_err(|e| files::failed("note a use in", path, e))?;
    match path.parent() {
        Some(folder) if is_new => files::sync_folder(folder).await,
        _ => Ok(()),
    }
}

/// When a file was written last; `None` when there is none.
pub(super) async fn modified_at(path: &Path) -> Result<Option<Timestamp>, DriverError> {
    let modified = async { fs::metadata(path).await?.modified() };
    match modified.await {
        // A time that no calendar has is as good as none.
        Ok(at) => Ok(Timestamp::try_from(at).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(files::failed("look at", path, error)),
    }
}
