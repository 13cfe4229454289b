//! A pool of a test's own, on a node that has OpenZFS.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::daemon::temp_dir;

/// Variable that says that VMs are to be in pools.
pub const WANTED: &str = "MUSTER_TEST_POOL";
/// Size of the file that it lies in, sparse, bytes.
const SIZE: u64 = 2 * 1024 * 1024 * 1024;

/// A pool in a file; destroyed when dropped.
#[derive(Debug)]
pub struct Pool {
    name: String,
    dir: TempDir,
}

impl Pool {
    /// A new one if the test is to have one.
    ///
    /// # Panics
    /// If it can't be made.
    #[must_use]
    pub fn wanted() -> Option<Self> {
        std::env::var_os(WANTED)?;
        let dir = temp_dir();
        let folder = dir.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let name = folder.to_lowercase();
        let (file, mountpoint) = (dir.path().join("disk"), dir.path().join("pool"));
        std::fs::File::create(&file).and_then(|disk| disk.set_len(SIZE)).expect("a sparse file");
        let pool = Self { name, dir };
        pool.call("zpool", &["create", "-m", text(&mountpoint), &pool.name, text(&file)]);
        Some(pool)
    }

    /// What an agent is told that it uses this pool, as the values of `--set`.
    #[must_use]
    pub fn settings(&self) -> [String; 2] {
        ["storage=zfs".to_owned(), format!("pool={}", self.name)]
    }

    /// The datasets whose names contain this.
    ///
    /// # Panics
    /// If the pool does not answer.
    #[must_use]
    pub fn datasets(&self, containing: &str) -> Vec<String> {
        let listed = self.call("zfs", &["list", "-H", "-o", "name", "-t", "all", "-r", &self.name]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        listed.lines().filter(|line| line.contains(containing)).map(str::to_owned).collect()
    }

    fn call(&self, program: &str, args: &[&str]) -> Output {
        let done = run(program, args);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{program} {args:?} of {}: {stderr}",
            self.dir.path().display()
        );
        done
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let gone = run("zpool", &["destroy", "-f", &self.name]);
        if !gone.status.success() {
            eprintln!("{} is left: {}", self.name, String::from_utf8_lossy(&gone.stderr));
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("names of tests are text")
}

#[expect(clippy::disallowed_methods, reason = "as an operator would")]
fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}
