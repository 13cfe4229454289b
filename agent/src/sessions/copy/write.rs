//! From a client to a folder of a guest.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::FileType;

use crate::drivers::untar::{
    AnyEntry, Bounds, Fault, Inside, Summed, Tree, entries, host, invalid, place, shown,
};

const BUFFER_BYTES: usize = 128 * 1024;
/// What the stream is called for people.
const WHAT: &str = "the stream";

/// Unpacks what the client sends into the folder at a path of the guest's root.
pub(super) fn receive(
    root: OwnedFd,
    path: &[u8],
    no_overwrite_dir: bool,
    early: &[u8],
    from: &TcpStream,
) -> Result<(), Fault> {
    unpack(root, path, no_overwrite_dir, early.chain(from))
}

/// [`receive`] from anything.
pub(super) fn unpack(
    root: OwnedFd,
    path: &[u8],
    no_overwrite_dir: bool,
    from: impl Read,
) -> Result<(), Fault> {
    let bounds = Bounds::default();
    let mut tree = Tree::of_guest(root, bounds.clone())?;
    let prefix = [path, b"/"].concat();
    let mut count = 0_u64;
    let mut from = Summed::new(from, bounds.bytes);
    entries(WHAT, &mut from, &mut |entry| {
        count += 1;
        if count > bounds.entries {
            return invalid(format!("it has more than {} files", bounds.entries));
        }
        if entry.header().entry_type().is_pax_global_extensions() {
            return Ok(());
        }
        let name = entry.name();
        // Alone it must not lead outside either: not even to another folder of the guest.
        if Inside::new(&name, &bounds)?.split().is_none() {
            return Ok(());
        }
        let name = [&prefix[..], &name].concat();
        let path = Inside::new(&name, &bounds)?;
        if no_overwrite_dir {
            keep_kind(&tree, &path, entry)?;
        }
        place(&mut tree, &path, entry, &prefix, &bounds, &mut |entry, file| {
            fill(&name, entry, file)
        })
        .map(drop)
    })?;
    // The rest of the stream is padding; a client may wait until it is taken.
    io::copy(&mut from, &mut io::sink())
        .map(drop)
        .map_err(|error| host("read", Path::new(WHAT), error))
}

/// Refuses what would put something else in place of a folder, or a folder in place of something
/// else.
fn keep_kind(tree: &Tree, path: &Inside<'_>, entry: &dyn AnyEntry) -> Result<(), Fault> {
    let Some(there) = tree.kind(path)? else { return Ok(()) };
    if (there == FileType::Directory) == entry.header().entry_type().is_dir() {
        return Ok(());
    }
    invalid(format!("{} is there, and what was sent is of another kind", shown(path.given)))
}

fn fill(name: &[u8], entry: &mut dyn AnyEntry, file: &mut File) -> Result<(), Fault> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = entry.read(&mut buffer);
        let read = read.map_err(|error| Fault::Invalid(format!("{WHAT} broke: {error}")))?;
        if read == 0 {
            return Ok(());
        }
        let written = file.write_all(&buffer[..read]);
        written.map_err(|error| host("write", Path::new(&shown(name)), error))?;
    }
}
