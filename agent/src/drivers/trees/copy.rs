//! A copy that the kernel can't tell from the original: owners, modes, times, extended attributes, links,
//! devices, holes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, linkat, mkdirat, mknodat, openat, readlinkat, symlinkat,
    syncfs,
};
use tokio_util::sync::CancellationToken;

use super::walk::{Entry, FOLDER, Visit, open_root, walk};
use super::{attributes, content};
use crate::drivers::untar::{Fault, host, invalid};

/// A folder as such.
const HERE: &str = ".";
/// Most files with several names whose names are remembered.
const MAX_LINKED: usize = 1_000_000;
/// Longest path of such a file, bytes.
const MAX_LINK_PATH_BYTES: usize = 4000;

/// Copies a folder to one that is made for it; durable when it returns. What was copied when it fails
/// stays there.
pub(crate) fn copy_here(from: &Path, to: &Path, stop: &CancellationToken) -> Result<(), Fault> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(to);
    made.map_err(|error| host("create", to, error))?;
    copy_into(from, to, stop)
}

/// As [`copy_here`], to a folder that is there and has nothing in it.
pub(crate) fn copy_into(from: &Path, to: &Path, stop: &CancellationToken) -> Result<(), Fault> {
    let (source, target) = (open_root(from)?, open_root(to)?);
    let failed = |error: rustix::io::Errno| host("copy", from, error.into());
    let stat = rustix::fs::fstat(&source).map_err(failed)?;
    let root = target.try_clone().map_err(|error| host("open", to, error))?;
    let mut copying = Copying {
        root,
        opened: vec![Opened { source: None, stat, target }],
        links: HashMap::new(),
        stop,
    };
    walk(source.as_fd(), stop, &mut copying)?;
    let here = OsStr::new(HERE);
    attributes::copy((source.as_fd(), here), &stat, (copying.root.as_fd(), here))
        .map_err(failed)?;
    syncfs(&copying.root).map_err(|error| host("sync", to, error.into()))
}

/// A folder of the copy whose original is being read.
struct Opened {
    /// None of the root.
    source: Option<OwnedFd>,
    stat: Stat,
    target: OwnedFd,
}

struct Copying<'a> {
    root: OwnedFd,
    opened: Vec<Opened>,
    /// Where in the copy files are that have further names.
    links: HashMap<(u64, u64), PathBuf>,
    stop: &'a CancellationToken,
}

impl Copying<'_> {
    fn target(&self) -> BorrowedFd<'_> {
        self.opened.last().map_or(self.root.as_fd(), |opened| opened.target.as_fd())
    }

    /// Gives a file that was copied under another name this one as well; false when it was not.
    fn is_linked(&mut self, entry: &Entry<'_>) -> Result<bool, Fault> {
        if entry.stat.st_nlink < 2 {
            return Ok(false);
        }
        let key = (entry.stat.st_dev, entry.stat.st_ino);
        if let Some(path) = self.links.get(&key) {
            let linked = linkat(&self.root, path, self.target(), entry.name, AtFlags::empty());
            linked.map_err(|error| entry.failed("link", error))?;
            return Ok(true);
        }
        if self.links.len() >= MAX_LINKED {
            return invalid(format!("it holds more than {MAX_LINKED} files with several names"));
        }
        if entry.path.as_os_str().len() > MAX_LINK_PATH_BYTES {
            return invalid(format!(
                "{} has several names, and too long a path",
                entry.path.display()
            ));
        }
        self.links.insert(key, entry.path.to_owned());
        Ok(false)
    }

    fn file(&self, entry: &Entry<'_>) -> Result<(), Fault> {
        let failed = |error| entry.failed("copy", error);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = openat(entry.folder, entry.name, flags, Mode::empty()).map_err(failed)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let to =
            openat(self.target(), entry.name, flags | OFlags::CLOEXEC, mode).map_err(failed)?;
        let size_bytes = u64::try_from(entry.stat.st_size).unwrap_or(0);
        content::copy(&File::from(from), &File::from(to), size_bytes, entry.path, self.stop)
    }

    fn other(&self, entry: &Entry<'_>) -> Result<(), Fault> {
        let (target, name) = (self.target(), entry.name);
        let made = match entry.kind() {
            FileType::Symlink => {
                let to = readlinkat(entry.folder, name, Vec::new());
                let to = to.map_err(|error| entry.failed("read", error))?;
                symlinkat(OsStr::from_bytes(to.to_bytes()), target, name)
            }
            kind => mknodat(target, name, kind, Mode::RUSR | Mode::WUSR, entry.stat.st_rdev),
        };
        made.map_err(|error| entry.failed("copy", error))
    }
}

impl Visit for Copying<'_> {
    fn enter(&mut self, folder: Entry<'_>) -> Result<(), Fault> {
        let failed = |error| folder.failed("copy", error);
        mkdirat(self.target(), folder.name, Mode::RWXU).map_err(failed)?;
        let target = openat(self.target(), folder.name, FOLDER, Mode::empty()).map_err(failed)?;
        let source = openat(folder.folder, folder.name, FOLDER, Mode::empty()).map_err(failed)?;
        self.opened.push(Opened { source: Some(source), stat: *folder.stat, target });
        Ok(())
    }

    /// What a folder has comes last: each file that is made in it changes its time.
    fn leave(&mut self) -> Result<(), Fault> {
        let Some(Opened { source: Some(source), stat, target }) = self.opened.pop() else {
            return Ok(());
        };
        let here = OsStr::new(HERE);
        let given = attributes::copy((source.as_fd(), here), &stat, (target.as_fd(), here));
        given.map_err(|error| host("copy", Path::new(HERE), error.into()))
    }

    fn meet(&mut self, entry: Entry<'_>) -> Result<(), Fault> {
        if self.is_linked(&entry)? {
            return Ok(());
        }
        match entry.kind() {
            FileType::RegularFile => self.file(&entry)?,
            _ => self.other(&entry)?,
        }
        let from = (entry.folder, entry.name);
        let given = attributes::copy(from, entry.stat, (self.target(), entry.name));
        given.map_err(|error| entry.failed("copy", error))
    }
}
