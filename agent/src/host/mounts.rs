//! Mounts of the host.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Where the kernel says what is mounted.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Folders that are shown as one.
#[derive(Clone, Copy, Debug)]
pub struct Overlay<'a> {
    /// Read only.
    pub lower: &'a Path,
    /// Holds what differs from it.
    pub upper: &'a Path,
    /// The kernel's own, in the file system of `upper`.
    pub work: &'a Path,
}

impl Overlay<'_> {
    /// Mounts it on a folder.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn mount(&self, at: &Path) -> io::Result<()> {
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            escaped(self.lower, &['\\', ',', ':'])?,
            escaped(self.upper, &['\\', ','])?,
            escaped(self.work, &['\\', ','])?,
        );
        let flags = MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        Ok(mount(Some("overlay"), at, Some("overlay"), flags, Some(options.as_str()))?)
    }
}

/// Shows on a folder, to be read only, what is in `lower` as `upper` changes it.
///
/// # Errors
/// The kernel refuses.
pub fn show_over(lower: &Path, upper: &Path, at: &Path) -> io::Result<()> {
    let marks = ['\\', ',', ':'];
    let options = format!("lowerdir={}:{}", escaped(upper, &marks)?, escaped(lower, &marks)?);
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    Ok(mount(Some("overlay"), at, Some("overlay"), flags, Some(options.as_str()))?)
}

/// Mounts a file system of a ZFS pool, or a snapshot of one to be read only, whatever it says of where it
/// belongs.
///
/// # Errors
/// The kernel refuses.
pub fn dataset(name: &str, at: &Path) -> io::Result<()> {
    let read_only = if name.contains('@') { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOATIME | read_only;
    Ok(mount(Some(name), at, Some("zfs"), flags, None::<&str>)?)
}

/// Mounts what the kernel says of devices, those of this thread's network among them.
pub(super) fn sysfs(at: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("sysfs"), at, Some("sysfs"), flags, None::<&str>)?)
}

/// As the overlay's options have a path.
fn escaped(path: &Path, special: &[char]) -> io::Result<String> {
    let text = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if special.contains(&character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    Ok(escaped)
}

/// Keeps what is at `from` reachable at `to`, also when nobody else has it.
///
/// # Errors
/// The kernel refuses.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Takes what is mounted on `at` away; nothing there is no error. What a process still uses stays with
/// that process until it ends.
///
/// # Errors
/// The kernel refuses.
pub fn unmount(at: &Path) -> io::Result<()> {
    match umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // Not mounted, or no such place.
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Whether something is mounted on this folder.
///
/// # Errors
/// The kernel does not tell.
pub fn is_mounted(at: &Path) -> io::Result<bool> {
    Ok(mounted(at)?.is_some())
}

/// What is mounted on this folder, as the kernel calls it: of ZFS the dataset, by the name that it has
/// now.
///
/// # Errors
/// The kernel does not tell.
pub fn mounted(at: &Path) -> io::Result<Option<String>> {
    let at = match at.canonicalize() {
        Ok(at) => at,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mounts = std::fs::read_to_string(MOUNTS)?;
    // Of several the last one is seen.
    let line = mounts.lines().rev().find(|line| place(line).is_some_and(|place| place == at));
    Ok(line.map(|line| source(line).unwrap_or_default()))
}

/// The place in a line of `mountinfo`.
fn place(line: &str) -> Option<PathBuf> {
    plain(line.split(' ').nth(4)?).map(PathBuf::from)
}

/// What is mounted there.
fn source(line: &str) -> Option<String> {
    plain(line.split_once(" - ")?.1.split(' ').nth(1)?)
}

/// A field of a line, in which blanks are written as octal numbers.
fn plain(field: &str) -> Option<String> {
    let mut text = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        text.push_str(plain);
        let code = u8::from_str_radix(escaped.get(..3)?, 8).ok()?;
        text.push(char::from(code));
        rest = escaped.get(3..)?;
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_the_options_own_marks_are_escaped() {
        let escape = |path: &str| escaped(Path::new(path), &['\\', ',', ':']).unwrap();
        assert_eq!(escape("/a,b:c\\d"), "/a\\,b\\:c\\\\d");
    }

    #[test]
    fn places_are_read_as_the_kernel_writes_them() {
        let line = "31 23 0:28 / /a\\040b rw,relatime - overlay overlay rw";
        assert_eq!(place(line), Some(PathBuf::from("/a b")));
        assert_eq!(source(line).as_deref(), Some("overlay"));
        let line = "41 23 0:30 / /run/a rw,noatime shared:9 - zfs zones/a\\040b/root rw,xattr";
        assert_eq!(source(line).as_deref(), Some("zones/a b/root"));
        assert_eq!(place("31 23"), None);
        assert_eq!(mounted(Path::new("/proc")).unwrap().as_deref(), Some("proc"));
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self/absent")).unwrap());
        unmount(Path::new("/nonexistent")).unwrap();
    }
}
