//! What every driver owes that holds the roots of containers.

use super::super::{Identity, Role, Storage};
use super::{based, check_code, image, task, vm};

/// The driver has the image [`image`] and nothing else, and holds roots. None is put together here.
///
/// # Panics
/// It does not conform.
pub async fn of_roots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    let other = "01020304-0506-4708-890a-0b0c0d0e0f11".parse().unwrap();
    for _ in 0..2 {
        storage.create_root(vm(7), image(), &one).await.unwrap();
    }
    check_code(&storage.create_root(vm(7), image(), &two).await, "DatasetExists");
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
            storage.create_root(vm(7), other, &two).await.unwrap();
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
    storage.create_root(vm(7), other, &two).await.unwrap();
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
    storage.create_root(vm(7), image(), &task("three")).await.unwrap();
    for _ in 0..2 {
        storage.destroy_root(vm(7), None).await.unwrap();
    }
    assert_eq!(storage.rooted().await.unwrap(), []);
    assert_eq!(based(storage).await, []);
}

/// The driver has the image [`image`] and nothing of VM 8, and holds roots.
///
/// # Panics
/// It does not conform.
pub async fn of_root_snapshots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    let root = [Role::Root];
    let names = async || -> Vec<String> {
        let found = storage.snapshots(vm(8)).await.unwrap().into_iter();
        found.inspect(|it| assert_eq!(it.volume, Role::Root)).map(|it| it.name).collect()
    };
    assert_eq!(storage.roles(vm(8)).await.unwrap(), []);
    storage.create_root(vm(8), image(), &one).await.unwrap();
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
        storage.roll_back(vm(8), "vmsnap-a.b").await.unwrap();
        storage.delete_snapshot(vm(8), "vmsnap-c", &root).await.unwrap();
    }
    assert_eq!(names().await, ["vmsnap-a.b", "vmsnap-b"]);
    storage.create_snapshot(vm(8), "vmsnap-c", &root).await.unwrap();
    assert_eq!(names().await, ["vmsnap-a.b", "vmsnap-b", "vmsnap-c"]);

    // They go aside with the root, and come back with it.
    storage.stash_root(vm(8), &two).await.unwrap();
    storage.create_root(vm(8), image(), &two).await.unwrap();
    assert_eq!(names().await, Vec::<String>::new());
    storage.restore_root(vm(8), &two).await.unwrap();
    assert_eq!(names().await.len(), 3);
    storage.destroy_root(vm(8), None).await.unwrap();
    assert_eq!((names().await, storage.roles(vm(8)).await.unwrap()), (vec![], vec![]));
}
