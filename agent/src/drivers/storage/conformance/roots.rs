//! What every driver owes that holds the roots of containers.

use std::path::Path;

use muster_shared::ids::VmUuid;
use muster_shared::units::GIB;
use sha2::{Digest as _, Sha256};

use super::super::{Identity, MAX_PIECE_BYTES, Role, RootWishes, Storage};
use super::{based, check_code, image, other_image, task, vm};

/// The driver has the images of containers [`image`] and [`other_image`] and nothing else. None is put
/// together here.
///
/// # Panics
/// It does not conform.
pub async fn of_roots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    let (other, plain) = (other_image(), RootWishes::default());
    check_code(&storage.change_root(vm(7), &plain).await, "DatasetNotFound");
    for _ in 0..2 {
        storage.create_root(vm(7), image(), &plain, &one).await.unwrap();
    }
    check_code(&storage.create_root(vm(7), image(), &plain, &two).await, "DatasetExists");
    let limited = RootWishes { quota_bytes: Some(GIB), ..RootWishes::default() };
    for wishes in [&limited, &limited, &plain] {
        storage.change_root(vm(7), wishes).await.unwrap();
    }
    assert_eq!(storage.root(vm(7)).await.unwrap(), Some(image()));
    assert_eq!(storage.rooted().await.unwrap(), [vm(7)]);
    assert_eq!(based(storage).await, [(image(), 1, 1)]);
    storage.destroy_root(vm(7), Some(&two)).await.unwrap();
    assert_eq!(storage.root(vm(7)).await.unwrap(), Some(image()));

    // One put aside comes back, over what the task made.
    for made in [false, true] {
        for _ in 0..2 {
            storage.stash_root(vm(7), &two).await.unwrap();
        }
        assert_eq!(storage.root(vm(7)).await.unwrap(), None);
        assert_eq!(storage.rooted().await.unwrap(), [vm(7)], "it is not lost");
        assert_eq!(based(storage).await, [(image(), 1, 1)]);
        if made {
            storage.create_root(vm(7), other, &plain, &two).await.unwrap();
            storage.stash_root(vm(7), &two).await.unwrap();
            assert_eq!(storage.root(vm(7)).await.unwrap(), Some(other));
            assert_eq!(based(storage).await, [(image(), 1, 1), (other, 1, 1)]);
            check_code(&storage.restore_root(vm(7), &task("three")).await, "DatasetExists");
        }
        for _ in 0..2 {
            storage.restore_root(vm(7), &two).await.unwrap();
        }
        assert_eq!(storage.root(vm(7)).await.unwrap(), Some(image()));
        assert_eq!(based(storage).await, [(image(), 1, 1)]);
    }

    storage.stash_root(vm(7), &two).await.unwrap();
    storage.create_root(vm(7), other, &plain, &two).await.unwrap();
    let mut volumes = storage.root_volumes(vm(7)).await.unwrap();
    volumes.sort_by_key(|volume| volume.is_aside);
    let told = volumes.iter().map(|it| (it.role, it.is_aside, it.identity.clone()));
    let made = |owner, image| Some(Identity::of_root(vm(7), "zones", owner, Some(image)));
    let wanted = [(Role::Root, false, made(&two, other)), (Role::Root, true, made(&one, image()))];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
    assert_eq!(storage.root_volumes(vm(6)).await.unwrap(), []);
    for _ in 0..2 {
        storage.purge_root_stash(vm(7)).await.unwrap();
    }
    storage.restore_root(vm(7), &two).await.unwrap();
    assert_eq!(storage.root(vm(7)).await.unwrap(), Some(other));
    // A destroy takes along what is aside.
    storage.stash_root(vm(7), &task("three")).await.unwrap();
    storage.create_root(vm(7), image(), &plain, &task("three")).await.unwrap();
    for _ in 0..2 {
        storage.destroy_root(vm(7), None).await.unwrap();
    }
    assert_eq!(storage.rooted().await.unwrap(), []);
    assert_eq!(based(storage).await, []);
}

/// The driver has the image of containers [`image`] and nothing of VM 8.
///
/// # Panics
/// It does not conform.
pub async fn of_root_snapshots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    let (root, plain) = ([Role::Root], RootWishes::default());
    let names = async || -> Vec<String> {
        let found = storage.snapshots(vm(8)).await.unwrap().into_iter();
        found.inspect(|it| assert_eq!(it.volume, Role::Root)).map(|it| it.name).collect()
    };
    assert_eq!(storage.roles(vm(8)).await.unwrap(), []);
    storage.create_root(vm(8), image(), &plain, &one).await.unwrap();
    assert_eq!(storage.roles(vm(8)).await.unwrap(), root);
    // In the order in which they are taken, whatever they are called.
    for name in ["vmsnap-c", "vmsnap-a.b", "vmsnap-b"] {
        for _ in 0..2 {
            storage.create_snapshot(vm(8), name, &root).await.unwrap();
        }
    }
    storage.create_snapshot(vm(8), "vmsnap-d", &[Role::Disk(0)]).await.unwrap();
    assert_eq!(names().await, ["vmsnap-c", "vmsnap-a.b", "vmsnap-b"]);
    check_code(&storage.roll_back(vm(8), "vmsnap-a").await, "SnapshotNotFound");
    for _ in 0..2 {
        storage.roll_back(vm(8), "vmsnap-b").await.unwrap();
        storage.delete_snapshot(vm(8), "vmsnap-c", &root).await.unwrap();
    }
    assert_eq!(names().await, ["vmsnap-a.b", "vmsnap-b"]);
    storage.create_snapshot(vm(8), "vmsnap-c", &root).await.unwrap();
    assert_eq!(names().await, ["vmsnap-a.b", "vmsnap-b", "vmsnap-c"]);
    // Some drivers destroy those that are newer.
    for _ in 0..2 {
        storage.roll_back(vm(8), "vmsnap-a.b").await.unwrap();
    }
    for newer in ["vmsnap-b", "vmsnap-c"] {
        storage.delete_snapshot(vm(8), newer, &root).await.unwrap();
    }
    storage.create_snapshot(vm(8), "vmsnap-d", &root).await.unwrap();
    assert_eq!(names().await, ["vmsnap-a.b", "vmsnap-d"]);

    // They go aside with the root, and come back with it.
    storage.stash_root(vm(8), &two).await.unwrap();
    storage.create_root(vm(8), image(), &plain, &two).await.unwrap();
    assert_eq!(names().await, Vec::<String>::new());
    storage.restore_root(vm(8), &two).await.unwrap();
    assert_eq!(names().await.len(), 2);
    storage.destroy_root(vm(8), None).await.unwrap();
    assert_eq!((names().await, storage.roles(vm(8)).await.unwrap()), (vec![], vec![]));
}

/// What a file of a root holds.
fn text(root: &Path, name: &str) -> String {
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// What a driver owes that keeps real files. It has the image of containers [`image`], in which `etc/issue`
/// has the text `image`, and nothing of VMs 9 and 10; the image's files are in `image_root`, unless roots
/// are made without them. Only root can run this.
///
/// # Panics
/// It does not conform.
pub async fn of_root_content(storage: &dyn Storage, image_root: &Path) {
    let (one, root, plain) = (task("one"), [Role::Root], RootWishes::default());
    storage.create_root(vm(9), image(), &plain, &one).await.unwrap();
    let mount = async |of: VmUuid| storage.mount_root(of, image_root, None).await.unwrap();
    let at = mount(vm(9)).await;
    assert_eq!(mount(vm(9)).await, at, "it is there already");
    assert_eq!(text(&at, "etc/issue"), "image");
    std::fs::write(at.join("etc/own"), "first").unwrap();
    std::fs::hard_link(at.join("etc/own"), at.join("linked")).unwrap();
    std::os::unix::fs::symlink("etc/own", at.join("link")).unwrap();
    std::fs::remove_file(at.join("etc/removed")).unwrap();
    storage.create_snapshot(vm(9), "vmsnap-a", &root).await.unwrap();
    std::fs::write(at.join("etc/own"), "second").unwrap();
    std::fs::write(at.join("later"), "x").unwrap();
    for _ in 0..2 {
        storage.unmount_root(vm(9)).await.unwrap();
    }
    assert!(!at.join("etc").exists());
    assert_eq!(text(&mount(vm(9)).await, "etc/own"), "second", "its content stays");

    // It goes back while it is put together, as after a crash.
    storage.roll_back(vm(9), "vmsnap-a").await.unwrap();
    let at = mount(vm(9)).await;
    assert_eq!((&*text(&at, "etc/own"), at.join("later").exists()), ("first", false));
    std::fs::write(at.join("etc/own"), "third").unwrap();

    // All of its files as they were at the snapshot, and those of another VM then.
    check_code(&storage.pack_root(vm(9), "vmsnap-b", image_root).await, "SnapshotNotFound");
    let packed = storage.pack_root(vm(9), "vmsnap-a", image_root).await.unwrap();
    assert_eq!(storage.pack_root(vm(9), "vmsnap-a", image_root).await.unwrap(), packed);
    let mut archive = Vec::new();
    while u64::try_from(archive.len()).unwrap() < packed.size_bytes {
        let from = u64::try_from(archive.len()).unwrap();
        let piece = storage.read_snapshot(vm(9), Role::Root, "vmsnap-a", from).await.unwrap();
        assert_eq!((piece.size_bytes, piece.offset), (packed.size_bytes, from));
        archive.extend(piece.data);
    }
    assert_eq!(hex::encode(Sha256::digest(&archive)), packed.sha256);
    storage.create_root(vm(10), image(), &plain, &one).await.unwrap();
    check_code(&storage.fill(vm(10), Role::Root, 0, b"x", false).await, "DatasetNotFound");
    let theirs = storage.begin_fill(vm(10), Role::Root, packed.size_bytes, &task("two")).await;
    check_code(&theirs, "DatasetNotFound");
    storage.begin_fill(vm(10), Role::Root, packed.size_bytes, &one).await.unwrap();
    for (number, piece) in (0..).zip(archive.chunks(MAX_PIECE_BYTES)) {
        let offset = number * u64::try_from(MAX_PIECE_BYTES).unwrap();
        storage.fill(vm(10), Role::Root, offset, piece, true).await.unwrap();
    }
    for _ in 0..2 {
        storage.end_fill(vm(10), Role::Root).await.unwrap();
    }
    assert_eq!(storage.root(vm(10)).await.unwrap(), Some(image()));
    assert_eq!(based(storage).await, [(image(), 2, 2)]);
    let copy = mount(vm(10)).await;
    for (name, wanted) in [("etc/own", "first"), ("linked", "first"), ("etc/issue", "image")] {
        assert_eq!(text(&copy, name), wanted, "{name}");
    }
    assert_eq!(copy.join("link").read_link().unwrap(), Path::new("etc/own"));
    assert!(!copy.join("etc/removed").exists() && !copy.join("later").exists());
    assert_eq!(text(&at, "etc/own"), "third");

    // A snapshot of the same name is another one.
    storage.delete_snapshot(vm(9), "vmsnap-a", &root).await.unwrap();
    let gone = storage.read_snapshot(vm(9), Role::Root, "vmsnap-a", 0).await;
    check_code(&gone, "SnapshotNotFound");
    storage.create_snapshot(vm(9), "vmsnap-a", &root).await.unwrap();
    let again = storage.pack_root(vm(9), "vmsnap-a", image_root).await.unwrap();
    assert_ne!(again.sha256, packed.sha256);
    for of in [vm(9), vm(10)] {
        storage.unmount_root(of).await.unwrap();
        storage.destroy_root(of, None).await.unwrap();
    }
    assert_eq!((storage.rooted().await.unwrap(), based(storage).await), (vec![], vec![]));
}
