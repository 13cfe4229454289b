//! From a client to a folder of a guest.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FileType;
use serde_json::json;

use super::Place;
use crate::drivers::DriverError;
use crate::drivers::untar::{
    AnyEntry, Bounds, Fault, Inside, Summed, Tree, entries, host, invalid, place, shown,
};

const BUFFER_BYTES: usize = 128 * 1024;
/// How long a client may be silent, and how much it may still send, that is told of a fault.
const LINGER: Duration = Duration::from_secs(5);
const MAX_REST_BYTES: u64 = 1 << 30;
/// What the stream is called for people.
const WHAT: &str = "the stream";

/// Unpacks what the client sends into the folder at a path of the guest's root.
pub(super) fn receive(
    to: Place,
    no_overwrite_dir: bool,
    early: &[u8],
    from: &TcpStream,
) -> Result<(), Fault> {
    let tree = Tree::of_guest(to.root, Bounds::default())?.with_ids(to.ids);
    unpack(tree, &to.path, no_overwrite_dir, early.chain(from))
}

/// Tells the client why not all of its files are there, as a line of JSON, the only thing that it ever gets.
/// Then what it still sends is taken for a while: a connection that is closed before loses the line.
pub(super) fn explain(fault: &Fault, mut to: &TcpStream) {
    let message = match fault {
        // Its cause is the host's own affair.
        Fault::Host(DriverError::Failed { action, .. }) => {
            format!("{action}: the host failed, the agent's log has the cause")
        }
        fault => fault.to_string(),
    };
    let line = json!({ "type": "error", "message": message });
    let told = to
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| to.shutdown(Shutdown::Write))
        .and_then(|()| to.set_read_timeout(Some(LINGER)))
        .and_then(|()| io::copy(&mut to.take(MAX_REST_BYTES), &mut io::sink()).map(drop));
    if let Err(error) = told {
        tracing::debug!(%error, "a client does not hear why its copy failed");
    }
}

/// [`receive`] from anything.
pub(super) fn unpack(
    mut tree: Tree,
    path: &[u8],
    no_overwrite_dir: bool,
    from: impl Read,
) -> Result<(), Fault> {
    let bounds = Bounds::default();
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
