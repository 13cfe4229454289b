//! What every storage driver owes, for tests of each of them.
#![allow(clippy::unwrap_used, reason = "a driver that does not conform ends the test")]

mod fill;
mod roots;

use std::path::Path;

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::units::MIB;

use super::{Dependents, DiskSpec, Identity, Role, Storage, VolumeSnapshot, Wishes};
use crate::drivers::DriverError;

pub use fill::of_filling;
pub use roots::{of_root_content, of_root_snapshots, of_roots};

pub(crate) const IMAGE: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";
/// Its size.
pub const IMAGE_MIB: u64 = 8;

/// The image that the driver has.
///
/// # Panics
/// Never.
#[must_use]
pub fn image() -> ImageUuid {
    IMAGE.parse().unwrap()
}

/// Another one, of containers.
///
/// # Panics
/// Never.
#[must_use]
pub fn other_image() -> ImageUuid {
    "01020304-0506-4708-890a-0b0c0d0e0f11".parse().unwrap()
}

pub(crate) fn vm(last: u8) -> VmUuid {
    format!("aaaaaaaa-0000-4000-8000-0000000000{last:02x}").parse().unwrap()
}

pub(crate) fn task(name: &str) -> TaskId {
    name.parse().unwrap()
}

pub(crate) fn spec(
    vm: VmUuid,
    index: u32,
    image: Option<ImageUuid>,
    size_mib: Option<u64>,
) -> DiskSpec {
    DiskSpec { vm, index, pool: None, image, size_mib, wishes: Wishes::default() }
}

pub(crate) fn in_pool(name: &str, mut spec: DiskSpec) -> DiskSpec {
    spec.pool = Some(name.to_owned());
    spec
}

#[track_caller]
pub(crate) fn check_code<T: std::fmt::Debug>(result: &Result<T, DriverError>, wanted: &str) {
    match result {
        Err(DriverError::Refused { code, .. }) if *code == wanted => {}
        other => panic!("expected {wanted}, got {other:?}"),
    }
}

/// Images that disks are based on, with how many disks and VMs.
pub(crate) async fn based(storage: &dyn Storage) -> Vec<(ImageUuid, usize, usize)> {
    let bases = storage.bases().await.unwrap();
    let count = |image: &ImageUuid| {
        let Dependents { disks, vms } = Dependents::of(&bases, *image);
        (*image, disks, vms)
    };
    bases.keys().map(count).collect()
}

/// The driver has the image [`image`] of [`IMAGE_MIB`] and nothing else. Its first pool is `zones`.
///
/// # Panics
/// It does not conform.
pub async fn of_disks(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    // Sizes: the image's own, a larger one, a blank disk.
    let boot = storage.create_disk(&spec(vm(1), 0, Some(image()), None), &one).await.unwrap();
    assert_eq!((boot.index, boot.size_bytes), (0, IMAGE_MIB * MIB));
    let large = spec(vm(1), 1, Some(image()), Some(20));
    assert_eq!(storage.create_disk(&large, &one).await.unwrap().size_bytes, 20 * MIB);
    let blank = spec(vm(1), 2, None, Some(5));
    assert_eq!(storage.create_disk(&blank, &one).await.unwrap().size_bytes, 5 * MIB);

    // The same task may come again, another one may not.
    let again = storage.create_disk(&spec(vm(1), 0, Some(image()), None), &one).await.unwrap();
    assert_eq!(again.path, boot.path);
    let theirs = storage.create_disk(&spec(vm(1), 0, Some(image()), None), &two).await;
    check_code(&theirs, "DatasetExists");

    // What can't be made is refused and leaves nothing.
    let missing = Some("ffffffff-0506-4708-890a-0b0c0d0e0f10".parse().unwrap());
    for (bad, code) in [
        (spec(vm(2), 0, missing, None), "ImageNotInstalled"),
        (spec(vm(2), 0, Some(image()), Some(IMAGE_MIB - 1)), "InvalidParameters"),
        (spec(vm(2), 0, None, None), "InvalidParameters"),
        (spec(vm(2), 0, None, Some(0)), "InvalidParameters"),
        (spec(vm(2), 0, None, Some(u64::MAX)), "InvalidParameters"),
        (in_pool("elsewhere", spec(vm(2), 0, None, Some(1))), "InvalidParameters"),
    ] {
        check_code(&storage.create_disk(&bad, &one).await, code);
    }
    assert_eq!(storage.disks(vm(2)).await.unwrap(), vec![]);

    let disks = storage.disks(vm(1)).await.unwrap();
    assert_eq!(disks.iter().map(|disk| disk.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(disks[0].identity, boot.identity);
    let made = |index, origin| Some(Identity::of_disk(vm(1), index, "zones", &one, origin));
    let identities: Vec<_> = disks.iter().map(|disk| disk.identity.clone()).collect();
    assert_eq!(identities, [made(0, Some(image())), made(1, Some(image())), made(2, None)]);
    assert_eq!(based(storage).await, [(image(), 2, 1)]);
    let usage = storage.usage().await.unwrap().remove(0);
    assert_eq!(usage.disks_virtual_bytes, (IMAGE_MIB + 20 + 5) * MIB);
    assert!(usage.images_bytes > 0 && usage.disks_used_bytes > 0 && usage.pool == "zones");
    assert!(usage.size_bytes >= usage.alloc_bytes && usage.size_bytes > 0);

    // An undo removes only what its own task made.
    let named = in_pool("zones", spec(vm(1), 3, None, Some(1)));
    storage.create_disk(&named, &two).await.unwrap();
    storage.check_idle(vm(1)).await.unwrap();
    storage.destroy_disks(vm(1), Some(&one)).await.unwrap();
    let left = storage.disks(vm(1)).await.unwrap();
    assert_eq!(left.iter().map(|disk| disk.index).collect::<Vec<_>>(), [3]);
    storage.destroy_disks(vm(1), Some(&one)).await.unwrap();
    storage.destroy_disks(vm(1), None).await.unwrap();
    storage.destroy_disks(vm(1), None).await.unwrap();
    assert_eq!(storage.disks(vm(1)).await.unwrap(), vec![]);
}

/// The driver has the image [`image`] and nothing else.
///
/// # Panics
/// It does not conform.
pub async fn of_snapshots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    storage.create_disk(&spec(vm(5), 0, Some(image()), None), &one).await.unwrap();
    storage.create_disk(&spec(vm(5), 1, None, Some(5)), &one).await.unwrap();
    let disks = [Role::Disk(0), Role::Disk(1)];
    let names = async || -> Vec<(u32, String)> {
        let found = storage.snapshots(vm(5)).await.unwrap();
        let disk = |snapshot: VolumeSnapshot| match snapshot.volume {
            Role::Disk(index) => (index, snapshot.name),
            other => panic!("a snapshot of {other}"),
        };
        found.into_iter().map(disk).collect()
    };
    for _ in 0..2 {
        storage.create_snapshot(vm(5), "vmsnap-a", &disks).await.unwrap();
    }
    storage.grow_disk(vm(5), 1, 9).await.unwrap();
    storage.create_snapshot(vm(5), "vmsnap-b", &disks).await.unwrap();
    let both = |name: &str| vec![(0, name.to_owned()), (1, name.to_owned())];
    assert_eq!(names().await.len(), 4);
    check_code(&storage.roll_back(vm(5), "vmsnap-c").await, "SnapshotNotFound");
    assert_eq!(storage.disks(vm(5)).await.unwrap()[1].size_bytes, 9 * MIB);
    for _ in 0..2 {
        storage.roll_back(vm(5), "vmsnap-a").await.unwrap();
    }
    assert_eq!(storage.disks(vm(5)).await.unwrap()[1].size_bytes, 5 * MIB);
    for _ in 0..2 {
        storage.delete_snapshot(vm(5), "vmsnap-b", &disks).await.unwrap();
    }
    assert_eq!(names().await, both("vmsnap-a"));

    // A disk put aside comes back with its snapshots, over what the task made.
    let whole = storage.volumes().await.unwrap();
    assert_eq!(whole.iter().map(|found| found.role).collect::<Vec<_>>(), disks);
    assert!(whole.iter().all(|found| found.vm == vm(5) && !found.is_aside), "{whole:?}");
    assert_eq!((whole[0].size_bytes, &*whole[0].pool), (Some(IMAGE_MIB * MIB), "zones"));
    for made in [false, true] {
        for _ in 0..2 {
            storage.stash_disk(vm(5), 0, &two).await.unwrap();
        }
        assert_eq!(storage.disks(vm(5)).await.unwrap().len(), 1);
        // It is the same volume still, and not lost to who counts them.
        let aside = storage.volumes().await.unwrap().remove(0);
        assert!(aside.is_aside && aside.role == Role::Disk(0), "{aside:?}");
        assert_eq!(aside.identity, whole[0].identity);
        // What was put aside may come back.
        assert_eq!(based(storage).await, [(image(), 1, 1)]);
        if made {
            storage.create_disk(&spec(vm(5), 0, None, Some(1)), &two).await.unwrap();
            storage.stash_disk(vm(5), 0, &two).await.unwrap();
            assert_eq!(names().await, [(1, "vmsnap-a".to_owned())]);
        }
        for _ in 0..2 {
            storage.restore_disk(vm(5), 0, &two).await.unwrap();
        }
        assert_eq!(names().await, both("vmsnap-a"));
        assert_eq!(storage.volumes().await.unwrap()[0].identity, whole[0].identity);
    }
    // Once the stash is gone there is nothing to bring back.
    storage.stash_disk(vm(5), 0, &two).await.unwrap();
    storage.create_disk(&spec(vm(5), 0, None, Some(1)), &two).await.unwrap();
    for _ in 0..2 {
        storage.purge_stash(vm(5), 0).await.unwrap();
    }
    storage.restore_disk(vm(5), 0, &two).await.unwrap();
    assert_eq!(storage.disks(vm(5)).await.unwrap()[0].size_bytes, MIB);
    assert_eq!(based(storage).await, []);
    let made = Identity::of_disk(vm(5), 0, "zones", &two, None);
    assert_eq!(storage.disks(vm(5)).await.unwrap()[0].identity, Some(made));
    storage.destroy_disks(vm(5), None).await.unwrap();
    assert_eq!(storage.volumes().await.unwrap(), []);
}

/// Volumes of a VM with UEFI firmware.
pub(crate) const ALL: [Role; 2] = [Role::Firmware, Role::Disk(0)];

/// The driver has nothing of VM 6.
///
/// # Panics
/// It does not conform.
pub async fn of_variables(storage: &dyn Storage, template: &Path) {
    let (one, two) = (task("one"), task("two"));
    let boot = spec(vm(6), 0, None, Some(1));
    let roles = async || storage.roles(vm(6)).await.unwrap();
    let having = async |name: &str| -> Vec<Role> {
        let found = storage.snapshots(vm(6)).await.unwrap().into_iter();
        found.filter(|found| found.name == name).map(|found| found.volume).collect()
    };
    storage.create_disk(&boot, &one).await.unwrap();
    assert_eq!(roles().await, [Role::Disk(0)]);
    let made = storage.variables(vm(6), template).await.unwrap();
    assert_eq!(storage.variables(vm(6), template).await.unwrap(), made);
    assert_eq!(roles().await, ALL);
    let found = storage.volumes().await.unwrap().into_iter().map(|found| found.role);
    assert_eq!(found.collect::<Vec<_>>(), ALL);

    for _ in 0..2 {
        storage.create_snapshot(vm(6), "vmsnap-a", &ALL).await.unwrap();
    }
    assert_eq!(having("vmsnap-a").await, ALL);
    // Variables that are younger than a snapshot are not in it.
    storage.create_snapshot(vm(6), "vmsnap-b", &ALL[1..]).await.unwrap();
    assert_eq!(having("vmsnap-b").await, ALL[1..]);
    for name in ["vmsnap-b", "vmsnap-a"] {
        storage.roll_back(vm(6), name).await.unwrap();
    }
    storage.delete_snapshot(vm(6), "vmsnap-b", &ALL).await.unwrap();
    assert_eq!((having("vmsnap-a").await, having("vmsnap-b").await), (ALL.to_vec(), vec![]));

    // They go aside and come back with the boot disk, over those that were made since.
    for made in [false, true] {
        for _ in 0..2 {
            storage.stash_disk(vm(6), 0, &two).await.unwrap();
        }
        assert_eq!(roles().await, []);
        if made {
            storage.create_disk(&boot, &two).await.unwrap();
            storage.variables(vm(6), template).await.unwrap();
            storage.stash_disk(vm(6), 0, &two).await.unwrap();
            assert_eq!((roles().await, having("vmsnap-a").await), (ALL.to_vec(), vec![]));
        }
        for _ in 0..2 {
            storage.restore_disk(vm(6), 0, &two).await.unwrap();
        }
        assert_eq!(having("vmsnap-a").await, ALL);
    }
    storage.stash_disk(vm(6), 0, &two).await.unwrap();
    storage.create_disk(&boot, &two).await.unwrap();
    for _ in 0..2 {
        storage.purge_stash(vm(6), 0).await.unwrap();
    }
    storage.restore_disk(vm(6), 0, &two).await.unwrap();
    assert_eq!(roles().await, [Role::Disk(0)]);

    // The last disk takes them along, also in an undo.
    storage.variables(vm(6), template).await.unwrap();
    storage.destroy_disks(vm(6), Some(&one)).await.unwrap();
    assert_eq!(roles().await, ALL);
    storage.destroy_disks(vm(6), Some(&two)).await.unwrap();
    assert_eq!(roles().await, []);
    // A VM may have no disks.
    storage.variables(vm(6), template).await.unwrap();
    storage.destroy_disks(vm(6), None).await.unwrap();
    assert_eq!(roles().await, []);
}
