//! Files of a guest as a tar stream, in both directions. Paths are resolved within the guest's root by
//! the kernel, however the guest moves its links meanwhile.

mod read;
mod write;

use std::ffi::OsStr;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;
use rustix::fs::{AtFlags, FileType, Stat, readlinkat, statat};
use serde::Serialize;

use super::Peer;
use crate::drivers::DriverError;
use crate::drivers::untar::{Bounds, Fault, Inside, Tree};
use crate::host::idmap::{self, IdRange};

/// Time without a byte after which a copy is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// `mode` of a folder and of a link, as clients know them.
const FOLDER_MODE: u64 = 1 << 31;
const LINK_MODE: u64 = 1 << 26;

/// A path in a guest that was looked at.
#[derive(Debug)]
pub struct Place {
    root: OwnedFd,
    path: Vec<u8>,
    /// The host's ids that the guest's own are, unless its own are the host's.
    ids: Option<IdRange>,
    /// What is there.
    pub stat: PathStat,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStat {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// ISO time.
    pub mtime: String,
    /// Where a link leads to; empty for all else.
    pub link_target: String,
    /// 2^31 for a folder, 2^26 for a link, else 0.
    pub mode: u64,
}

/// Which way files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the client.
    Read,
    /// From the client, into the folder at the path.
    Write {
        /// A folder is not replaced by something else, nor the reverse.
        no_overwrite_dir: bool,
    },
}

/// Looks at a path in the root folder of a guest. May wait for the guest's disk.
///
/// # Errors
/// `InvalidParameters`: a path that leads outside; `FileNotFound`.
pub fn look(root: OwnedFd, path: &str) -> Result<Place, DriverError> {
    let bounds = Bounds::default();
    let inside = Inside::new(path.as_bytes(), &bounds).map_err(bad_path)?;
    let tree = Tree::of_guest(root.try_clone().map_err(failed)?, bounds.clone());
    let tree = tree.map_err(bad_path)?;
    let missing = || DriverError::refused(Code::FileNotFound, format!("there is no {path:?}"));
    // With a slash at its end a path is that of the folder that a link leads to.
    let follow = path.ends_with('/') || path.ends_with("/.") || inside.split().is_none();
    let stat = if follow {
        let folder = tree.find(&inside).map_err(bad_path)?.ok_or_else(missing)?;
        let found = rustix::fs::fstat(&folder).map_err(|error| failed(error.into()))?;
        stat(name(&inside), &found, String::new())
    } else {
        let folder = tree.find_above(&inside).map_err(bad_path)?.ok_or_else(missing)?;
        let (_, leaf) = inside.split().ok_or_else(missing)?;
        let found = statat(&folder, leaf, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        let link = match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => readlinkat(folder.as_fd(), leaf, Vec::new())
                .map(|to| String::from_utf8_lossy(to.to_bytes()).into_owned())
                .map_err(|_| missing())?,
            _ => String::new(),
        };
        stat(name(&inside), &found, link)
    };
    Ok(Place { root, path: path.as_bytes().to_vec(), ids: None, stat })
}

impl Place {
    /// In a guest whose own ids are these of the host: a client knows files by those that they have in the
    /// guest.
    #[must_use]
    pub fn with_ids(self, ids: Option<IdRange>) -> Self {
        Self { ids, ..self }
    }

    /// Refuses what no files can be copied into.
    ///
    /// # Errors
    /// `PathNotDirectory`.
    pub fn must_be_folder(&self) -> Result<(), DriverError> {
        let bounds = Bounds::default();
        let inside = Inside::new(&self.path, &bounds).map_err(bad_path)?;
        let tree = Tree::of_guest(self.root.try_clone().map_err(failed)?, bounds.clone());
        match tree.and_then(|tree| tree.find(&inside)).map_err(bad_path)? {
            Some(_) => Ok(()),
            None => {
                let text = format!("{:?} is no directory", self.stat.name);
                Err(DriverError::refused(Code::PathNotDirectory, text))
            }
        }
    }

    /// Serves a copy until it is done, or nothing has moved for half a minute.
    pub async fn serve(self, peer: Peer, direction: Direction) {
        let connection = peer.into_blocking().and_then(|(early, stream)| {
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            Ok((early, stream.try_clone()?, stream))
        });
        let (early, other, stream) = match connection {
            Ok(connection) => connection,
            Err(error) => return tracing::warn!(%error, "a session could not be served"),
        };
        // Ends the thread at once when this is dropped.
        let _cut = Cut(other);
        #[expect(clippy::disallowed_methods, reason = "files and the connection are waited for")]
        let copied = tokio::task::spawn_blocking(move || match direction {
            Direction::Read => read::send(&self.root, &self.path, self.ids, &stream),
            Direction::Write { no_overwrite_dir } => {
                let ids = self.ids;
                let receive = move || {
                    let received = write::receive(self, no_overwrite_dir, &early, &stream);
                    if let Err(fault) = &received {
                        write::explain(fault, &stream);
                    }
                    received
                };
                match ids {
                    None => receive(),
                    // The host's root is nobody in there, whose files can't be.
                    Some(ids) => idmap::as_root_of(ids, move || Ok(receive()))
                        .unwrap_or_else(|error| Err(Fault::Host(failed(error)))),
                }
            }
        });
        match copied.await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                tracing::info!(error = %Chain(&fault), "a copy of a guest's files ended early");
            }
            Err(error) => tracing::error!(%error, "a copy of a guest's files failed"),
        }
    }
}

/// A connection that is closed when it goes out of scope, whoever else holds it.
struct Cut(TcpStream);

impl Drop for Cut {
    fn drop(&mut self) {
        match self.0.shutdown(Shutdown::Both) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                tracing::debug!(%error, "a session's connection does not close");
            }
            _ => {}
        }
    }
}

fn name(path: &Inside<'_>) -> String {
    let leaf = path.split().map_or(OsStr::new("/"), |(_, leaf)| leaf);
    String::from_utf8_lossy(leaf.as_bytes()).into_owned()
}

fn stat(name: String, found: &Stat, link_target: String) -> PathStat {
    let mode = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => FOLDER_MODE,
        FileType::Symlink => LINK_MODE,
        _ => 0,
    };
    let mtime = Timestamp::from_second(found.st_mtime).unwrap_or(Timestamp::UNIX_EPOCH);
    let size = u64::try_from(found.st_size).unwrap_or(0);
    PathStat { name, size, mtime: mtime.to_string(), link_target, mode }
}

/// A path of a client that can't be followed.
fn bad_path(fault: Fault) -> DriverError {
    match fault {
        Fault::Host(error) => error,
        fault => DriverError::refused(Code::InvalidParameters, format!("path: {fault}")),
    }
}

fn failed(error: io::Error) -> DriverError {
    DriverError::failed("look at a file of a guest", error)
}
