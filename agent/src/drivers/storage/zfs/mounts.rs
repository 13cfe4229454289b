//! Where file systems of a pool are shown. ZFS mounts none of them by itself: what is not in use is
//! nowhere, and after a boot of the host nothing is until it is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::host::idmap::{self, IdRange, NOBODY, UserNamespace};
use crate::host::mounts;

/// Shows file systems on folders. Both wait for the kernel.
pub trait Mounts: fmt::Debug + Send + Sync + 'static {
    /// Shows a file system, or a snapshot of one to be read only, on a folder that is made for it, in
    /// place of anything else there. One that is there already stays as it is.
    ///
    /// # Errors
    /// The kernel refuses.
    fn mount(&self, name: &str, at: &Path) -> io::Result<()>;

    /// As [`Self::mount`], with each id of what is there as the one of these that it is for a container.
    ///
    /// # Errors
    /// The kernel refuses, or this ZFS can't do that.
    fn mount_under(&self, name: &str, at: &Path, ids: IdRange) -> io::Result<()>;

    /// Whether [`Self::mount_under`] works where this folder is.
    ///
    /// # Errors
    /// Why it does not.
    fn check_under(&self, folder: &Path, ids: IdRange) -> io::Result<()>;

    /// Takes away what is shown on a folder, and the folder; none is no error. Who still has a file of
    /// it open keeps it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn unmount(&self, at: &Path) -> io::Result<()>;
}

/// Those of this host.
#[derive(Debug)]
pub struct HostMounts;

impl Mounts for HostMounts {
    fn mount(&self, name: &str, at: &Path) -> io::Result<()> {
        match mounts::mounted(at)? {
            Some(there) if there == name => return Ok(()),
            Some(_) => mounts::unmount(at)?,
            None => {}
        }
        std::fs::create_dir_all(at)?;
        let mounted = mounts::dataset(name, at);
        if mounted.is_err() {
            absent(std::fs::remove_dir(at))?;
        }
        mounted
    }

    fn mount_under(&self, name: &str, at: &Path, ids: IdRange) -> io::Result<()> {
        let is_there = mounts::mounted(at)?.is_some_and(|there| there == name);
        if is_there && ids.inside(std::fs::metadata(at)?.uid()) != NOBODY {
            return Ok(());
        }
        // What an agent left that ended before it was shown under these.
        mounts::unmount(at)?;
        let namespace = UserNamespace::make(ids)?;
        self.mount(name, at)?;
        let shown = idmap::show_in_place(at, &namespace);
        if shown.is_err() {
            absent(std::fs::remove_dir(at))?;
        }
        shown
    }

    fn check_under(&self, folder: &Path, ids: IdRange) -> io::Result<()> {
        idmap::can_show(folder, ids)
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        mounts::unmount(at)?;
        // Where it was seen by others as well, it is gone there with the folder.
        absent(std::fs::remove_dir(at))
    }
}

/// Those of simulated pools: a folder each. What is written there is forgotten with it.
#[derive(Debug, Default)]
pub struct SimMounts(Mutex<BTreeMap<PathBuf, String>>);

impl SimMounts {
    /// What is shown where.
    #[must_use]
    pub fn all(&self) -> BTreeMap<PathBuf, String> {
        self.0.lock().clone()
    }
}

impl Mounts for SimMounts {
    fn mount(&self, name: &str, at: &Path) -> io::Result<()> {
        std::fs::create_dir_all(at)?;
        self.0.lock().insert(at.to_owned(), name.to_owned());
        Ok(())
    }

    fn mount_under(&self, name: &str, at: &Path, _ids: IdRange) -> io::Result<()> {
        self.mount(name, at)
    }

    fn check_under(&self, _folder: &Path, _ids: IdRange) -> io::Result<()> {
        Ok(())
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        self.0.lock().remove(at);
        absent(std::fs::remove_dir_all(at))
    }
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
