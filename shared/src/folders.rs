//! Folders that are their owner's alone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

/// Bits of a mode that let somebody else write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bit of folders that are everybody's, as `/tmp`: each may remove only what is theirs.
const STICKY: u32 = 0o1000;

/// Makes a folder, and its parents, that only its owner can look into. One that is there stays
/// as it is.
///
/// # Errors
/// The system's.
pub fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Checks that nobody else but root can change what is in a folder, or put another one in its place
/// by a link: its name may be predictable and its parent everybody's, as under `/tmp`.
///
/// # Errors
/// `PermissionDenied` with what is wrong, or the system's.
pub fn check_own(folder: &Path) -> io::Result<()> {
    let me = nix::unistd::geteuid().as_raw();
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    let name = fs::symlink_metadata(folder)?;
    // Root may do as it likes, and service managers make such links.
    if name.uid() != me && !(name.is_symlink() && name.uid() == 0) {
        return refused(format!("it belongs to user {}, not to {me}", name.uid()));
    }
    let found = fs::metadata(folder)?;
    if found.uid() != me {
        return refused(format!("it is a link to a folder of user {}, not of {me}", found.uid()));
    }
    let mode = found.mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        // Whoever took a folder from all others would break the machine.
        let advice = match mode & STICKY {
            0 => "`chmod go-w` it, or name another folder",
            _ => "it is everybody's: name a folder of its own",
        };
        return refused(format!("others can write there (mode {mode:o}), {advice}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn problem(folder: &Path) -> String {
        check_own(folder).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_new_folder_is_its_owners_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        make_private(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(problem(&folder), "");
    }

    #[test]
    fn a_folder_that_is_there_keeps_its_mode_and_is_refused_if_others_can_write() {
        let parent = tempfile::tempdir().unwrap();
        for (mode, refused) in [(0o755, false), (0o777, true), (0o1777, true), (0o770, true)] {
            fs::set_permissions(parent.path(), Permissions::from_mode(mode)).unwrap();
            make_private(parent.path()).unwrap();
            assert_eq!(!problem(parent.path()).is_empty(), refused, "{mode:o}");
            let kept = fs::metadata(parent.path()).unwrap().mode() & 0o7777;
            assert_eq!(kept, mode);
        }
    }

    #[test]
    fn nobody_is_told_to_take_a_folder_from_all_others() {
        let parent = tempfile::tempdir().unwrap();
        for (mode, advised) in [(0o777, "chmod go-w"), (0o1777, "a folder of its own")] {
            fs::set_permissions(parent.path(), Permissions::from_mode(mode)).unwrap();
            let problem = problem(parent.path());
            assert!(problem.contains(advised), "{problem}");
            assert_eq!(problem.contains("chmod"), mode == 0o777, "{problem}");
        }
    }

    #[test]
    fn links_lead_to_what_is_checked() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, link) = (parent.path().join("f"), parent.path().join("l"));
        make_private(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        assert_eq!(problem(&link), "");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(problem(&link).contains("mode 777"), "{}", problem(&link));
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            // Only root can give a folder away; as anybody else, root's serves.
            assert!(problem(Path::new("/")).contains("belongs to user 0"));
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let (folder, link) = (parent.path().join("f"), parent.path().join("l"));
        make_private(&folder).unwrap();
        symlink(&folder, &link).unwrap();
        let nobody = Some(nix::unistd::Uid::from_raw(65_534));
        nix::unistd::chown(&folder, nobody, None).unwrap();
        assert!(problem(&folder).contains("belongs to user 65534"), "{}", problem(&folder));
        assert!(problem(&link).contains("link to a folder of user 65534"), "{}", problem(&link));
    }
}
