//! A disk that fails while a daemon uses it: a preloaded library makes its writes and syncs fail.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

/// The disk under one folder.
#[derive(Debug)]
pub struct DyingDisk {
    preload: PathBuf,
    switch: PathBuf,
}

impl DyingDisk {
    /// A sound one; `dir` is a folder for its own files.
    ///
    /// # Panics
    /// If the library can't be built: the C compiler is the one that Rust links with.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let preload = dir.join("dying_disk.so");
        let source = crate::repository().join("tests/src/dying_disk.c");
        #[expect(clippy::disallowed_methods, reason = "the test's tools are processes")]
        let mut cc = Command::new("cc");
        let cc = cc.args(["-O2", "-shared", "-fPIC", "-o"]).args([&preload, &source]).arg("-ldl");
        let built = cc.output().expect("the C compiler starts");
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        Self { preload, switch: dir.join("dying_disk.switch") }
    }

    /// What a process needs in its environment to have `folder` on this disk.
    ///
    /// # Panics
    /// If there is no such folder.
    #[must_use]
    pub fn environment(&self, folder: &Path) -> Vec<(String, String)> {
        let folder = folder.canonicalize().expect("the folder is there");
        let pairs = [
            ("LD_PRELOAD", &self.preload),
            ("DYING_FOLDER", &folder),
            ("DYING_SWITCH", &self.switch),
        ];
        pairs.map(|(key, path)| (key.to_owned(), path.display().to_string())).to_vec()
    }

    /// From now on nothing can be written: `EIO`, `EROFS`.
    ///
    /// # Panics
    /// If the switch can't be set.
    pub fn fail(&self, error: Errno) {
        // Whole from the moment it has its name.
        let partial = self.switch.with_extension("new");
        let number = error as i32;
        let written = std::fs::write(&partial, number.to_string());
        written.and_then(|()| std::fs::rename(&partial, &self.switch)).expect("it is writable");
    }

    /// From now on it works again.
    ///
    /// # Panics
    /// If it did not fail.
    pub fn mend(&self) {
        std::fs::remove_file(&self.switch).expect("it failed");
    }
}
