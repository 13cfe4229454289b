//! From a guest to a client: what `docker cp` wants, the file or folder under its own name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use tar::{Builder, EntryType, Header};

use crate::drivers::untar::{Bounds, Fault, Inside, Tree, invalid, shown};
use crate::host::idmap::IdRange;

const BUFFER_BYTES: usize = 128 * 1024;
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder that is being sent.
struct Open {
    folder: OwnedFd,
    path: PathBuf,
    names: Vec<OsString>,
}

/// What is sent.
struct Sent<W: Write> {
    tar: Builder<W>,
    /// See [`Place`](super::Place).
    ids: Option<IdRange>,
}

/// Sends what is at a path of the guest's root.
pub(super) fn send(
    root: &OwnedFd,
    path: &[u8],
    ids: Option<IdRange>,
    to: impl Write,
) -> Result<(), Fault> {
    let bounds = Bounds::default();
    let inside = Inside::new(path, &bounds)?;
    let root = root.try_clone().map_err(|error| cut(&error))?;
    let tree = Tree::of_guest(root, bounds.clone())?;
    let tar = Builder::new(BufWriter::with_capacity(BUFFER_BYTES, to));
    let mut sent = Sent { tar, ids };
    let contents = path.ends_with(b"/.") || inside.split().is_none();
    let follow = contents || path.ends_with(b"/");
    let gone = || Fault::Invalid(format!("{} is gone", shown(path)));
    if follow {
        let folder = tree.find(&inside)?.ok_or_else(gone)?;
        let name = match inside.split() {
            Some((_, leaf)) if !contents => PathBuf::from(leaf),
            _ => PathBuf::from("."),
        };
        let found = rustix::fs::fstat(&folder).map_err(|error| cut(&error.into()))?;
        let readable = openat(&folder, ".", FOLDER, Mode::empty());
        folder_entry(&mut sent, &name, &found)?;
        let open = open(readable.map_err(|error| cut(&error.into()))?, name)?;
        walk(&mut sent, open, bounds.depth)?;
    } else {
        let folder = tree.find_above(&inside)?.ok_or_else(gone)?;
        let (_, leaf) = inside.split().ok_or_else(gone)?;
        if let Some(open) = entry(&mut sent, folder.as_fd(), leaf, Path::new(leaf))? {
            walk(&mut sent, open, bounds.depth)?;
        }
    }
    let mut buffered = sent.tar.into_inner().map_err(|error| cut(&error))?;
    buffered.flush().map_err(|error| cut(&error))
}

/// Sends all that is in a folder, and in those in it.
fn walk<W: Write>(sent: &mut Sent<W>, first: Open, depth: usize) -> Result<(), Fault> {
    let mut opened = vec![first];
    while let Some(last) = opened.last_mut() {
        let Some(name) = last.names.pop() else {
            opened.pop();
            continue;
        };
        let path = last.path.join(&name);
        let Some(inner) = entry(sent, last.folder.as_fd(), &name, &path)? else { continue };
        if opened.len() >= depth {
            return invalid(format!(
                "{} is in too many folders",
                shown(path.as_os_str().as_bytes())
            ));
        }
        opened.push(inner);
    }
    Ok(())
}

/// Sends one entry of a folder, and opens it if it is one itself. What is gone meanwhile, and what has
/// no content that could be sent, is left out.
fn entry<W: Write>(
    sent: &mut Sent<W>,
    folder: impl AsFd + Copy,
    leaf: &OsStr,
    path: &Path,
) -> Result<Option<Open>, Fault> {
    let Ok(found) = statat(folder, leaf, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {
            let Ok(inner) = openat(folder, leaf, FOLDER, Mode::empty()) else { return Ok(None) };
            folder_entry(sent, path, &found)?;
            return open(inner, path.to_owned()).map(Some);
        }
        FileType::RegularFile => {
            // It may be something else by now, that would be waited for.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(file) = openat(folder, leaf, flags, Mode::empty()) else { return Ok(None) };
            let found = rustix::fs::fstat(&file).map_err(|error| cut(&error.into()))?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Ok(None);
            }
            let mut header = header(EntryType::Regular, &found, sent.ids);
            let size = u64::try_from(found.st_size).unwrap_or(0);
            header.set_size(size);
            // A stream keeps to the size that it has said, whatever becomes of the file.
            let content = File::from(file).take(size).chain(io::repeat(0)).take(size);
            let written = sent.tar.append_data(&mut header, path, content);
            written.map_err(|error| cut(&error))?;
        }
        FileType::Symlink => {
            let Ok(to) = readlinkat(folder, leaf, Vec::new()) else { return Ok(None) };
            let mut header = header(EntryType::Symlink, &found, sent.ids);
            let to = OsStr::from_bytes(to.to_bytes());
            sent.tar.append_link(&mut header, path, to).map_err(|error| cut(&error))?;
        }
        FileType::Fifo => {
            let mut header = header(EntryType::Fifo, &found, sent.ids);
            sent.tar.append_data(&mut header, path, io::empty()).map_err(|error| cut(&error))?;
        }
        _ => {}
    }
    Ok(None)
}

fn folder_entry<W: Write>(sent: &mut Sent<W>, path: &Path, found: &Stat) -> Result<(), Fault> {
    let mut header = header(EntryType::Directory, found, sent.ids);
    // Tools know a folder by the slash as well.
    let written = sent.tar.append_data(&mut header, path.join(""), io::empty());
    written.map_err(|error| cut(&error))
}

fn header(kind: EntryType, found: &Stat, ids: Option<IdRange>) -> Header {
    let own = |id: u32| ids.map_or(id, |ids| ids.inside(id)).into();
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(found.st_mode & 0o7777);
    header.set_uid(own(found.st_uid));
    header.set_gid(own(found.st_gid));
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

fn open(folder: OwnedFd, path: PathBuf) -> Result<Open, Fault> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder).map_err(|error| cut(&error.into()))? {
        let Ok(entry) = entry else { break };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    // Taken from the end.
    names.sort_by(|one, other| other.cmp(one));
    Ok(Open { folder, path, names })
}

/// The connection broke, or the guest's disk.
fn cut(error: &io::Error) -> Fault {
    Fault::Invalid(format!("it can't be sent: {error}"))
}
