//! What every driver owes that holds the roots of containers.

use super::super::Storage;
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
