//! A VM as one stream: its record and the content of its volumes, for `muster vm export` and
//! `import`. Described byte by byte in `docs/export.md`.
//!
//! ```text
//! magic, version │ header │ data │ data │ … │ end
//! ```
//!
//! The checksum of each frame covers the one before it as well, so that of the last one covers the
//! whole stream, and a stream that was cut goes on after any whole frame. [`Reader`] takes whatever
//! it is given for hostile: it holds one frame at a time, and nothing that it returns is unchecked.

mod frame;
mod header;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use frame::{MAX_DATA_BYTES, MAX_HEADER_BYTES};
pub use header::{FORMAT, Header, MAX_VOLUMES, Role, VERSION, Volume};
pub use reader::{Event, ReadError, Reader};
pub use writer::{Place, Writer};
