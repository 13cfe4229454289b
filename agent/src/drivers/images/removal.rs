//! Taking images of the file driver away. The record goes first: from then on the image is not
//! here, and what a crash leaves of it is removed at the next start.

use std::collections::BTreeSet;
use std::path::Path;

use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;

use super::file::FileImages;
use super::origin_of;
use crate::drivers::storage::Dependents;
use crate::drivers::{DriverError, files};

impl FileImages {
    /// To be called by who has the image's turn.
    pub(super) async fn take_away(&self, image: ImageUuid) -> Result<(), DriverError> {
        self.check_unused(image).await?;
        self.discard(image).await
    }

    /// Whatever needs it. To be called by who has the image's turn.
    pub(super) async fn discard(&self, image: ImageUuid) -> Result<(), DriverError> {
        files::remove(&self.record_path(image)).await?;
        files::sync_folder(&self.folder).await?;
        for path in [self.path(image), self.use_path(image)] {
            files::remove(&path).await?;
        }
        self.discard_root(image).await?;
        super::file::discard(&self.work(image)).await?;
        files::sync_folder(&self.folder).await
    }

    /// Takes its name from the root folder before any of its files: one that has it is whole.
    async fn discard_root(&self, image: ImageUuid) -> Result<(), DriverError> {
        let root = self.root(image);
        if !root.exists() {
            return Ok(());
        }
        let scratch = self.scratch(image);
        files::rename(&root, &scratch).await?;
        files::remove_folder(&scratch).await
    }

    async fn check_unused(&self, image: ImageUuid) -> Result<(), DriverError> {
        let dependents = Dependents::of(&self.storage.bases().await?, image);
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
        super::check_unused(image, dependents, children)
    }

    /// Removes what is left of images without a record, unless disks need it all the same.
    pub(super) async fn sweep_leftovers(&self) -> Result<(), DriverError> {
        let mut leftovers = Vec::new();
        for path in files::list(&self.folder).await? {
            match leftover(&path) {
                Some(image) if !self.record_path(image).exists() => leftovers.push((image, path)),
                _ => {}
            }
        }
        if leftovers.is_empty() {
            return Ok(());
        }
        let bases = match self.storage.bases().await {
            Ok(bases) => bases,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "what is left of old images stays");
                return Ok(());
            }
        };
        let mut origins = BTreeSet::new();
        for other in self.recorded().await? {
            match self.record(other).await {
                Ok(record) => origins.extend(record.and_then(|it| origin_of(&it.manifest))),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "what is left of old images stays");
                    return Ok(());
                }
            }
        }
        for (image, path) in leftovers {
            if bases.contains_key(&image) || origins.contains(&image) {
                let path = path.display();
                tracing::warn!(%path, "disks or images need an image that has no record");
                continue;
            }
            tracing::info!(path = %path.display(), "removing what is left of an image");
            match path.is_dir() {
                true => self.discard_root(image).await?,
                false => files::remove(&path).await?,
            }
        }
        Ok(())
    }
}

/// The image that a file belongs to, if it is none without its record.
fn leftover(path: &Path) -> Option<ImageUuid> {
    let kind = path.extension()?.to_str()?;
    let belongs = matches!(kind, "qcow2" | super::ROOT_FORMAT | super::usage::USED);
    belongs.then(|| path.file_stem()?.to_str()?.parse().ok()).flatten()
}
