//! Ids of users and groups that are a container's own, and folders that are shown under them.
//!
//! What lies on disk keeps the ids that the container knows, from 0 on. The kernel translates them where a
//! folder is shown (an idmapped mount), so that nothing has to be rewritten, neither when a container is
//! made nor when its files leave the node.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use serde::{Deserialize, Serialize};

use super::exec::PATH;
use super::syscalls;

/// What files of others have in a container that knows no such user.
pub const NOBODY: u32 = 65_534;

/// The host's ids that the ids of one container are, from its 0 on; of users and of groups alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// Root of the container, as the host calls it.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl IdRange {
    /// What the host calls an id of the container; `None`: it has no such.
    #[must_use]
    pub fn outside(self, inside: u32) -> Option<u32> {
        (inside < self.count).then(|| self.first.checked_add(inside)).flatten()
    }

    /// What the container calls an id of the host.
    #[must_use]
    pub fn inside(self, outside: u32) -> u32 {
        outside.checked_sub(self.first).filter(|id| *id < self.count).unwrap_or(NOBODY)
    }

    /// Whether some id is of both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| u64::from(range.first) + u64::from(range.count);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

/// A user namespace without processes, which is there as long as this is.
#[derive(Debug)]
pub struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// Makes one whose ids are these. Waits for a process.
    ///
    /// # Errors
    /// The kernel refuses, or makes none for this process.
    pub fn make(ids: IdRange) -> io::Result<Self> {
        // Only a process can be in a new one first: it waits there to be ended.
        #[expect(clippy::disallowed_methods, reason = "nothing outside this module starts one")]
        let mut command = std::process::Command::new("cat");
        command.env_clear().env("PATH", PATH).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        syscalls::in_a_new_user_namespace(&mut command);
        // It is in it when this returns.
        let first = First(command.spawn()?);
        let proc = Path::new("/proc").join(first.0.id().to_string());
        let map = format!("0 {} {}\n", ids.first, ids.count);
        for file in ["uid_map", "gid_map"] {
            std::fs::write(proc.join(file), &map)?;
        }
        File::open(proc.join("ns/user")).map(|file| Self(file.into()))
    }
}

struct First(Child);

impl Drop for First {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            tracing::warn!(pid = self.0.id(), %error, "a process stays that nobody needs");
        }
    }
}

/// Shows the folder `from` on the folder `at`, what is mounted in it left out, with each id of what is in
/// it as that of the namespace.
///
/// # Errors
/// `InvalidInput` where the kernel or the file system can't do that; or it refuses.
pub fn show(from: &Path, at: &Path, namespace: &UserNamespace, read_only: bool) -> io::Result<()> {
    let tree = syscalls::open_tree(from)?;
    syscalls::map_ids(&tree, &namespace.0, read_only)?;
    syscalls::move_mount(&tree, at)
}

/// As [`show`], of what is mounted on this folder, in its place.
///
/// # Errors
/// As [`show`]; then nothing is mounted there.
pub fn show_in_place(at: &Path, namespace: &UserNamespace) -> io::Result<()> {
    let tree = syscalls::open_tree(at);
    super::mounts::unmount(at)?;
    let tree = tree?;
    syscalls::map_ids(&tree, &namespace.0, false)?;
    syscalls::move_mount(&tree, at)
}

/// Whether [`show`] could show a folder. Nothing is mounted for that.
///
/// # Errors
/// Why it could not.
pub fn can_show(from: &Path, ids: IdRange) -> io::Result<()> {
    let namespace = UserNamespace::make(ids)?;
    syscalls::map_ids(&syscalls::open_tree(from)?, &namespace.0, false)
}

/// Does something whose files are root's, as these ids call it; with all rights of this process.
///
/// # Errors
/// The kernel refuses; or what was done failed.
pub fn as_root_of<T: Send + 'static>(
    ids: IdRange,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    super::netns::on_a_thread_of_its_own(move || {
        syscalls::keep_rights()?;
        // Both tell only what it was before.
        setfsgid(Gid::from_raw(ids.first));
        setfsuid(Uid::from_raw(ids.first));
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_translated_both_ways() {
        let ids = IdRange { first: 1_000_000, count: 65_536 };
        for (inside, outside) in [(0, 1_000_000), (33, 1_000_033), (65_535, 1_065_535)] {
            assert_eq!((ids.outside(inside), ids.inside(outside)), (Some(outside), inside));
        }
        assert_eq!(ids.outside(65_536), None);
        assert_eq!(IdRange { first: u32::MAX, count: 2 }.outside(1), None);
        for stranger in [0, 999_999, 1_065_536] {
            assert_eq!(ids.inside(stranger), NOBODY);
        }
    }

    #[test]
    fn ranges_beside_each_other_share_nothing() {
        let range = |first| IdRange { first, count: 10 };
        assert!(range(0).overlaps(range(9)) && range(9).overlaps(range(0)));
        assert!(!range(0).overlaps(range(10)) && !range(10).overlaps(range(0)));
        assert!(range(5).overlaps(range(5)) && !range(u32::MAX - 3).overlaps(range(0)));
    }
}
