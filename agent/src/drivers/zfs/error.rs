//! What ZFS says when it does not do something, as codes. Pure.

use muster_shared::wire::Code;

use crate::drivers::DriverError;

/// Longest text of ZFS that is told to clients, bytes.
const MAX_TEXT_BYTES: usize = 1_024;

/// Parts of the programs' messages, in the C locale, and what they mean; the first that is found
/// counts, so the special ones come before the general ones.
const TEXTS: &[(&str, Code)] = &[
    ("could not find any snapshots", Code::SnapshotNotFound),
    ("no such snapshot", Code::SnapshotNotFound),
    ("snapshot has user holds", Code::SnapshotHeld),
    ("it's being held", Code::SnapshotHeld),
    ("dataset is busy", Code::DatasetBusy),
    ("device busy", Code::DatasetBusy),
    ("target is busy", Code::DatasetBusy),
    ("resource busy", Code::DatasetBusy),
    ("more recent snapshots or bookmarks exist", Code::DatasetBusy),
    ("has children", Code::DatasetHasChildren),
    ("has dependent clones", Code::DatasetHasClones),
    ("snapshot is cloned", Code::DatasetHasClones),
    ("out of space", Code::NoSpace),
    ("quota exceeded", Code::NoSpace),
    ("no space left", Code::NoSpace),
    ("size is greater than available space", Code::NoSpace),
    ("incomplete stream", Code::StreamFailed),
    ("is suspended", Code::PoolUnavailable),
    ("currently suspended", Code::PoolUnavailable),
    ("no such pool", Code::PoolUnavailable),
    ("I/O error", Code::PoolUnavailable),
    ("Input/output error", Code::PoolUnavailable),
    ("ZFS modules are not loaded", Code::ZfsUnavailable),
    ("ZFS modules cannot be auto-loaded", Code::ZfsUnavailable),
    ("/dev/zfs and /proc/self/mounts are required", Code::ZfsUnavailable),
    ("Unable to open /dev/zfs", Code::ZfsUnavailable),
    ("permission denied", Code::PermissionDenied),
    ("Permission denied", Code::PermissionDenied),
    ("dataset already exists", Code::DatasetExists),
    ("destination exists", Code::DatasetExists),
    ("must specify -F", Code::DatasetExists),
    ("dataset does not exist", Code::DatasetNotFound),
    ("parent does not exist", Code::DatasetNotFound),
    ("does not exist", Code::DatasetNotFound),
    ("bad property list", Code::InvalidProperty),
    ("invalid property", Code::InvalidProperty),
    ("is readonly", Code::InvalidProperty),
    ("bad numeric value", Code::InvalidProperty),
    ("must be one of", Code::InvalidProperty),
    ("cannot set property", Code::InvalidProperty),
    ("invalid character", Code::InvalidName),
    ("invalid dataset name", Code::InvalidName),
    ("name is too long", Code::InvalidName),
];

/// What the text of a failed program means.
#[must_use]
pub(super) fn code_of(text: &str) -> Code {
    let found = TEXTS.iter().find(|(part, _)| text.contains(part));
    found.map_or(Code::InternalError, |(_, code)| code.clone())
}

/// The refusal that a failed program's text stands for: its first lines, without the blanks that
/// make them look well in a terminal.
#[must_use]
pub(super) fn refusal(text: &str) -> DriverError {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.truncate(words.floor_char_boundary(MAX_TEXT_BYTES));
    if words.is_empty() {
        words.push_str("it failed without a reason");
    }
    DriverError::refused(code_of(text), words)
}

/// What an operation on one dataset was, for [`of_errno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// Something was to be made.
    Making,
    /// A dataset was to be removed.
    Removing,
    /// Snapshots were to be removed.
    Snapshots,
    /// Snapshots were to be held, or not any more.
    Holds,
    /// A dataset was to be brought back to a snapshot.
    Rollback,
    /// Anything else.
    Other,
}

/// What an error number of `libzfs_core` means. Numbers are Linux's; ZFS has some of its own from
/// 1024 on, of which those are known that the agent's operations can meet.
#[must_use]
pub(super) fn of_errno(errno: i32, about: About) -> (Code, &'static str) {
    use nix::libc;
    match (errno, about) {
        (libc::ESRCH, About::Holds) => (Code::SnapshotNotFound, "no such tag on this dataset"),
        (libc::ENOENT | libc::ESRCH, About::Snapshots | About::Holds | About::Rollback) => {
            (Code::SnapshotNotFound, "could not find any snapshots")
        }
        (libc::ENOENT, _) => (Code::DatasetNotFound, "dataset does not exist"),
        (libc::EEXIST, About::Removing) => {
            (Code::DatasetHasChildren, "dataset has children or dependent clones")
        }
        (libc::EEXIST, About::Snapshots) => {
            (Code::DatasetHasClones, "snapshot has dependent clones")
        }
        (libc::EEXIST, About::Holds) => (Code::DatasetExists, "tag already exists on this dataset"),
        (libc::EEXIST, About::Rollback) => {
            (Code::DatasetBusy, "more recent snapshots or bookmarks exist")
        }
        (libc::EEXIST, _) => (Code::DatasetExists, "dataset already exists"),
        (libc::EBUSY, _) => (Code::DatasetBusy, "dataset is busy"),
        (libc::ENOSPC, _) => (Code::NoSpace, "out of space"),
        (libc::EDQUOT, _) => (Code::NoSpace, "quota exceeded"),
        (libc::EINVAL, _) => (Code::InvalidName, "invalid argument"),
        (libc::ENAMETOOLONG, _) => (Code::InvalidName, "name is too long"),
        (libc::ENXIO | libc::EIO | libc::EAGAIN, _) => {
            (Code::PoolUnavailable, "pool I/O is currently suspended or failed")
        }
        (libc::EPERM | libc::EACCES, _) => (Code::PermissionDenied, "permission denied"),
        (libc::EXDEV, _) => (Code::InvalidName, "dataset is in another pool"),
        (libc::ETXTBSY, _) => (Code::DatasetBusy, "dataset is busy: a stream is being received"),
        _ => (Code::InternalError, "the call failed"),
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    fn the_words_of_the_programs_have_codes() {
        for (text, code) in [
            ("cannot open 'zones/x': dataset does not exist\n", "DatasetNotFound"),
            ("cannot create 'zones/x': dataset already exists\n", "DatasetExists"),
            ("cannot create 'zones/x/y': parent does not exist\n", "DatasetNotFound"),
            ("cannot destroy 'zones/x': filesystem has children\nuse '-r'", "DatasetHasChildren"),
            ("cannot destroy 'zones/x@a': snapshot has dependent clones", "DatasetHasClones"),
            ("cannot destroy 'zones/x': filesystem has dependent clones", "DatasetHasClones"),
            ("cannot destroy 'zones/x': dataset is busy\n", "DatasetBusy"),
            (
                "could not find any snapshots to destroy; check snapshot names.\n",
                "SnapshotNotFound",
            ),
            (
                "cannot destroy snapshot zones/x@a: it's being held. Run 'zfs holds -r'",
                "SnapshotHeld",
            ),
            ("cannot create 'zones/x': out of space\n", "NoSpace"),
            ("cannot open 'zones': no such pool\n", "PoolUnavailable"),
            ("cannot open 'zones': pool I/O is currently suspended\n", "PoolUnavailable"),
            ("The ZFS modules are not loaded.\nTry running", "ZfsUnavailable"),
            (
                "cannot set property for 'zones/x': 'atime' must be one of 'on | off'",
                "InvalidProperty",
            ),
            ("bad property list: invalid property 'nonsense'\n", "InvalidProperty"),
            ("cannot set property for 'zones/x': permission denied\n", "PermissionDenied"),
            ("cannot create 'a b': invalid character ' ' in name\n", "InvalidName"),
            (
                "cannot rollback to 'zones/x@a': more recent snapshots or bookmarks exist",
                "DatasetBusy",
            ),
            ("cannot set property for 'zones/v': size is greater than available space", "NoSpace"),
            ("something new\n", "InternalError"),
        ] {
            assert_eq!(code_of(text), code, "{text}");
        }
    }

    #[test]
    fn clients_get_the_words_in_one_bounded_line() {
        let said = |text: &str| match refusal(text) {
            DriverError::Refused { message, .. } => message,
            DriverError::Failed { action, .. } => action,
        };
        assert_eq!(said("cannot\n\topen  'x'\n"), "cannot open 'x'");
        assert_eq!(said(&"é".repeat(2000)).len(), MAX_TEXT_BYTES);
        assert_eq!(said(" \n"), "it failed without a reason");
    }

    #[test]
    fn numbers_mean_what_the_operation_makes_of_them() {
        let code = |errno, about| of_errno(errno, about).0;
        assert_eq!(code(libc::EEXIST, About::Making), "DatasetExists");
        assert_eq!(code(libc::EEXIST, About::Removing), "DatasetHasChildren");
        assert_eq!(code(libc::EEXIST, About::Snapshots), "DatasetHasClones");
        assert_eq!(code(libc::EBUSY, About::Removing), "DatasetBusy");
        assert_eq!(code(libc::ENOENT, About::Snapshots), "SnapshotNotFound");
        assert_eq!(code(libc::EDQUOT, About::Making), "NoSpace");
        assert_eq!(code(9999, About::Other), "InternalError");
    }
}
