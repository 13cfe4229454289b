//! Room that is kept on a file system, so that a full one can be emptied: what frees more is
//! written down in it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// Bytes that an unprivileged process may still write on the file system of `path`.
///
/// # Errors
/// The system's.
pub fn available_bytes(path: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(path)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

/// A file named `reserve` that takes the room.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    bytes: u64,
    beside_bytes: u64,
}

impl Reserve {
    /// A reserve of `bytes` in `folder`, kept only where `beside_bytes` more are free: with less the
    /// file system is as good as full. Nothing is taken yet.
    #[must_use]
    pub fn new(folder: &Path, bytes: u64, beside_bytes: u64) -> Self {
        Self { path: folder.join("reserve"), bytes, beside_bytes }
    }

    /// Takes the room, unless it is taken already or there is too little; whether it is taken now.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(&self) -> io::Result<bool> {
        if self.is_kept()? {
            return Ok(true);
        }
        let folder = self.path.parent().unwrap_or(&self.path);
        if available_bytes(folder)? < self.bytes.saturating_add(self.beside_bytes) {
            return Ok(false);
        }
        let file = File::create(&self.path)?;
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(true),
            // A file system without such files: there is no reserve then.
            Err(Errno::EOPNOTSUPP) => {
                tracing::debug!(path = %self.path.display(), "no room can be kept here");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives it back; false when it was not taken.
    ///
    /// # Errors
    /// The system's.
    pub fn lend(&self) -> io::Result<bool> {
        if !self.is_kept()? {
            return Ok(false);
        }
        File::options().write(true).open(&self.path)?.set_len(0)?;
        Ok(true)
    }

    fn is_kept(&self) -> io::Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(file) => Ok(file.len() > 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1024 * 1024;

    #[test]
    fn room_is_kept_lent_and_kept_again() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(folder.path(), BYTES, 0);
        let bytes = || std::fs::metadata(folder.path().join("reserve")).unwrap().len();
        assert!(!reserve.lend().unwrap());
        assert!(reserve.keep().unwrap());
        assert_eq!(bytes(), BYTES);
        assert!(reserve.lend().unwrap());
        assert_eq!(bytes(), 0);
        assert!(!reserve.lend().unwrap());
        reserve.keep().unwrap();
        assert_eq!(bytes(), BYTES);
    }

    #[test]
    fn none_is_kept_where_there_is_little() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(folder.path(), BYTES, u64::MAX);
        assert!(!reserve.keep().unwrap());
        assert!(!folder.path().join("reserve").exists());
    }
}
