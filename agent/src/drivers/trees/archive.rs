//! A tree as a tar archive, as layers of images are: names, owners, modes, links, and the attributes that
//! an image may bring.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, openat, readlinkat};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use super::attributes::extended;
use super::walk::{Entry, Visit, walk};
use crate::drivers::untar::{Fault, XATTR, host, invalid, is_kept};

const BUFFER_BYTES: usize = 256 * 1024;
/// Most files with several names whose names are remembered.
const MAX_LINKED: usize = 1_000_000;

/// An archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archived {
    pub(crate) size_bytes: u64,
    /// Its checksum, hexadecimal.
    pub(crate) sha256: String,
}

/// Writes a folder to the file `to`; durable when it returns.
pub(crate) fn archive_here(
    root: BorrowedFd<'_>,
    to: &Path,
    stop: &CancellationToken,
) -> Result<Archived, Fault> {
    let failed = |error| host("write", to, error);
    let counted =
        Counted { file: File::create(to).map_err(failed)?, hash: Sha256::new(), bytes: 0 };
    let tar = Builder::new(BufWriter::with_capacity(BUFFER_BYTES, counted));
    let mut archiving = Archiving { tar, to, links: HashMap::new(), stop };
    let stat = rustix::fs::fstat(root).map_err(|error| host("read", to, error.into()))?;
    let here = Entry { folder: root, name: OsStr::new("."), path: Path::new("."), stat: &stat };
    archiving.folder(here)?;
    walk(root, stop, &mut archiving)?;
    let buffered = archiving.tar.into_inner().map_err(failed)?;
    let counted = buffered.into_inner().map_err(|error| failed(error.into_error()))?;
    counted.file.sync_all().map_err(failed)?;
    Ok(Archived { size_bytes: counted.bytes, sha256: hex::encode(counted.hash.finalize()) })
}

/// A file whose content is summed up while it is written.
struct Counted {
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write(data)?;
        self.hash.update(&data[..written]);
        self.bytes += u64::try_from(written).unwrap_or(0);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

struct Archiving<'a> {
    tar: Builder<BufWriter<Counted>>,
    to: &'a Path,
    /// Paths of files that have further names.
    links: HashMap<(u64, u64), PathBuf>,
    stop: &'a CancellationToken,
}

impl Archiving<'_> {
    fn failed(&self, error: io::Error) -> Fault {
        host("write", self.to, error)
    }

    fn folder(&mut self, entry: Entry<'_>) -> Result<(), Fault> {
        self.attributes(&entry)?;
        let mut header = header(EntryType::Directory, entry.stat);
        // Tools know a folder by the slash as well.
        let added = self.tar.append_data(&mut header, entry.path.join(""), io::empty());
        added.map_err(|error| self.failed(error))
    }

    /// Those that whoever unpacks it takes; they stand before their entry.
    fn attributes(&mut self, entry: &Entry<'_>) -> Result<(), Fault> {
        let found = extended((entry.folder, entry.name));
        let found = found.map_err(|error| entry.failed("read", error))?;
        let named = found.iter().filter_map(|(key, value)| {
            let key = key.to_str().ok().filter(|key| is_kept(key))?;
            Some((format!("{XATTR}{key}"), value))
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return Ok(());
        }
        let added = named.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.tar.append_pax_extensions(added).map_err(|error| self.failed(error))
    }

    /// Whether it is in the archive under another name, and now under this one as well.
    fn is_linked(&mut self, entry: &Entry<'_>) -> Result<bool, Fault> {
        if entry.stat.st_nlink < 2 {
            return Ok(false);
        }
        let key = (entry.stat.st_dev, entry.stat.st_ino);
        if let Some(first) = self.links.get(&key) {
            let mut header = header(EntryType::Link, entry.stat);
            let added = self.tar.append_link(&mut header, entry.path, first);
            return added.map(|()| true).map_err(|error| host("write", self.to, error));
        }
        if self.links.len() >= MAX_LINKED {
            return invalid(format!("it holds more than {MAX_LINKED} files with several names"));
        }
        self.links.insert(key, entry.path.to_owned());
        Ok(false)
    }

    fn file(&mut self, entry: &Entry<'_>) -> Result<(), Fault> {
        self.attributes(entry)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(entry.folder, entry.name, flags, Mode::empty());
        let file = File::from(file.map_err(|error| entry.failed("read", error))?);
        let mut header = header(EntryType::Regular, entry.stat);
        let size_bytes = u64::try_from(entry.stat.st_size).unwrap_or(0);
        header.set_size(size_bytes);
        // An archive keeps to the size that it has said.
        let content = Stoppable { file, stop: self.stop };
        let content = content.take(size_bytes).chain(io::repeat(0)).take(size_bytes);
        let added = self.tar.append_data(&mut header, entry.path, content);
        added.map_err(|error| match self.stop.is_cancelled() {
            true => Fault::Stopped,
            false => self.failed(error),
        })
    }
}

/// A file whose reading ends with an error once nobody wants it.
struct Stoppable<'a> {
    file: File,
    stop: &'a CancellationToken,
}

impl io::Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stop.is_cancelled() {
            true => Err(io::Error::other("it was given up")),
            false => self.file.read(buffer),
        }
    }
}

impl Visit for Archiving<'_> {
    fn enter(&mut self, folder: Entry<'_>) -> Result<(), Fault> {
        self.folder(folder)
    }

    fn leave(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Sockets and devices have no meaning in an image.
    fn meet(&mut self, entry: Entry<'_>) -> Result<(), Fault> {
        let kind = entry.kind();
        let has_meaning =
            matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Fifo);
        if !has_meaning || self.is_linked(&entry)? {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => self.file(&entry),
            FileType::Symlink => {
                let to = readlinkat(entry.folder, entry.name, Vec::new());
                let to = to.map_err(|error| entry.failed("read", error))?;
                let mut header = header(EntryType::Symlink, entry.stat);
                let to = OsStr::from_bytes(to.to_bytes());
                let added = self.tar.append_link(&mut header, entry.path, to);
                added.map_err(|error| self.failed(error))
            }
            _ => {
                let mut header = header(EntryType::Fifo, entry.stat);
                let added = self.tar.append_data(&mut header, entry.path, io::empty());
                added.map_err(|error| self.failed(error))
            }
        }
    }
}

fn header(kind: EntryType, has: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(has.st_mode & 0o7777);
    header.set_uid(has.st_uid.into());
    header.set_gid(has.st_gid.into());
    header.set_mtime(u64::try_from(has.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}
