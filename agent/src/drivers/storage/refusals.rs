//! What is refused of a disk that is asked for, whichever driver makes it, and in which words.

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::units::MIB;
use muster_shared::wire::Code;

use super::{DEFAULT_POOL, DiskSpec};
use crate::drivers::DriverError;

/// The size of a disk that is to be made from an image of `image_bytes`.
///
/// # Errors
/// `InvalidParameters`: there is neither a size nor an image, or the size is 0 or below the
/// image's.
pub fn disk_size(spec: &DiskSpec, image_bytes: Option<u64>) -> Result<u64, DriverError> {
    let refuse = |problem: String| {
        let text = format!("disk {} of VM {}: {problem}", spec.index, spec.vm);
        Err(DriverError::refused(Code::InvalidParameters, text))
    };
    let size_bytes = match (spec.size_mib.map(|mib| mib.checked_mul(MIB)), image_bytes) {
        (Some(None), _) => return refuse("the size is too large".to_owned()),
        (Some(Some(size)), _) => size,
        (None, Some(image)) => image,
        (None, None) => return refuse("a blank disk needs a size".to_owned()),
    };
    match image_bytes {
        _ if size_bytes == 0 => refuse("the size is 0".to_owned()),
        Some(image) if size_bytes < image => refuse(format!(
            "{} MiB is less than the image needs ({} MiB)",
            size_bytes / MIB,
            image.div_ceil(MIB)
        )),
        _ => Ok(size_bytes),
    }
}

/// A size in bytes.
///
/// # Errors
/// `InvalidParameters`: more than can be counted.
pub fn bytes_of(size_mib: u64) -> Result<u64, DriverError> {
    size_mib.checked_mul(MIB).ok_or_else(|| {
        DriverError::refused(Code::InvalidParameters, format!("{size_mib} MiB are too much"))
    })
}

/// `SnapshotNotFound`.
#[must_use]
pub fn snapshot_not_found(vm: VmUuid, name: &str) -> DriverError {
    let text = format!("No snapshot named \"{name}\" for {vm}");
    DriverError::refused(Code::SnapshotNotFound, text)
}

/// `DatasetExists`, in the first of these pools.
#[must_use]
pub fn disk_exists(spec: &DiskSpec, pools: &[String]) -> DriverError {
    let pool = pools.first().map_or(DEFAULT_POOL, String::as_str);
    let text = format!("Dataset {pool}/{}/disk{} exists.", spec.vm, spec.index);
    DriverError::refused(Code::DatasetExists, text)
}

/// The pool of this name. [`DEFAULT_POOL`] is what clients say who know no pools: where none is
/// called so, it is the first one.
#[must_use]
pub fn find_pool<'a>(pools: &'a [String], name: &str) -> Option<&'a str> {
    let found = pools.iter().find(|known| *known == name);
    found.or_else(|| pools.first().filter(|_| name == DEFAULT_POOL)).map(String::as_str)
}

/// What is wrong with the name of a pool that is none, for people.
#[must_use]
pub fn no_pool(name: &str, pools: &[String]) -> String {
    format!("this server has no pool {name:?}, there are {}", pools.join(", "))
}

/// Checks the pool that a disk is to lie in.
///
/// # Errors
/// `InvalidParameters`: it is none of these.
pub fn check_pool(spec: &DiskSpec, pools: &[String]) -> Result<(), DriverError> {
    match &spec.pool {
        Some(name) if !pools.contains(name) => Err(unknown_pool(name, pools)),
        _ => Ok(()),
    }
}

/// `InvalidParameters`.
#[must_use]
pub fn unknown_pool(name: &str, pools: &[String]) -> DriverError {
    DriverError::refused(Code::InvalidParameters, no_pool(name, pools))
}

/// `ImageNotInstalled`.
#[must_use]
pub fn image_not_installed(image: ImageUuid) -> DriverError {
    DriverError::refused(Code::ImageNotInstalled, format!("image {image} is not installed"))
}

/// `NotSupported`.
pub(super) fn not_supported(driver: &str, what: &str) -> DriverError {
    DriverError::refused(Code::NotSupported, format!("storage {driver} can't {what} yet"))
}

/// `StoreFull`.
#[must_use]
pub fn store_full(message: impl Into<String>) -> DriverError {
    DriverError::refused(Code::StoreFull, message)
}
