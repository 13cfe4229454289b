//! Whether a process has a disk open. QEMU and its tools lock what they open, so that nobody else
//! changes it; a disk that is locked is not removed under them.

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Whether any process holds a lock on the file. A missing file is not held.
pub(super) fn is_held(path: &Path) -> io::Result<bool> {
    match std::fs::File::open(path) {
        Ok(file) => is_locked(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same of a block device, which the kernel may have claimed as well, for a file system on it or a
/// device on top of it.
pub(super) fn is_device_held(path: &Path) -> io::Result<bool> {
    // Without O_CREAT it asks whether the device is claimed.
    match std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path) {
        Ok(file) => is_locked(&file),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        // A volume whose content can't be told, for want of its key, has a name and no device.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_locked(file: &std::fs::File) -> io::Result<bool> {
    let word = |number: libc::c_int| libc::c_short::try_from(number).unwrap_or_default();
    // The lock that would exclude everybody from the whole file: is there one in its way?
    let mut lock = libc::flock {
        l_type: word(libc::F_WRLCK),
        l_whence: word(libc::SEEK_SET),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != word(libc::F_UNLCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_others_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0.qcow2");
        assert!(!is_held(&path).unwrap());
        std::fs::write(&path, "x").unwrap();
        assert!(!is_held(&path).unwrap());
        let user = std::fs::File::open(&path).unwrap();
        user.lock_shared().unwrap();
        // Another kind of lock, which no hypervisor takes.
        assert!(!is_held(&path).unwrap());
        let word = |number: libc::c_int| libc::c_short::try_from(number).unwrap();
        let lock = libc::flock {
            l_type: word(libc::F_RDLCK),
            l_whence: word(libc::SEEK_SET),
            l_start: 100,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&user, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        assert!(is_held(&path).unwrap());
        drop(user);
        assert!(!is_held(&path).unwrap());
    }
}
