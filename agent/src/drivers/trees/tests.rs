//! Copies of trees, held against their originals. What only root can make is left out for others.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, mknodat};
use tokio_util::sync::CancellationToken;

use super::*;

/// What is to be the same of every file: kind and mode, owner, size, time, device, attributes.
type Seen = (u32, u32, u32, u64, i64, u64, Vec<(String, Vec<u8>)>);

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    found.insert(PathBuf::new(), one(root));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().to_owned(), one(&path));
            if path.symlink_metadata().unwrap().is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

fn one(path: &Path) -> Seen {
    let has = path.symlink_metadata().unwrap();
    let size = if has.is_dir() { 0 } else { has.len() };
    let mut names = vec![0_u8; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut extended: Vec<_> = names
        .map(|name| {
            let mut value = vec![0_u8; 65536];
            let length = lgetxattr(path, name, &mut value[..]).unwrap();
            (String::from_utf8(name.to_vec()).unwrap(), value[..length].to_vec())
        })
        .collect();
    extended.sort();
    (has.mode(), has.uid(), has.gid(), size, has.mtime(), has.rdev(), extended)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// All kinds of files that an overlay's upper folder holds.
fn upper(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("etc/deep/er")).unwrap();
    fs::write(at("etc/passwd"), "root").unwrap();
    fs::hard_link(at("etc/passwd"), at("etc/deep/er/same")).unwrap();
    symlink("/etc/shadow", at("etc/link")).unwrap();
    fs::set_permissions(at("etc/passwd"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(at("etc/deep"), fs::Permissions::from_mode(0o1777)).unwrap();
    let holes = fs::File::create(at("holes")).unwrap();
    holes.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 40 << 20).unwrap();
    let fifo = mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0);
    fifo.unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    lsetxattr(at("etc/passwd"), "user.note", b"mine", XattrFlags::empty()).unwrap();
    let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    if is_root() {
        // A file that is hidden, by two names of one device; a folder that hides another.
        mknodat(CWD, at("hidden"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::hard_link(at("hidden"), at("etc/hidden")).unwrap();
        let overlay = |path: &Path, name: &str, value: &[u8]| {
            lsetxattr(path, format!("trusted.overlay.{name}"), value, XattrFlags::empty()).unwrap();
        };
        overlay(&at("etc/deep"), "opaque", b"y");
        overlay(&at("etc/link"), "origin", b"\0\x01");
        overlay(root, "impure", b"y");
        std::os::unix::fs::lchown(at("etc/link"), Some(33), Some(34)).unwrap();
        std::os::unix::fs::chown(at("holes"), Some(1000), Some(1000)).unwrap();
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        lsetxattr(at("holes"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    }
    for path in [at("etc/deep/er"), at("etc/deep"), at("etc/link"), root.to_owned()] {
        rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

#[test]
fn a_copy_is_what_the_original_is() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("upper"), folder.path().join("copy"));
    fs::create_dir(&from).unwrap();
    upper(&from);
    let before = seen(&from);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    copy_here(&from, &to, &CancellationToken::new()).unwrap();
    assert_eq!(seen(&to), before);
    let inode = |path: &str| to.join(path).symlink_metadata().unwrap().ino();
    assert_eq!(inode("etc/passwd"), inode("etc/deep/er/same"));
    assert_eq!(fs::read_link(to.join("etc/link")).unwrap(), Path::new("/etc/shadow"));
    let holes = to.join("holes").metadata().unwrap();
    assert!(holes.blocks() * 512 < 1 << 20, "{} blocks", holes.blocks());
    assert_eq!(fs::read(to.join("holes")).unwrap(), fs::read(from.join("holes")).unwrap());
    assert!(to.join("pipe").symlink_metadata().unwrap().file_type().is_fifo());
    if is_root() {
        assert_eq!(inode("hidden"), inode("etc/hidden"));
    }
    let measured = Measure::of(&from, &CancellationToken::new()).unwrap();
    assert_eq!(measured.entries, u64::try_from(before.len() - 1).unwrap());
    assert!(measured.bytes < 1 << 20, "{measured:?}");
    assert!(measured.copy_bytes(true) < measured.copy_bytes(false));
}

#[test]
fn what_nobody_wants_is_given_up_and_what_is_too_deep_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(matches!(copy_here(&from, &to, &stop), Err(Fault::Stopped)));
    fs::create_dir_all(from.join("a/".repeat(201))).unwrap();
    let deep = copy_here(&from, &folder.path().join("deep"), &CancellationToken::new());
    assert!(deep.unwrap_err().to_string().contains("more than 200 folders"));
    let full = check_room(u64::MAX, folder.path(), 1).unwrap_err();
    assert!(full.to_string().contains("has no room"), "{full}");
}

#[tokio::test]
async fn the_turn_is_held_until_the_thread_has_stopped() {
    let turn = std::sync::Arc::new(tokio::sync::Mutex::new(()));
    let held = turn.clone().lock_owned().await;
    let (begun, mut began) = tokio::sync::watch::channel(false);
    let work = beside("wait", held, move |stop| {
        begun.send_replace(true);
        while !stop.is_cancelled() {
            std::thread::yield_now();
        }
        Err::<(), _>(Fault::Stopped)
    });
    tokio::select! {
        _ = work => panic!("it waits"),
        seen = began.wait_for(|begun| *begun) => drop(seen.unwrap()),
    }
    drop(turn.lock().await);
}

#[test]
fn an_archive_holds_what_an_image_may_bring() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("upper"), folder.path().join("archive"));
    fs::create_dir(&from).unwrap();
    upper(&from);
    fs::write(from.join("n".repeat(200)), "long").unwrap();
    let root = super::walk::open_root(&from).unwrap();
    let archived = archive_here(root.as_fd(), &to, &CancellationToken::new()).unwrap();
    let content = fs::read(&to).unwrap();
    assert_eq!(archived.size_bytes, u64::try_from(content.len()).unwrap());
    assert_eq!(archived.sha256, hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&content)));
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(&content[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let extensions = entry.pax_extensions().unwrap();
        let names =
            extensions.into_iter().flatten().map(|it| it.unwrap().key().unwrap().to_owned());
        let names: Vec<_> = names.collect();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let link = entry.link_name().unwrap().map(|to| to.to_string_lossy().into_owned());
        let header = entry.header();
        found.insert(path, (header.entry_type(), header.mode().unwrap(), link, names));
    }
    use tar::EntryType::{Directory, Fifo, Link, Regular, Symlink};
    let of = |path: &str| &found[path];
    assert_eq!((of("etc/").0, of("etc/deep/").1), (Directory, 0o1777));
    assert_eq!(of("etc/link").2.as_deref(), Some("/etc/shadow"));
    assert_eq!((of("etc/link").0, of("pipe").0, of("holes").0), (Symlink, Fifo, Regular));
    let (one, other) = (of("etc/passwd"), of("etc/deep/er/same"));
    assert!(matches!((one.0, other.0), (Regular, Link) | (Link, Regular)), "{one:?} {other:?}");
    let first = if one.0 == Regular { one } else { other };
    assert_eq!((first.1, &first.3[..]), (0o4711, &["SCHILY.xattr.user.note".to_owned()][..]));
    assert!(found.contains_key(&"n".repeat(200)) && !found.contains_key("socket"));
    if is_root() {
        assert_eq!(of("holes").3, ["SCHILY.xattr.security.capability"]);
        assert!(of("etc/deep/").3.is_empty() && !found.contains_key("hidden"));
    }
    let stop = CancellationToken::new();
    stop.cancel();
    let root = super::walk::open_root(&from).unwrap();
    assert!(matches!(archive_here(root.as_fd(), &to, &stop), Err(Fault::Stopped)));
}
