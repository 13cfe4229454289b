//! What tests carry into the machine: a disk with the binaries just built, the units as they are in
//! the tree, and images of guests.

use std::path::Path;
use std::process::Command;

use crate::guest::image_dir;
use crate::{binary, repository, test_binary};

/// Of a command line.
type Word<'a> = &'a dyn AsRef<std::ffi::OsStr>;

/// The environment variable with `muster-zfs` as `scripts/build-zfs-helper.sh` builds it.
const ZFS_HELPER: &str = "MUSTER_ZFS_HELPER";
/// Beyond the files themselves, KiB.
const ROOM_KIB: u64 = 16 * 1024;

/// Writes the disk: a file system labelled `payload`.
///
/// # Panics
/// If something of it is missing.
pub(super) fn write(disk: &Path) {
    let dir = disk.with_extension("dir");
    let (bin, tests, guest) = (dir.join("bin"), dir.join("tests"), dir.join("guest"));
    for dir in [&bin, &tests, &guest, &dir.join("systemd")] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    for name in ["muster", "muster-agent", "muster-coordinator"] {
        strip(&binary(name), &bin.join(name));
    }
    // The one beside them was built without the library.
    if let Some(helper) = std::env::var_os(ZFS_HELPER) {
        strip(Path::new(&helper), &bin.join("muster-zfs"));
    }
    strip(&binary("examples/zfs-conformance"), &tests.join("zfs-conformance"));
    // With the binaries that it starts. A benchmark has no tests beside it.
    if let Some(test) = test_binary("agent_crash") {
        strip(&test, &bin.join("agent_crash"));
    }
    std::fs::copy(crate::container::busybox(), tests.join("busybox")).expect("a copy");
    copy_files(&repository().join("systemd"), &dir.join("systemd"));
    copy_files(&image_dir(), &guest);
    let counts = crate::container::archive(&crate::container::counts_boots());
    std::fs::write(guest.join("container.tar"), counts).expect("a file");
    button(&guest.join("button.raw"), &[]);
    button(&guest.join("busy.raw"), &[&"--defsym", &"BUSY=1"]);
    // Maps of blocks and inodes grow with the files. A journal and blocks for root would, too, and
    // nobody writes to this disk.
    let kib = files_kib(&dir) * 17 / 16 + ROOM_KIB;
    let plain: [Word<'_>; 4] = [&"-O", &"^has_journal", &"-m", &"0"];
    let named: [Word<'_>; 7] = [&"-q", &"-L", &"payload", &"-d", &dir, &disk, &format!("{kib}k")];
    call("mkfs.ext4", &[&plain[..], &named].concat());
    std::fs::remove_dir_all(&dir).expect("the folder can be removed");
}

/// Copies a binary without debug data, which are most of it.
fn strip(from: &Path, to: &Path) {
    call("strip", &[&"--strip-debug", &"-o", &to, &from]);
}

/// The disk image of a system that knows its power button, see `button.s`.
fn button(image: &Path, flags: &[Word<'_>]) {
    let source = repository().join("tests/src/system/button.s");
    let object = image.with_extension("o");
    let common: [Word<'_>; 4] = [&"--32", &"-o", &object, &source];
    call("as", &[&common, flags].concat());
    call("objcopy", &[&"-O", &"binary", &"-j", &".text", &object, &image]);
    std::fs::remove_file(object).expect("it was just made");
    let image = std::fs::File::options().write(true).open(image).expect("it was just made");
    image.set_len(1024 * 1024).expect("a whole disk");
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if let Some(name) = path.file_name()
            && path.is_file()
        {
            std::fs::copy(&path, to.join(name)).expect("a copy");
        }
    }
}

fn files_kib(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("the folder is there");
    let sizes = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_kib(&path)
        } else {
            std::fs::metadata(&path).expect("a file").len().div_ceil(1024) + 4
        }
    });
    sizes.sum()
}

#[track_caller]
fn call(program: &str, args: &[Word<'_>]) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    #[expect(clippy::disallowed_methods, reason = "a test calls the real tool")]
    let mut command = Command::new(program);
    let output = command.args(args).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {stderr}");
}
