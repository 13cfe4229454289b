//! Notes about a guest's process: files in its run folder, which need not survive a power cut.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

/// What a note says; `None` when there is none, or none that is whole.
///
/// # Errors
/// The file system failed.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(json) => Ok(serde_json::from_slice(&json).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a note, whole or not at all.
///
/// # Errors
/// The file system failed.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, content)?;
    std::fs::rename(&fresh, path)
}

/// The outcome of a removal, of which a missing file is none that failed.
///
/// # Errors
/// The removal's, but that there was nothing.
pub(super) fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
