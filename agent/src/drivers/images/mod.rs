//! Images at rest on this node, and how they get here.

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use muster_shared::ids::ImageUuid;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::DriverError;

/// An image on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    /// Its IMGAPI manifest.
    pub manifest: Value,
    /// The file disks are based on.
    pub path: PathBuf,
    /// Format as QEMU names it.
    pub format: String,
    /// Virtual size, bytes.
    pub size_bytes: u64,
}

/// Holds images.
#[async_trait]
pub trait Images: fmt::Debug + Send + Sync + 'static {
    /// The image, if it is here whole.
    ///
    /// # Errors
    /// The host could not be read.
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError>;

    /// Fetches the image unless it is here: manifest, file (resuming an earlier attempt), size and
    /// checksum, conversion, rename. One fetch per image at a time. `progress` gets 0 to 100.
    ///
    /// # Errors
    /// `ImageNotFound`, `ImageNotActive`, `ImageChecksum`, `StoreFull`; a failed fetch leaves at
    /// most a partial file for the next attempt.
    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError>;

    /// Every image here.
    ///
    /// # Errors
    /// The host could not be read.
    async fn list(&self) -> Result<Vec<ImageUuid>, DriverError>;
}
