//! What a file in a layer has beside its content.

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr,
    futimens, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use super::bounded::AnyEntry;
use super::fault::{Fault, at, invalid, shown, unreadable};

/// Before this name stands an extended attribute, as GNU tar and Go write them.
pub(crate) const XATTR: &str = "SCHILY.xattr.";
/// What GNU tar says of files with holes, in a way that the reader here does not know.
const SPARSE: &str = "GNU.sparse.";
/// Mode bits that are kept.
const MODE_BITS: u32 = 0o7777;

/// Owner, mode, time and extended attributes.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    uid: Uid,
    gid: Gid,
    mode: Mode,
    times: Timestamps,
    extended: Vec<(String, Vec<u8>)>,
}

/// Whether an extended attribute may come from an image: capabilities of a program, which are no more
/// than a set-user-id bit, and what means nothing to the kernel. `trusted.overlay` and `user.overlay`
/// would have an overlay show other files in place of these.
pub(crate) fn is_kept(name: &str) -> bool {
    name == "security.capability"
        || (name.starts_with("user.") && !name.starts_with("user.overlay."))
}

impl Attributes {
    /// Those of an entry.
    pub(crate) fn of(name: &[u8], entry: &mut dyn AnyEntry) -> Result<Self, Fault> {
        let damaged = |error| unreadable(&shown(name), &error);
        let header = entry.header();
        let id = |id: std::io::Result<u64>| {
            let id = id.map_err(damaged)?;
            let usable = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
            usable.ok_or_else(|| Fault::Invalid(format!("{} belongs to {id}", shown(name))))
        };
        let (uid, gid) = (Uid::from_raw(id(header.uid())?), Gid::from_raw(id(header.gid())?));
        let mode = Mode::from_raw_mode(header.mode().map_err(damaged)? & MODE_BITS);
        let seconds = i64::try_from(header.mtime().map_err(damaged)?).unwrap_or(i64::MAX);
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        let mut extended = Vec::new();
        for (key, value) in entry.extensions().map_err(damaged)? {
            if key.starts_with(SPARSE) {
                return invalid(format!("{} has holes in an unknown way", shown(name)));
            }
            if let Some(key) = key.strip_prefix(XATTR).filter(|key| is_kept(key)) {
                extended.push((key.to_owned(), value));
            }
        }
        Ok(Self { uid, gid, mode, times, extended })
    }

    /// With the owners that these become.
    pub(super) fn owned(
        self,
        name: &[u8],
        outside: impl Fn(u32) -> Option<u32>,
    ) -> Result<Self, Fault> {
        let id = |id: u32| {
            outside(id).ok_or_else(|| {
                Fault::Invalid(format!("{} belongs to {id}, and there is no such", shown(name)))
            })
        };
        let (uid, gid) = (id(self.uid.as_raw())?, id(self.gid.as_raw())?);
        Ok(Self { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), ..self })
    }

    /// Gives them to a file or folder.
    pub(crate) fn give(&self, name: &[u8], file: BorrowedFd<'_>) -> Result<(), Fault> {
        let failed = |error| at(name, error);
        // A change of the owner takes bits and capabilities away, so it comes first.
        fchown(file, Some(self.uid), Some(self.gid)).map_err(failed)?;
        fchmod(file, self.mode).map_err(failed)?;
        for (key, value) in &self.extended {
            match fsetxattr(file, key.as_str(), value, XattrFlags::empty()) {
                Ok(()) => {}
                // As on a disk of another kind: the file is there, its attribute can't be.
                Err(Errno::OPNOTSUPP) => {
                    tracing::debug!(file = shown(name), key, "no such attribute on this disk");
                }
                Err(error) => return Err(failed(error)),
            }
        }
        futimens(file, &self.times).map_err(failed)
    }

    /// Gives owner and time to a link itself, or a pipe; these have nothing else.
    pub(crate) fn give_named(
        &self,
        name: &[u8],
        folder: BorrowedFd<'_>,
        leaf: &OsStr,
    ) -> Result<(), Fault> {
        let failed = |error| at(name, error);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(folder, leaf, Some(self.uid), Some(self.gid), flags).map_err(failed)?;
        utimensat(folder, leaf, &self.times, flags).map_err(failed)
    }

    /// The mode, for what is made with it.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_overlay_obeys_is_not_kept() {
        for kept in ["security.capability", "user.mime_type"] {
            assert!(is_kept(kept), "{kept}");
        }
        for dropped in [
            "trusted.overlay.redirect",
            "user.overlay.opaque",
            "security.selinux",
            "system.posix_acl_access",
        ] {
            assert!(!is_kept(dropped), "{dropped}");
        }
    }
}
