//! The files that a client sends to be built from: an archive of somebody else's.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use muster_shared::wire::Code;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};

use crate::drivers::DriverError;
use crate::drivers::images::room::Room;
use crate::drivers::untar::{
    AnyEntry, Bounds, Fault, Inside, Summed, Tree, entries, host, invalid, place, shown, unreadable,
};

const BUFFER_BYTES: usize = 128 * 1024;
/// Most that a client may send, and what it may hold.
const BOUNDS: Bounds = Bounds { entries: 1_000_000, bytes: 64 << 30, depth: 256, path_bytes: 4096 };
/// Largest Dockerfile, bytes.
pub(super) const MAX_DOCKERFILE_BYTES: u64 = 1024 * 1024;
/// What the archive is called for people.
const WHAT: &str = "the context";
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Unpacks an archive, packed by gzip or not, into an empty folder.
pub(super) fn unpack(from: impl Read, folder: &Path) -> Result<(), Fault> {
    unpack_within(from, folder, BOUNDS.bytes)
}

/// [`unpack`] of so many bytes at most.
pub(super) fn unpack_within(from: impl Read, folder: &Path, most_bytes: u64) -> Result<(), Fault> {
    let mut tree = Tree::open(folder, BOUNDS)?;
    tree.describe_root()?;
    let mut from = BufReader::with_capacity(BUFFER_BYTES, Summed::new(from, most_bytes));
    let start = from.fill_buf().map_err(|error| unreadable(WHAT, &error))?;
    let packed = start.starts_with(&GZIP);
    let content: Box<dyn Read + '_> =
        if packed { Box::new(MultiGzDecoder::new(&mut from)) } else { Box::new(&mut from) };
    let mut content = Summed::new(content, most_bytes);
    let (mut count, mut room) = (0_u64, Room::new(folder));
    // Of files with holes there is more than of their archive.
    let mut whole_bytes = 0_u64;
    entries(WHAT, &mut content, &mut |entry| {
        count += 1;
        if count > BOUNDS.entries {
            return invalid(format!("it has more than {} files", BOUNDS.entries));
        }
        if entry.header().entry_type().is_pax_global_extensions() {
            return Ok(());
        }
        whole_bytes = whole_bytes.saturating_add(entry.size());
        if whole_bytes > most_bytes {
            return invalid(format!("it holds more than {most_bytes} bytes"));
        }
        let name = entry.name();
        let path = Inside::new(&name, &BOUNDS)?;
        place(&mut tree, &path, entry, b"", &BOUNDS, &mut |entry, file| {
            fill(&name, entry, file, &mut room)
        })
        .map(drop)
    })?;
    // A client may wait until all that it sends is taken.
    let rest = std::io::copy(&mut content, &mut std::io::sink());
    rest.map_err(|error| unreadable(WHAT, &error))?;
    drop(content);
    let rest = std::io::copy(&mut from, &mut std::io::sink());
    rest.map(drop).map_err(|error| unreadable(WHAT, &error))
}

fn fill(
    name: &[u8],
    entry: &mut dyn AnyEntry,
    file: &mut File,
    room: &mut Room,
) -> Result<(), Fault> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = entry.read(&mut buffer).map_err(|error| unreadable(WHAT, &error))?;
        if read == 0 {
            return Ok(());
        }
        room.take(read)?;
        let written = file.write_all(&buffer[..read]);
        written.map_err(|error| host("write", Path::new(&shown(name)), error))?;
    }
}

/// The content of a small file of the context; `None`: there is no such. A link is not followed, for it
/// could lead to a file of the host.
pub(super) fn read(folder: &Path, path: &str, most_bytes: u64) -> Result<Option<Vec<u8>>, Fault> {
    let tree = Tree::open(folder, BOUNDS)?;
    let inside = Inside::new(path.as_bytes(), &BOUNDS)?;
    let Some((_, leaf)) = inside.split() else { return invalid(format!("{path:?} is a folder")) };
    let Some(above) = tree.find_above(&inside)? else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |error: rustix::io::Errno| host("read", Path::new(path), error.into());
    let file = match openat(&above, leaf, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return invalid(format!("{path:?} is a link")),
        Err(error) => return Err(failed(error)),
    };
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return invalid(format!("{path:?} is no file"));
    }
    let mut content = Vec::new();
    let read = File::from(file).take(most_bytes + 1).read_to_end(&mut content);
    read.map_err(|error| host("read", Path::new(path), error))?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > most_bytes {
        return invalid(format!("{path:?} is larger than {most_bytes} bytes"));
    }
    Ok(Some(content))
}

/// A fault for whoever sent the context.
pub(super) fn refusal(fault: Fault) -> DriverError {
    match fault {
        Fault::Host(error) => error,
        fault => DriverError::refused(Code::InvalidParameters, format!("{WHAT}: {fault}")),
    }
}
