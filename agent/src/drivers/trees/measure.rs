//! What a copy of a tree would take.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, ioctl_ficlone};
use tokio_util::sync::CancellationToken;

use super::walk::{Entry, Visit, open_root, walk};
use crate::drivers::untar::Fault;

const BLOCK_BYTES: u64 = 512;
/// What a name and its inode take at most, bytes.
const ENTRY_BYTES: u64 = 4096;

/// What is in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Entries.
    pub(crate) entries: u64,
    /// What they take on disk, bytes.
    pub(crate) bytes: u64,
    /// How large they are, holes and further names included, bytes.
    pub(crate) sizes: u64,
}

impl Measure {
    /// That of a folder.
    pub(crate) fn of(root: &Path, stop: &CancellationToken) -> Result<Self, Fault> {
        Self::of_open(open_root(root)?.as_fd(), stop)
    }

    /// That of a folder that is open.
    pub(crate) fn of_open(root: BorrowedFd<'_>, stop: &CancellationToken) -> Result<Self, Fault> {
        let mut measuring = Measuring::default();
        walk(root, stop, &mut measuring)?;
        Ok(measuring.found)
    }

    /// What an archive takes at most, bytes.
    pub(crate) fn archive_bytes(self) -> u64 {
        self.entries.saturating_mul(ENTRY_BYTES).saturating_add(self.sizes)
    }

    /// What a copy takes at most, bytes; `clones`: contents are shared with it.
    pub(crate) fn copy_bytes(self, clones: bool) -> u64 {
        let names = self.entries.saturating_mul(ENTRY_BYTES);
        if clones { names } else { names.saturating_add(self.bytes) }
    }
}

#[derive(Debug, Default)]
struct Measuring {
    found: Measure,
    /// Files with several names that were counted.
    linked: HashSet<(u64, u64)>,
}

impl Visit for Measuring {
    fn enter(&mut self, _folder: Entry<'_>) -> Result<(), Fault> {
        self.found.entries += 1;
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn meet(&mut self, entry: Entry<'_>) -> Result<(), Fault> {
        self.found.entries += 1;
        let stat = entry.stat;
        let is_file = entry.kind() == FileType::RegularFile;
        if is_file {
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            self.found.sizes = self.found.sizes.saturating_add(size);
        }
        if is_file && (stat.st_nlink < 2 || self.linked.insert((stat.st_dev, stat.st_ino))) {
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
            self.found.bytes = self.found.bytes.saturating_add(bytes);
        }
        Ok(())
    }
}

/// Whether the file system of this file lets two files share their content; `beside` is the name of
/// one that is made, and removed again.
pub(crate) fn clones_files(file: &Path, beside: &Path) -> std::io::Result<bool> {
    let from = std::fs::File::open(file)?;
    let to = std::fs::File::create(beside)?;
    let cloned = ioctl_ficlone(&to, &from).is_ok();
    std::fs::remove_file(beside)?;
    Ok(cloned)
}
