//! Which volume of ZFS a block device is.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::libc;

use super::syscalls;

/// The volume that a device is, as its pool calls it; `None`: it is none, or is not there.
///
/// # Errors
/// The device could not be opened.
pub fn name(device: &Path) -> io::Result<Option<String>> {
    let named = File::open(device).and_then(|device| syscalls::volume_of(&device));
    match named {
        Ok(name) => Ok(String::from_utf8(name).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOTTY)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_volume_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(name(&folder.path().join("gone")).unwrap(), None);
        for other in [folder.path(), Path::new("/dev/null")] {
            assert_eq!(name(other).unwrap(), None, "{}", other.display());
        }
    }
}
