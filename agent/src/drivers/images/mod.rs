//! Images at rest on this node, and how they get here.

mod download;
mod file;
mod manifest;
mod repository;
mod room;
pub mod sim;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
mod unpack;

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::DriverError;

pub use file::{FileImages, FileImagesConfig};
pub use repository::{Credentials, sources};

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

/// `ImageNotFound`.
#[must_use]
pub fn not_found(image: ImageUuid, detail: &str) -> DriverError {
    DriverError::refused(Code::ImageNotFound, format!("image {image} was not found{detail}"))
}

/// Checks that the manifest may be installed.
///
/// # Errors
/// `ImageNotActive`.
pub fn check_active(image: ImageUuid, manifest: &Value) -> Result<(), DriverError> {
    let state = manifest.get("state").and_then(Value::as_str).unwrap_or("active");
    let disabled = manifest.get("disabled").and_then(Value::as_bool).unwrap_or(false);
    if state == "active" && !disabled {
        return Ok(());
    }
    let state = if disabled { "disabled" } else { state };
    Err(DriverError::refused(Code::ImageNotActive, format!("image {image} is {state}, not active")))
}

/// The fetch was given up because its task was cancelled.
#[must_use]
pub fn cancelled(image: ImageUuid) -> DriverError {
    DriverError::refused(Code::Cancelled, format!("fetching image {image} was cancelled"))
}
