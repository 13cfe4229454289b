//! Room that is kept so that a full pool can be emptied: tasks that free more are written down in
//! it.

use std::path::{Path, PathBuf};

use muster_shared::units::MIB;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::drivers::storage::RESERVE_BYTES;
use crate::drivers::{DriverError, files};

/// Free beside it once it is taken; a pool with less is as good as full, bytes.
const BESIDE_BYTES: u64 = 64 * MIB;

/// The file that takes the room.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self { path: data_dir.join("reserve") }
    }

    /// Takes the room, unless it is taken already or there is too little; whether it is taken now.
    pub(super) fn keep(&self) -> Result<bool, DriverError> {
        let failed = |error| files::failed("keep room in", &self.path, error);
        if self.is_kept().map_err(failed)? {
            return Ok(true);
        }
        let folder = self.path.parent().unwrap_or(&self.path);
        if files::space(folder)?.available_bytes < RESERVE_BYTES + BESIDE_BYTES {
            return Ok(false);
        }
        let taken = || {
            let file = std::fs::File::create(&self.path)?;
            let bytes = i64::try_from(RESERVE_BYTES).unwrap_or(i64::MAX);
            match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => Ok(true),
                // A file system without such files: there is no reserve then.
                Err(nix::errno::Errno::EOPNOTSUPP) => {
                    tracing::debug!(path = %self.path.display(), "no room can be kept here");
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            }
        };
        taken().map_err(failed)
    }

    /// Gives it back; false when it was not taken.
    pub(super) fn lend(&self) -> Result<bool, DriverError> {
        let failed = |error| files::failed("give back room of", &self.path, error);
        if !self.is_kept().map_err(failed)? {
            return Ok(false);
        }
        let file = std::fs::OpenOptions::new().write(true).open(&self.path);
        file.and_then(|file| file.set_len(0)).map_err(failed)?;
        Ok(true)
    }

    fn is_kept(&self) -> std::io::Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(file) => Ok(file.len() > 0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_lent_and_kept_again() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(folder.path());
        let bytes = || std::fs::metadata(folder.path().join("reserve")).unwrap().len();
        assert!(!reserve.lend().unwrap());
        assert!(reserve.keep().unwrap());
        assert_eq!(bytes(), RESERVE_BYTES);
        assert!(reserve.lend().unwrap());
        assert_eq!(bytes(), 0);
        assert!(!reserve.lend().unwrap());
        reserve.keep().unwrap();
        assert_eq!(bytes(), RESERVE_BYTES);
    }
}
