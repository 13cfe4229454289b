//! The harness of the black-box tests: starts the real binaries on loopback with temporary
//! directories, kills and restarts them, and cleans up after itself, also when a test fails.

pub mod cli;
pub mod container;
pub mod contract;
pub mod cuts;
pub mod daemon;
pub mod dying_disk;
pub mod exported;
pub mod fuzz;
pub mod guest;
pub mod http;
pub mod kill_points;
pub mod operator;
pub mod own_network;
pub mod pages;
pub mod pool;
pub mod power_cut;
pub mod process;
pub mod proxy;
pub mod scripted_agent;
pub mod sim;
pub mod sim_agent;
pub mod sim_fleet;
pub mod system;
pub mod terminal;
pub mod wait;

use std::path::PathBuf;

/// Path of one of the project's binaries, found beside the test's own executable.
///
/// # Panics
/// If the workspace was not built first.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has an executable");
    let found = test.ancestors().skip(1).take(3).map(|dir| dir.join(name)).find(|p| p.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not beside {}: run `cargo build --workspace` first", test.display())
    })
}

/// Path of the executable of a test target, if it was built beside the test's own; the newest if there
/// are several.
///
/// # Panics
/// If the folder can't be read.
#[must_use]
pub fn test_binary(target: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("the test has an executable");
    let beside = test.parent().expect("it lies in a folder");
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let hash = name.strip_prefix(target).and_then(|rest| rest.strip_prefix('-'));
        hash.is_some_and(|hash| hash.chars().all(|it| it.is_ascii_hexdigit()))
    };
    let entries = std::fs::read_dir(beside).expect("it can be read").flatten();
    let found = entries.map(|entry| entry.path()).filter(is_it);
    found.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok())
}

/// The repository's root.
///
/// # Panics
/// Never: the tests' package lies in a folder of the workspace.
#[must_use]
pub fn repository() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("tests/ lies in the workspace").to_owned()
}
