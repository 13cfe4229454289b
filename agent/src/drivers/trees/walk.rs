//! Every entry of a tree, folder by folder.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use crate::drivers::untar::{Fault, host, invalid};

/// A folder that is opened.
pub(super) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Most entries of a tree.
const MAX_ENTRIES: u64 = 10_000_000;
/// Most folders within each other: as many are open at once.
const MAX_DEPTH: usize = 200;

/// An entry of a folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// The folder, and the name in it.
    pub(super) folder: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// From the tree's root on.
    pub(super) path: &'a Path,
    pub(super) stat: &'a Stat,
}

impl Entry<'_> {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// The kernel refused something about it.
    pub(super) fn failed(&self, action: &str, error: Errno) -> Fault {
        host(action, self.path, error.into())
    }
}

/// What is done with the entries of a tree.
pub(super) trait Visit {
    /// With a folder, before what is in it.
    fn enter(&mut self, folder: Entry<'_>) -> Result<(), Fault>;

    /// With the folder that was entered last, after what is in it.
    fn leave(&mut self) -> Result<(), Fault>;

    /// With all else.
    fn meet(&mut self, entry: Entry<'_>) -> Result<(), Fault>;
}

/// Opens the root of a tree.
pub(super) fn open_root(root: &Path) -> Result<OwnedFd, Fault> {
    let opened = rustix::fs::open(root, FOLDER, Mode::empty());
    opened.map_err(|error| host("open", root, error.into()))
}

/// Visits all that is in a folder that is open; not the folder itself.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    stop: &CancellationToken,
    visit: &mut dyn Visit,
) -> Result<(), Fault> {
    let mut path = PathBuf::new();
    let read = |path: &Path, folder: OwnedFd| {
        Dir::new(folder).map_err(|error| host("read", path, error.into()))
    };
    // Whoever has it open may have read it to its end.
    let root = openat(root, ".", FOLDER, Mode::empty());
    let mut opened = vec![read(&path, root.map_err(|error| host("open", &path, error.into()))?)?];
    let mut entries = 0_u64;
    while let Some(folder) = opened.last_mut() {
        let Some(found) = folder.read() else {
            opened.pop();
            if !opened.is_empty() {
                path.pop();
                visit.leave()?;
            }
            continue;
        };
        let found = found.map_err(|error| host("read", &path, error.into()))?;
        let name = OsStr::from_bytes(found.file_name().to_bytes());
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        if stop.is_cancelled() {
            return Err(Fault::Stopped);
        }
        entries += 1;
        if entries > MAX_ENTRIES {
            return invalid(format!("it holds more than {MAX_ENTRIES} files"));
        }
        path.push(name);
        let inner = one(folder.fd(), name, &path, visit)?;
        match inner {
            None => drop(path.pop()),
            Some(_) if opened.len() >= MAX_DEPTH => {
                return invalid(format!("{} is in more than {MAX_DEPTH} folders", path.display()));
            }
            Some(inner) => opened.push(read(&path, inner)?),
        }
    }
    Ok(())
}

/// Visits one entry; returns it opened when it is a folder.
fn one(
    folder: Result<BorrowedFd<'_>, Errno>,
    name: &OsStr,
    path: &Path,
    visit: &mut dyn Visit,
) -> Result<Option<OwnedFd>, Fault> {
    let failed = |error: Errno| host("read", path, error.into());
    let folder = folder.map_err(failed)?;
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    let entry = Entry { folder, name, path, stat: &stat };
    if entry.kind() != FileType::Directory {
        return visit.meet(entry).map(|()| None);
    }
    let inner = openat(folder, name, FOLDER, Mode::empty()).map_err(failed)?;
    // What was looked at is what is opened, whoever is at work there.
    let stat = rustix::fs::fstat(inner.as_fd()).map_err(failed)?;
    visit.enter(Entry { folder, name, path, stat: &stat })?;
    Ok(Some(inner))
}
