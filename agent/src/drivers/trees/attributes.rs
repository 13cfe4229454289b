//! What a file has beside its content: owner, mode, extended attributes of every kind, times.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    lgetxattr, llistxattr, lsetxattr, utimensat,
};
use rustix::io::Errno;

/// Most that the kernel gives of the names, or of one value, bytes.
const MAX_XATTR_BYTES: usize = 64 * 1024;
/// Mode bits that are copied.
const MODE_BITS: u32 = 0o7777;

/// The path by which the kernel finds a name in an open folder.
fn at(folder: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)
}

/// Gives `to` what `from` has, links themselves rather than what they lead to.
pub(super) fn copy(
    from: (BorrowedFd<'_>, &OsStr),
    has: &Stat,
    to: (BorrowedFd<'_>, &OsStr),
) -> Result<(), Errno> {
    let (folder, name) = to;
    let (uid, gid) = (Uid::from_raw(has.st_uid), Gid::from_raw(has.st_gid));
    // A change of the owner takes bits and capabilities away, so it comes first.
    chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(has.st_mode) != FileType::Symlink {
        let mode = Mode::from_raw_mode(has.st_mode & MODE_BITS);
        chmodat(folder, name, mode, AtFlags::empty())?;
    }
    let target = at(folder, name);
    for (key, value) in extended(from)? {
        lsetxattr(&target, &*key, &value, XattrFlags::empty())?;
    }
    utimensat(folder, name, &times(has), AtFlags::SYMLINK_NOFOLLOW)
}

fn times(has: &Stat) -> Timestamps {
    let at = |seconds, nanoseconds| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: at(has.st_atime, has.st_atime_nsec),
        last_modification: at(has.st_mtime, has.st_mtime_nsec),
    }
}

/// All extended attributes, those that only the kernel obeys among them.
pub(super) fn extended(
    (folder, name): (BorrowedFd<'_>, &OsStr),
) -> Result<Vec<(std::ffi::CString, Vec<u8>)>, Errno> {
    let source = at(folder, name);
    let mut names = vec![0_u8; MAX_XATTR_BYTES];
    let length = match llistxattr(&source, &mut names[..]) {
        Ok(length) => length,
        // A file system without any.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for key in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(key) = CStr::from_bytes_with_nul(key) else { continue };
        let mut value = vec![0_u8; MAX_XATTR_BYTES];
        match lgetxattr(&source, key, &mut value[..]) {
            Ok(length) => value.truncate(length),
            // Removed meanwhile.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error),
        }
        found.push((key.to_owned(), value));
    }
    Ok(found)
}
