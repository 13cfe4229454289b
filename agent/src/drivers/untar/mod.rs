//! Archives of others, unpacked safely: within bounds, and within one folder whatever they name.

mod attributes;
mod bounded;
mod fault;
mod place;
mod tree;

pub(crate) use attributes::{Attributes, XATTR, is_kept};
pub(crate) use bounded::{AnyEntry, Sum, Summed, entries, entries_of_file};
pub use fault::Fault;
pub(crate) use fault::{host, invalid, shown, unreadable};
pub(crate) use place::{Made, place};
pub(crate) use tree::{Inside, Tree};

/// Most that an archive may hold.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Files, folders, links and marks of deletion.
    pub(crate) entries: u64,
    /// Bytes without compression.
    pub(crate) bytes: u64,
    /// Folders within each other.
    pub(crate) depth: usize,
    /// Bytes of a path, and of what a link says.
    pub(crate) path_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { entries: 10_000_000, bytes: 1 << 40, depth: 256, path_bytes: 4096 }
    }
}
