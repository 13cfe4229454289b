//! An entry of an archive becomes a file, a folder or a link.

use std::fs::File;
use std::os::fd::AsFd as _;

use tar::EntryType;

use super::{AnyEntry, Attributes, Bounds, Fault, Inside, Tree, invalid, shown};

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is there.
    Done,
    /// It is a device, and was left out.
    Device,
}

/// Copies the content of an entry to its file.
pub(crate) type Fill<'a> = &'a mut dyn FnMut(&mut dyn AnyEntry, &mut File) -> Result<(), Fault>;

/// Makes what an entry is, at `path`. Names of files that it links to are those of the archive, which
/// lies at `prefix` within the root.
pub(crate) fn place(
    tree: &mut Tree,
    path: &Inside<'_>,
    entry: &mut dyn AnyEntry,
    prefix: &[u8],
    bounds: &Bounds,
    fill: Fill<'_>,
) -> Result<Made, Fault> {
    let name = path.given;
    let has = Attributes::of(name, entry)?.owned(name, |id| tree.outside(id))?;
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let mut file = tree.file(path)?;
            fill(entry, &mut file)?;
            has.give(name, file.as_fd())?;
        }
        EntryType::Directory => tree.folder(path, &has)?,
        EntryType::Symlink => tree.symlink(path, &link(name, entry, bounds)?, &has)?,
        EntryType::Link => {
            let to = [prefix, &link(name, entry, bounds)?].concat();
            tree.hard_link(path, &Inside::new(&to, bounds)?)?;
        }
        EntryType::Fifo => tree.pipe(path, &has)?,
        EntryType::Char | EntryType::Block => return Ok(Made::Device),
        other => return invalid(format!("{} is of the unknown kind {other:?}", shown(name))),
    }
    Ok(Made::Done)
}

/// What an entry links to.
fn link(name: &[u8], entry: &dyn AnyEntry, bounds: &Bounds) -> Result<Vec<u8>, Fault> {
    let usable = |to: &Vec<u8>| (1..bounds.path_bytes).contains(&to.len()) && !to.contains(&0);
    let to = entry.link().filter(usable);
    to.ok_or_else(|| Fault::Invalid(format!("{} links to nothing that can be", shown(name))))
}
