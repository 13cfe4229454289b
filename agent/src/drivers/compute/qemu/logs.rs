//! What guests print and their hypervisors say, kept within bounds: by the agent for the guests that
//! it follows, and by `muster-agent trim-logs` for all, also while there is no agent.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::path::Path;

use super::folder::GuestFolder;

/// A log over this is emptied, bytes.
const LIMIT_BYTES: u64 = 32 * 1024 * 1024;
/// What is kept of its end, bytes; less than the limit.
const KEPT_BYTES: i64 = 1024 * 1024;

/// Keeps the logs of all guests of an agent within their limit, whether or not it runs.
///
/// # Errors
/// The guests' folders can't be listed.
pub fn trim(data_dir: &Path) -> io::Result<()> {
    for guest in GuestFolder::all(data_dir)? {
        bound(&guest);
    }
    Ok(())
}

/// The hypervisor appends, so an emptied log goes on from its begin. Its end is kept beside it:
/// what a guest printed before it died may be there.
pub(super) fn bound(folder: &GuestFolder) {
    for log in [folder.log(), folder.console_log()] {
        if std::fs::metadata(&log).is_ok_and(|log| log.len() > LIMIT_BYTES)
            && let Err(error) = empty(&log)
        {
            tracing::warn!(%error, log = %log.display(), "cannot empty a log");
        }
    }
}

fn empty(log: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(log)?;
    // Somebody else does it just now; two would keep the end of an empty log.
    if file.try_lock().is_err() {
        return Ok(());
    }
    file.seek(SeekFrom::End(-KEPT_BYTES))?;
    let mut kept = File::create(log.with_extension("log.1"))?;
    io::copy(&mut file, &mut kept)?;
    file.set_len(0)
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::VmUuid;

    use super::*;

    fn guest(data_dir: &Path) -> GuestFolder {
        let run_dir = data_dir.join("run");
        let guest = GuestFolder::new(&run_dir, data_dir, VmUuid(uuid::Uuid::from_u128(1)));
        guest.make().unwrap();
        guest
    }

    fn too_long() -> Vec<u8> {
        let mut text = vec![b'x'; usize::try_from(LIMIT_BYTES).unwrap()];
        text.extend(b"the last words");
        text
    }

    #[test]
    fn the_end_of_a_log_that_is_emptied_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let guest = guest(folder.path());
        let log = guest.console_log();
        std::fs::write(&log, "short").unwrap();
        trim(folder.path()).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"short");

        std::fs::write(&log, too_long()).unwrap();
        trim(folder.path()).unwrap();
        assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
        let kept = std::fs::read(log.with_extension("log.1")).unwrap();
        assert_eq!(kept.len(), usize::try_from(KEPT_BYTES).unwrap());
        assert!(kept.ends_with(b"the last words"));
    }

    #[test]
    fn a_log_that_somebody_else_empties_is_left_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let guest = guest(folder.path());
        std::fs::write(guest.log(), too_long()).unwrap();
        let theirs = File::open(guest.log()).unwrap();
        theirs.lock().unwrap();
        bound(&guest);
        assert!(std::fs::metadata(guest.log()).unwrap().len() > LIMIT_BYTES);
        drop(theirs);
        bound(&guest);
        assert_eq!(std::fs::metadata(guest.log()).unwrap().len(), 0);
    }

    #[test]
    fn a_node_without_guests_has_nothing_to_trim() {
        let folder = tempfile::tempdir().unwrap();
        trim(folder.path()).unwrap();
        // A file, and the folder of something that is no VM.
        std::fs::create_dir_all(folder.path().join("guests/other")).unwrap();
        std::fs::write(folder.path().join("guests/file"), "").unwrap();
        trim(folder.path()).unwrap();
    }
}
