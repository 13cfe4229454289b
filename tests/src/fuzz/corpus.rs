//! The inputs in the tree: `tests/corpora/TARGET/`. Those whose names begin with `found-` once
//! broke something.

use std::path::PathBuf;

use super::Target;
use crate::repository;

/// Longest input in the tree, bytes.
pub const MAX_FILE_BYTES: usize = 16 * 1024;

/// An input in the tree.
#[derive(Clone, Debug)]
pub struct Input {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub bytes: Vec<u8>,
}

/// Folder of a target's inputs.
#[must_use]
pub fn folder(target: &Target) -> PathBuf {
    repository().join("tests/corpora").join(target.name)
}

/// A target's inputs, in the order of their names.
///
/// # Panics
/// If there are none, or one is too long to be in the tree.
#[must_use]
pub fn inputs(target: &Target) -> Vec<Input> {
    let folder = folder(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(bytes.len() <= MAX_FILE_BYTES, "{} is too long", path.display());
        Input { path, bytes }
    };
    paths.into_iter().map(read).collect()
}
