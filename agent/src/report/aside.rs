//! Task journals that could not be read and were moved aside, see `tasks::folder`.

use std::io;
use std::path::{Path, PathBuf};

/// Start of the names of their folders.
pub const ASIDE: &str = "journal.corrupt.";

/// The journals that were moved aside and are still there.
///
/// # Errors
/// The data folder can't be read.
pub fn aside(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            found.push(entry.path());
        }
    }
    Ok(found)
}
