//! The way by which a container that has ids of its own finds its root: its first process is nobody on the
//! host, and the agent's folders let nobody pass. It is there from before the container is made until that
//! runs and has all that it needs.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_shared::folders::make_private;

use crate::drivers::compute::notes::absent_is_fine;
use crate::host::idmap::IdRange;
use crate::host::{mounts, netns};

/// The folder of all of them in the run folder.
const FOLDER: &str = "access";
/// The bit of a folder through which anybody may pass, to what they know the name of and have a right to.
const PASSED_BY_ALL: u32 = 0o001;

/// One container's.
#[derive(Clone, Debug)]
pub(super) struct RootAccess(PathBuf);

impl RootAccess {
    pub(super) fn of(run_dir: &Path, name: &str) -> Self {
        Self(run_dir.join(FOLDER).join(name))
    }

    /// Its root folder, as it is found.
    pub(super) fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    /// What it sees as `/sys` if its network is made by the host: the kernel mounts that for a network's
    /// owner alone.
    pub(super) fn devices(&self) -> PathBuf {
        self.0.join("sys")
    }

    /// Opens it for one whose ids are these, and nobody else.
    pub(super) fn open(&self, root: &Path, ids: IdRange, network: Option<&Path>) -> io::Result<()> {
        self.remove()?;
        DirBuilder::new().mode(0o700).create(&self.0)?;
        for place in [self.root(), self.devices()] {
            make_private(&place)?;
        }
        mounts::bind(root, &self.root())?;
        if let Some(network) = network {
            netns::open_ports(network, ids)?;
            netns::show_devices(network, &self.devices())?;
        }
        std::os::unix::fs::chown(&self.0, Some(ids.first), Some(ids.first))
    }

    /// Closes it behind a container, which keeps what it has; none is no error. Its folders stay: a runtime
    /// begins in that of the root whatever else it runs in the container.
    pub(super) fn close(&self) -> io::Result<()> {
        [self.root(), self.devices()].iter().try_for_each(|place| mounts::unmount(place))
    }

    /// Removes it; none is no error.
    pub(super) fn remove(&self) -> io::Result<()> {
        self.close()?;
        for place in [self.root(), self.devices(), self.0.clone()] {
            absent_is_fine(std::fs::remove_dir(place))?;
        }
        Ok(())
    }
}

/// Lets everybody pass as far as these folders.
///
/// # Errors
/// The folder that does not let them pass, which is not the agent's.
pub(super) fn let_pass(run_dir: &Path) -> io::Result<()> {
    make_private(&run_dir.join(FOLDER))?;
    for folder in [run_dir, &run_dir.join(FOLDER)] {
        let mode = std::fs::metadata(folder)?.permissions().mode() & 0o7777;
        std::fs::set_permissions(folder, Permissions::from_mode(mode | PASSED_BY_ALL))?;
    }
    for folder in run_dir.canonicalize()?.ancestors() {
        if std::fs::metadata(folder)?.permissions().mode() & PASSED_BY_ALL == 0 {
            let text = format!("{} does not let other users pass (chmod o+x)", folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_lets_nobody_pass_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path().join("run");
        make_private(&run_dir).unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        let error = let_pass(&run_dir).unwrap_err().to_string();
        assert!(error.contains(&format!("{} does not", folder.path().display())), "{error}");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        let_pass(&run_dir).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&run_dir), mode(&run_dir.join(FOLDER))), (0o701, 0o701));
        RootAccess::of(&run_dir, "none").remove().unwrap();
    }
}
