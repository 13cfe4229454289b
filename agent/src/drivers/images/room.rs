//! Keeps an image from taking the disk's last space, which the task journal and the guests'
//! disks need: without it not even the failure could be recorded.

use std::path::{Path, PathBuf};

use crate::drivers::{DriverError, files, storage};

/// Space left free beside an image, bytes. More than the journal's own reserve, so that the task
/// fails for want of space while the journal can still say so.
const RESERVE_BYTES: u64 = 24 * 1024 * 1024;
/// Files that can still be made beside an image.
const RESERVE_FILES: u64 = 1024;
/// The disk is looked at once per so many written bytes.
const STRIDE_BYTES: u64 = 1024 * 1024;

/// Refuses when `path`'s file system can't take `needed_bytes` and keep its reserve. `what` names
/// the file for the message.
pub(super) fn check(path: &Path, needed_bytes: u64, what: &str) -> Result<(), DriverError> {
    let free_bytes = files::space(path)?.available_bytes;
    if needed_bytes.saturating_add(RESERVE_BYTES) <= free_bytes {
        return Ok(());
    }
    Err(storage::store_full(format!(
        "no space for {what}: it needs {needed_bytes} bytes more and {RESERVE_BYTES} must stay \
         free, {free_bytes} are free"
    )))
}

/// Refuses when `path`'s file system can't take so many files more and keep some for others.
pub(super) fn check_files(path: &Path, needed: u64, what: &str) -> Result<(), DriverError> {
    let found = nix::sys::statvfs::statvfs(path)
        .map_err(|error| files::failed("read the free space of", path, error.into()))?;
    // Those of 0 make files as long as there is space.
    let free = found.files_available();
    if found.files() == 0 || needed.saturating_add(RESERVE_FILES) <= free {
        return Ok(());
    }
    Err(storage::store_full(format!(
        "no space for {what}: it has {needed} files, and {RESERVE_FILES} more must stay possible \
         beside the {free} that there can be"
    )))
}

/// Looks at the disk while a file of unknown size grows.
#[derive(Debug)]
pub(crate) struct Room {
    path: PathBuf,
    unchecked_bytes: u64,
}

impl Room {
    /// For the growing file `path`, which exists.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), unchecked_bytes: 0 }
    }

    /// Says that `bytes` are about to be written.
    ///
    /// # Errors
    /// `StoreFull` when they would touch the reserve.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), DriverError> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.unchecked_bytes = self.unchecked_bytes.saturating_add(bytes);
        if self.unchecked_bytes < STRIDE_BYTES {
            return Ok(());
        }
        self.unchecked_bytes = 0;
        check(&self.path, STRIDE_BYTES, &self.path.display().to_string())
    }
}
