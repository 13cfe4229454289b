//! Network namespaces that are kept by a name in the file system.

use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

use super::idmap::IdRange;
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

/// Shows on a folder, to be read only, what the kernel says of the devices that a namespace has.
///
/// # Errors
/// There is no such namespace; or the kernel refuses.
pub fn show_devices(path: &Path, at: &Path) -> io::Result<()> {
    let at = at.to_owned();
    within(path, move || mounts::sysfs(&at))
}

/// Lets everybody in a namespace listen on every port, and these groups ask whether a host is there: rights
/// that root of a container has only where the namespace is its own.
///
/// # Errors
/// There is no such namespace; or the kernel refuses.
pub fn open_ports(path: &Path, groups: IdRange) -> io::Result<()> {
    let last = groups.first.saturating_add(groups.count.saturating_sub(1));
    within(path, move || {
        let ipv4 = Path::new("/proc/sys/net/ipv4");
        std::fs::write(ipv4.join("ip_unprivileged_port_start"), "0")?;
        std::fs::write(ipv4.join("ping_group_range"), format!("{} {last}", groups.first))
    })
}

/// A thread that has been in another namespace, or somebody else, is of no use to anybody.
#[expect(clippy::disallowed_methods, reason = "what it becomes is the thread's, and ends with it")]
pub(super) fn on_a_thread_of_its_own<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the namespace ended")))
}
