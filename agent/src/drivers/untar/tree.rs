//! The root folder of an image while it is unpacked. Every name is resolved by the kernel within it:
//! links of the image, absolute ones too, lead where they would lead in a container.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, chmodat, linkat, mkdirat, mkfifoat, open,
    openat, openat2, statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::Bounds;
use super::attributes::Attributes;
use super::fault::{Fault, at, host, invalid, shown};
use crate::host::idmap::IdRange;

/// A folder that is opened.
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A folder that an image does not describe.
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o755);
/// Within the root, and through nothing that the kernel makes up.
const WITHIN: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
/// How often a name is resolved that others change meanwhile.
const MAX_RACES: usize = 64;
/// Longest name of one file, bytes.
const MAX_NAME_BYTES: usize = 255;

/// A path in an archive, taken apart: `..` and names that no file can have are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside<'a> {
    /// The path as the archive has it.
    pub(crate) given: &'a [u8],
    parts: Vec<&'a OsStr>,
}

impl<'a> Inside<'a> {
    /// Takes a path apart. One that begins with `/` begins at the image's root.
    pub(crate) fn new(given: &'a [u8], bounds: &Bounds) -> Result<Self, Fault> {
        let shown = || shown(given);
        if given.len() > bounds.path_bytes {
            return invalid(format!("{} has too long a path", shown()));
        }
        if given.contains(&0) {
            return invalid(format!("{} has NUL in its path", shown()));
        }
        let parts = given.split(|byte| *byte == b'/');
        let parts: Vec<_> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
        if parts.contains(&&b".."[..]) {
            return invalid(format!("{} leads out of the image", shown()));
        }
        if parts.len() > bounds.depth || parts.iter().any(|part| part.len() > MAX_NAME_BYTES) {
            return invalid(format!("{} has too long a name, or too many folders", shown()));
        }
        Ok(Self { given, parts: parts.into_iter().map(OsStr::from_bytes).collect() })
    }

    /// The path as one of a folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.parts.iter().collect()
    }

    /// The folder's path and the name in it; none for the root itself.
    pub(crate) fn split(&self) -> Option<(PathBuf, &'a OsStr)> {
        let (leaf, folders) = self.parts.split_last()?;
        Some((folders.iter().collect(), leaf))
    }
}

/// The root folder.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// The root's own depth in the host's folders.
    root_depth: usize,
    bounds: Bounds,
    /// How names are resolved.
    resolve: ResolveFlags,
    /// The folder that was opened last; files come folder by folder.
    last: Option<(PathBuf, OwnedFd)>,
    /// The host's ids that those of the tree are, unless they are the host's.
    ids: Option<IdRange>,
}

impl Tree {
    /// Opens the folder, which is empty.
    pub(crate) fn open(root: &Path, bounds: Bounds) -> Result<Self, Fault> {
        let opened = open(root, FOLDER, Mode::empty());
        let opened = opened.map_err(|error| host("open", root, error.into()))?;
        let root_depth =
            depth(opened.as_fd()).map_err(|error| host("look at", root, error.into()))?;
        let resolve = WITHIN.union(ResolveFlags::NO_XDEV);
        Ok(Self { root: opened, root_depth, bounds, resolve, last: None, ids: None })
    }

    /// Works in the root folder of somebody else, file systems that are mounted there included.
    pub(crate) fn of_guest(root: OwnedFd, bounds: Bounds) -> Result<Self, Fault> {
        let root_depth = depth(root.as_fd()).map_err(|error| at(b"/", error))?;
        Ok(Self { root, root_depth, bounds, resolve: WITHIN, last: None, ids: None })
    }

    /// One whose own ids are these of the host.
    #[must_use]
    pub(crate) fn with_ids(self, ids: Option<IdRange>) -> Self {
        Self { ids, ..self }
    }

    /// What the host calls an id of it; `None`: it has no such.
    pub(super) fn outside(&self, id: u32) -> Option<u32> {
        match self.ids {
            Some(ids) => ids.outside(id),
            None => Some(id),
        }
    }

    /// The folder at a path; none when there is no such.
    pub(crate) fn find(&self, path: &Inside<'_>) -> Result<Option<OwnedFd>, Fault> {
        match self.beneath(&path.folder()) {
            Err(Errno::NOTDIR) => Ok(None),
            other => other.map_err(|error| at(path.given, error)),
        }
    }

    /// What is at a path; the root itself is a folder.
    pub(crate) fn kind(&self, path: &Inside<'_>) -> Result<Option<FileType>, Fault> {
        let Some((_, leaf)) = path.split() else { return Ok(Some(FileType::Directory)) };
        let Some(folder) = self.find_above(path)? else { return Ok(None) };
        kind(folder.as_fd(), leaf).map_err(|error| at(path.given, error))
    }

    /// Opens the folder in which a path ends; none when it is not there.
    pub(crate) fn find_above(&self, path: &Inside<'_>) -> Result<Option<OwnedFd>, Fault> {
        let above = path.split().map(|(above, _)| above).unwrap_or_default();
        match self.beneath(&above) {
            Err(Errno::NOTDIR) => Ok(None),
            other => other.map_err(|error| at(path.given, error)),
        }
    }

    /// Makes a file for its content; its attributes come last, by [`Attributes::give`].
    pub(crate) fn file(&mut self, path: &Inside<'_>) -> Result<File, Fault> {
        let failed = |error| at(path.given, error);
        let (folder, leaf) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = openat(folder, leaf, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        Ok(made.map_err(failed)?.into())
    }

    /// Makes a folder, or gives one that is there these attributes.
    pub(crate) fn folder(&mut self, path: &Inside<'_>, has: &Attributes) -> Result<(), Fault> {
        let Some((folders, leaf)) = path.split() else {
            return has.give(path.given, self.root.as_fd());
        };
        let failed = |error| at(path.given, error);
        let folder = self.parent(path.given, &folders, true)?;
        if kind(folder, leaf).map_err(failed)? != Some(FileType::Directory) {
            self.clear(path.given, &folders, leaf)?;
            self.make_folder(path.given, &folders, leaf)?;
        }
        let folder = self.parent(path.given, &folders, true)?;
        let made = openat(folder, leaf, FOLDER, Mode::empty()).map_err(failed)?;
        has.give(path.given, made.as_fd())
    }

    /// Makes a symbolic link, wherever it leads.
    pub(crate) fn symlink(
        &mut self,
        path: &Inside<'_>,
        to: &[u8],
        has: &Attributes,
    ) -> Result<(), Fault> {
        let failed = |error| at(path.given, error);
        let (folder, leaf) = self.place(path)?;
        symlinkat(OsStr::from_bytes(to), folder, leaf).map_err(failed)?;
        has.give_named(path.given, folder, leaf)
    }

    /// Makes a pipe.
    pub(crate) fn pipe(&mut self, path: &Inside<'_>, has: &Attributes) -> Result<(), Fault> {
        let failed = |error| at(path.given, error);
        let (folder, leaf) = self.place(path)?;
        mkfifoat(folder, leaf, has.mode()).map_err(failed)?;
        chmodat(folder, leaf, has.mode(), AtFlags::empty()).map_err(failed)?;
        has.give_named(path.given, folder, leaf)
    }

    /// Gives a file that is there another name.
    pub(crate) fn hard_link(&mut self, path: &Inside<'_>, to: &Inside<'_>) -> Result<(), Fault> {
        let dangling = || {
            let (from, to) = (shown(path.given), shown(to.given));
            Fault::Invalid(format!("{from} is a link to {to}, which is no file of the image"))
        };
        let (folders, name) = to.split().ok_or_else(dangling)?;
        let there = self.beneath(&folders);
        let there = there.map_err(|error| at(to.given, error))?.ok_or_else(dangling)?;
        if to != path {
            self.place(path)?;
        }
        let (place, leaf) = path.split().ok_or_else(dangling)?;
        match kind(there.as_fd(), name).map_err(|error| at(to.given, error))? {
            None | Some(FileType::Directory) => Err(dangling()),
            Some(_) if to == path => Ok(()),
            Some(_) => {
                let folder = self.parent(path.given, &place, true)?;
                linkat(there, name, folder, leaf, AtFlags::empty())
                    .map_err(|error| at(path.given, error))
            }
        }
    }

    /// Removes what earlier layers have at a path, if they have anything.
    pub(crate) fn hide(&mut self, given: &[u8], folder: &Path, leaf: &OsStr) -> Result<(), Fault> {
        self.last = None;
        let Some(folder) = self.beneath(folder).map_err(|error| at(given, error))? else {
            return Ok(());
        };
        remove(given, folder.as_fd(), leaf)
    }

    /// Removes all that earlier layers have in a folder, if they have it.
    pub(crate) fn hide_all(&mut self, given: &[u8], folder: &Path) -> Result<(), Fault> {
        self.last = None;
        let failed = |error| at(given, error);
        let Some(folder) = self.beneath(folder).map_err(failed)? else { return Ok(()) };
        let readable = openat(&folder, ".", FOLDER, Mode::empty()).map_err(failed)?;
        let mut names: Vec<OsString> = Vec::new();
        for entry in rustix::fs::Dir::read_from(&readable).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.iter().try_for_each(|name| remove(given, folder.as_fd(), name))
    }

    /// Gives the root the mode of a folder that an archive does not describe.
    pub(crate) fn describe_root(&self) -> Result<(), Fault> {
        rustix::fs::fchmod(&self.root, FOLDER_MODE).map_err(|error| at(b"/", error))
    }

    /// Makes all of it durable.
    pub(crate) fn sync(&self, root: &Path) -> Result<(), Fault> {
        syncfs(&self.root).map_err(|error| host("sync", root, error.into()))
    }

    /// The folder of something that is about to be made there, in place of what is there, and its
    /// name.
    fn place<'p>(&mut self, path: &Inside<'p>) -> Result<(BorrowedFd<'_>, &'p OsStr), Fault> {
        let Some((folders, leaf)) = path.split() else {
            return invalid("its root is no folder");
        };
        self.clear(path.given, &folders, leaf)?;
        Ok((self.parent(path.given, &folders, true)?, leaf))
    }

    /// Removes what an earlier entry or layer has made.
    fn clear(&mut self, given: &[u8], folders: &Path, leaf: &OsStr) -> Result<(), Fault> {
        let folder = self.parent(given, folders, true)?;
        if kind(folder, leaf).map_err(|error| at(given, error))?.is_some() {
            remove(given, folder, leaf)?;
            self.last = None;
        }
        Ok(())
    }

    /// The folder at a path, made with those above it if `make`.
    fn parent(
        &mut self,
        given: &[u8],
        folders: &Path,
        make: bool,
    ) -> Result<BorrowedFd<'_>, Fault> {
        let known = self.last.as_ref().is_some_and(|(path, _)| path == folders);
        if !known {
            let mut found = self.beneath(folders).map_err(|error| at(given, error))?;
            if found.is_none() && make {
                self.make_above(given, folders)?;
                found = self.beneath(folders).map_err(|error| at(given, error))?;
            }
            let missing = || at(given, Errno::NOENT);
            self.last = Some((folders.to_owned(), found.ok_or_else(missing)?));
        }
        Ok(self.last.as_ref().map_or(self.root.as_fd(), |(_, folder)| folder.as_fd()))
    }

    /// Makes a folder and those above it, as far as they are missing.
    fn make_above(&mut self, given: &[u8], folders: &Path) -> Result<(), Fault> {
        let mut above = PathBuf::new();
        for part in folders {
            let here = above.join(part);
            if self.beneath(&here).map_err(|error| at(given, error))?.is_none() {
                self.make_folder(given, &above, part)?;
            }
            above = here;
        }
        Ok(())
    }

    fn make_folder(&mut self, given: &[u8], above: &Path, leaf: &OsStr) -> Result<(), Fault> {
        let folder = self.parent(given, above, false)?.try_clone_to_owned();
        let folder = folder.map_err(|error| host("open", above, error))?;
        // Links can lead deeper than any path in the archive says.
        let depth = depth(folder.as_fd()).map_err(|error| at(given, error))?;
        if depth.saturating_sub(self.root_depth) >= self.bounds.depth {
            return invalid(format!("{} is in too many folders", shown(given)));
        }
        mkdirat(&folder, leaf, FOLDER_MODE).map_err(|error| at(given, error))?;
        // Whatever this process's umask took away.
        chmodat(&folder, leaf, FOLDER_MODE, AtFlags::empty()).map_err(|error| at(given, error))
    }

    /// Opens a folder by its path within the root; none when it is not there.
    fn beneath(&self, folders: &Path) -> Result<Option<OwnedFd>, Errno> {
        let path = if folders.as_os_str().is_empty() { Path::new(".") } else { folders };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for _ in 0..MAX_RACES {
            match openat2(&self.root, path, flags, Mode::empty(), self.resolve) {
                Ok(folder) => return Ok(Some(folder)),
                Err(Errno::NOENT) => return Ok(None),
                // Somebody moved a folder meanwhile.
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::LOOP)
    }
}

/// What is in a folder under a name.
fn kind(folder: BorrowedFd<'_>, leaf: &OsStr) -> Result<Option<FileType>, Errno> {
    match statat(folder, leaf, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, or a folder with all that is in it; none is no error.
fn remove(given: &[u8], folder: BorrowedFd<'_>, leaf: &OsStr) -> Result<(), Fault> {
    match kind(folder, leaf).map_err(|error| at(given, error))? {
        None => Ok(()),
        Some(FileType::Directory) => {
            // Follows no link; the folder above is the one that was opened.
            let path = handle(folder).join(leaf);
            std::fs::remove_dir_all(&path).map_err(|error| host("remove", &path, error))
        }
        Some(_) => unlinkat(folder, leaf, AtFlags::empty()).map_err(|error| at(given, error)),
    }
}

/// The path under which the kernel knows what is open.
fn handle(open: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", open.as_raw_fd()).into()
}

/// In how many folders of the host an open folder is.
fn depth(folder: BorrowedFd<'_>) -> Result<usize, Errno> {
    let path = std::fs::read_link(handle(folder));
    let unknown = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    Ok(path.map_err(unknown)?.components().count())
}
