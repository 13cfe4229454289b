//! Images at rest on this node, and how they get here.

#[cfg(test)]
mod conformance;
mod container;
mod difference;
mod download;
mod file;
#[cfg(test)]
mod incremental_tests;
pub mod manifest;
mod oci;
pub mod origins;
pub mod pack;
pub mod publish;
mod removal;
mod repository;
pub(super) mod room;
pub mod sim;
mod snapshot;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
mod turns;
mod unpack;
mod usage;
mod zfs;

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::manifest::Compression;
use self::pack::{DiskSource, Packed};
use self::publish::Publication;
use super::DriverError;
use super::storage::Dependents;
use super::untar::Fault;

pub use container::{ContainerImage, RuntimeConfig};
pub use file::{FileImages, FileImagesConfig};
pub use repository::{Credentials, sources};
pub use snapshot::VolumeSource;
pub use zfs::{ZfsImages, ZfsImagesConfig};

/// An image on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    /// Its IMGAPI manifest.
    pub manifest: Value,
    /// The file disks are based on, or the folder that containers are.
    pub path: PathBuf,
    /// Format as QEMU names it, or [`ROOT_FORMAT`].
    pub format: String,
    /// Virtual size of a disk, or all that the files of a container hold, bytes.
    pub size_bytes: u64,
}

/// Format of an installed image of containers.
pub const ROOT_FORMAT: &str = "root";

/// An image on this node, and who needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageUsage {
    /// The image.
    pub image: ImageUuid,
    /// Its IMGAPI manifest.
    pub manifest: Value,
    /// Space it takes, bytes.
    pub used_bytes: u64,
    /// When it came here.
    pub installed_at: Timestamp,
    /// When a disk was made from it last.
    pub last_used_at: Option<Timestamp>,
    /// What is based on it.
    pub dependents: Dependents,
}

impl ImageUsage {
    /// The image that this one builds on.
    #[must_use]
    pub fn origin(&self) -> Option<ImageUuid> {
        origin_of(&self.manifest)
    }
}

/// Holds images.
#[async_trait]
pub trait Images: fmt::Debug + Send + Sync + 'static {
    /// The image, if it is here whole.
    ///
    /// # Errors
    /// The host could not be read.
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError>;

    /// The root folder of an image of containers and how they are run, if it is here whole; none for
    /// an image of a disk, which [`Images::get`] tells from one that is not here.
    ///
    /// # Errors
    /// The host could not be read.
    async fn container(&self, image: ImageUuid) -> Result<Option<ContainerImage>, DriverError>;

    /// Fetches the image unless it is here, after those that it builds on: manifest, file (resuming an
    /// earlier attempt), size and checksum, conversion, rename. One fetch per image at a time. `progress` gets 0 to 100.
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

    /// Every image here, by UUID.
    ///
    /// # Errors
    /// The host could not be read.
    async fn list(&self) -> Result<Vec<ImageUsage>, DriverError>;

    /// Notes that a disk is being made from the image. Durable when it returns.
    ///
    /// # Errors
    /// The host failed.
    async fn note_use(&self, image: ImageUuid) -> Result<(), DriverError>;

    /// Packs a disk into a file for [`Images::publish`], in place of one that the task packed before.
    /// Durable when it returns.
    ///
    /// # Errors
    /// `StoreFull`; the disk could not be read; `NotSupported` by a driver that can't.
    async fn pack(
        &self,
        task: &TaskId,
        compression: Compression,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError>;

    /// Packs what differs between an image and a disk, as [`Images::pack`] does a disk. Of what the two
    /// have in common nothing is packed.
    ///
    /// # Errors
    /// As there; as [`Images::origin`].
    async fn pack_difference(
        &self,
        task: &TaskId,
        compression: Compression,
        origin: ImageUuid,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError>;

    /// An image that others are to build on.
    ///
    /// # Errors
    /// `OriginNotInstalled`; `OriginHasNoFinalSnapshot` in a pool of ZFS; the host could not be read.
    async fn origin(&self, image: ImageUuid) -> Result<Installed, DriverError> {
        self.get(image).await?.ok_or_else(|| origins::not_installed(image))
    }

    /// Publishes an image with the file that the task packed; returns its manifest, as the repository
    /// has it. May be repeated.
    ///
    /// # Errors
    /// `ImageUuidAlreadyExists`: another one has its uuid; `InvalidManifest`: the repository refuses
    /// it; `UploadError`: it does not answer as it should.
    async fn publish(&self, task: &TaskId, what: &Publication) -> Result<Value, DriverError>;

    /// Removes an image from its repository, if the task has published it or begun to.
    ///
    /// # Errors
    /// `UploadError`.
    async fn withdraw(
        &self,
        task: &TaskId,
        url: Option<&Url>,
        image: ImageUuid,
    ) -> Result<(), DriverError>;

    /// Removes the file that a task packed; none is no error.
    ///
    /// # Errors
    /// The host failed.
    async fn drop_packed(&self, task: &TaskId) -> Result<(), DriverError>;

    /// Removes the image and what a failed fetch left of it; a missing one is no error. Whoever
    /// calls it sees to it that nobody is about to make a disk from it, see
    /// [`Lock::Image`](crate::tasks::Lock::Image).
    ///
    /// # Errors
    /// `ImageHasDependentClones` while disks or other images need it: nothing was removed then.
    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError>;
}

/// Unpacks the file of an image of containers as an install does, with a bound of its own, to the new folder
/// `root`; returns the bytes written. For whoever wants to see what comes out.
///
/// # Errors
/// As of an install; no folder is left then.
pub fn try_unpack(from: &Path, root: &Path, most_bytes: u64) -> Result<u64, Fault> {
    oci::unpack_within(from, root, most_bytes)
}

/// The image that one of this manifest builds on.
#[must_use]
pub fn origin_of(manifest: &Value) -> Option<ImageUuid> {
    manifest.get("origin")?.as_str()?.to_ascii_lowercase().parse().ok()
}

/// Checks that nothing needs the image: no disk, and none of the other images (`children` build on
/// it).
///
/// # Errors
/// `ImageHasDependentClones`.
pub fn check_unused(
    image: ImageUuid,
    dependents: Dependents,
    children: usize,
) -> Result<(), DriverError> {
    let mut users = Vec::new();
    if dependents.disks > 0 {
        let (vms, disks) = (counted(dependents.vms, "VM"), counted(dependents.disks, "disk"));
        users.push(format!("{vms} ({disks})"));
    }
    if children > 0 {
        users.push(format!("{} of which it is the origin", counted(children, "other image")));
    }
    if users.is_empty() {
        return Ok(());
    }
    let text = format!("image {image} is in use by {}", users.join(" and "));
    Err(DriverError::refused(Code::ImageHasDependentClones, text))
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
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
