//! Network namespaces that are kept by a name in the file system.

use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

use super::mounts;

/// The namespace of the thread that asks.
const OWN: &str = "/proc/thread-self/ns/net";

/// Makes a namespace that stays until it is removed; one that is there stays.
///
/// # Errors
/// The kernel refuses.
pub fn make(path: &Path) -> io::Result<()> {
    if mounts::is_mounted(path)? {
        return Ok(());
    }
    // What is mounted needs a file to be on.
    std::fs::File::options().create(true).append(true).open(path)?;
    let to = path.to_owned();
    on_a_thread_of_its_own(move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mounts::bind(Path::new(OWN), &to)
    })
}

/// Removes a namespace's name; the kernel ends the namespace with its last process. None is no error.
///
/// # Errors
/// The kernel refuses.
pub fn remove(path: &Path) -> io::Result<()> {
    mounts::unmount(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Does something in a namespace, e.g. opens a socket, which stays in it.
///
/// # Errors
/// There is no such namespace; or what was done failed.
pub fn within<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = std::fs::File::open(path)?;
    on_a_thread_of_its_own(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        work()
    })
}

/// A thread that has been in another namespace is of no use to anybody else.
#[expect(clippy::disallowed_methods, reason = "the namespace is the thread's, and ends with it")]
fn on_a_thread_of_its_own<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the namespace ended")))
}
