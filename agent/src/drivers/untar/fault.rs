//! Why an archive was not unpacked: its own fault, or the host's.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::drivers::{DriverError, files};

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// What is in it can't be, or must not be.
    #[error("{0}")]
    Invalid(String),
    /// It may be right, but not for this agent.
    #[error("{0}")]
    Unsupported(String),
    /// Nobody wants it any more.
    #[error("it was given up")]
    Stopped,
    /// The host failed.
    #[error(transparent)]
    Host(#[from] DriverError),
}

/// A fault of the archive.
pub(crate) fn invalid<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Invalid(problem.into()))
}

/// A fault of the host.
pub(crate) fn host(action: &str, path: &Path, error: io::Error) -> Fault {
    Fault::Host(files::failed(action, path, error))
}

/// What the kernel says of a name in an archive, as text for people: whose fault it is depends on
/// what it says.
pub(crate) fn at(name: &[u8], error: Errno) -> Fault {
    let shown = shown(name);
    match error {
        Errno::NOTDIR => Fault::Invalid(format!("{shown} is in what is no folder")),
        Errno::LOOP => Fault::Invalid(format!("{shown} is behind a circle of links")),
        Errno::NAMETOOLONG => Fault::Invalid(format!("{shown} has too long a name")),
        Errno::NOENT => Fault::Invalid(format!("{shown} is in a folder that is not there")),
        Errno::XDEV => Fault::Invalid(format!("{shown} is not within the image")),
        Errno::MLINK => Fault::Invalid(format!("{shown} has too many links")),
        Errno::INVAL | Errno::EXIST | Errno::ISDIR => {
            Fault::Invalid(format!("{shown} can't be made: {error}"))
        }
        _ => host("unpack", Path::new(&shown), error.into()),
    }
}

/// A reader failed: the archive is damaged, or its disk is.
pub(crate) fn unreadable(what: &str, error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(number) => host("read", Path::new(what), io::Error::from_raw_os_error(number)),
        None => Fault::Invalid(format!("{what} can't be read: {error}")),
    }
}

/// A name from an archive, for people.
pub(crate) fn shown(name: &[u8]) -> String {
    const MOST_BYTES: usize = 200;
    let text = String::from_utf8_lossy(&name[..name.len().min(MOST_BYTES)]);
    format!("{text:?}")
}
