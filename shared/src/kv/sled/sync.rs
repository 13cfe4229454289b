//! The sync of sled's log.
//!
//! sled writes its log in segments, and into the header of each new one how far the log before it is
//! stable. Recovery takes the furthest of these marks and reads on from the segment that it lies in;
//! if that segment is missing, recovery takes the whole log for empty. The same marks decide which
//! segments are free to be written over. So what a mark vouches for must be durable before it. On
//! Linux, though, sled syncs each write with `sync_file_range`, which leaves it in the device's
//! cache. When more than a segment was written since the last real sync (a large commit, or one
//! before which reads split and merged pages), a power cut may keep a header and lose the segment
//! that it vouches for: then all commits are gone, also those of long before.
//!
//! sled has no setting for this. So the program brings its own `sync_file_range`, which the linker
//! takes before the C library's. It syncs the file, as sled itself does on other systems.
#![expect(unsafe_code, reason = "a function that replaces one of the C library's by its name")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;

/// Calls of the function below.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Whether it does nothing, as good as the original in a power cut.
static SKIPPED: AtomicBool = AtomicBool::new(false);

/// Called by sled after each write of its log; nothing else in these programs uses it.
#[unsafe(no_mangle)]
extern "C" fn sync_file_range(fd: RawFd, _at: i64, _bytes: i64, _flags: u32) -> i32 {
    CALLS.fetch_add(1, Ordering::Relaxed);
    if SKIPPED.load(Ordering::Relaxed) {
        return 0;
    }
    // SAFETY: sled keeps its file open while it waits for this, and it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    match file.sync_data() {
        Ok(()) => 0,
        Err(error) => {
            Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)).set();
            -1
        }
    }
}

/// How often sled has synced a log in this process.
pub(super) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// After a flush of sled's: whether it came here, rather than to the C library.
///
/// # Errors
/// It never did, in no map: what it flushed is not durable.
pub(super) fn check_linked() -> io::Result<()> {
    if calls() > 0 { Ok(()) } else { Err(io::Error::other("sled is linked to another sync")) }
}

/// No sync from here on in this process.
pub(super) fn skip_for_tests() {
    SKIPPED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_sync_that_fails_says_why() {
        let (_, pipe) = io::pipe().unwrap();
        assert_eq!(sync_file_range(pipe.as_raw_fd(), 0, 0, 0), -1);
        assert_eq!(Errno::last(), Errno::EINVAL);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(sync_file_range(file.as_raw_fd(), 0, 0, 0), 0);
    }
}
