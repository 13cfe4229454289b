//! What every storage driver owes, checked on each of them.

mod fill;
mod pools;
mod variables;

use std::path::Path;
use std::sync::Arc;

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::units::MIB;
use serde_json::json;

use super::sim::{SimImage, SimPool, SimStorage};
use super::{
    Dependents, DiskSpec, FileStorage, FileStorageConfig, Identity, Role, Storage, VolumeSnapshot,
};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::drivers::faults::{Fault, Faults};
use crate::host::{FakeExec, SystemExec};

const IMAGE: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";
const IMAGE_MIB: u64 = 8;

fn image() -> ImageUuid {
    IMAGE.parse().unwrap()
}

fn vm(last: u8) -> VmUuid {
    format!("aaaaaaaa-0000-4000-8000-0000000000{last:02x}").parse().unwrap()
}

fn task(name: &str) -> TaskId {
    name.parse().unwrap()
}

fn spec(vm: VmUuid, index: u32, image: Option<ImageUuid>, size_mib: Option<u64>) -> DiskSpec {
    DiskSpec { vm, index, pool: None, image, size_mib }
}

fn in_pool(name: &str, mut spec: DiskSpec) -> DiskSpec {
    spec.pool = Some(name.to_owned());
    spec
}

#[track_caller]
fn check_code<T: std::fmt::Debug>(result: &Result<T, DriverError>, wanted: &str) {
    match result {
        Err(DriverError::Refused { code, .. }) if *code == wanted => {}
        other => panic!("expected {wanted}, got {other:?}"),
    }
}

/// Images that disks are based on, with how many disks and VMs.
async fn based(storage: &dyn Storage) -> Vec<(ImageUuid, usize, usize)> {
    let bases = storage.bases().await.unwrap();
    let count = |image: &ImageUuid| {
        let Dependents { disks, vms } = Dependents::of(&bases, *image);
        (*image, disks, vms)
    };
    bases.keys().map(count).collect()
}

/// The driver has the image [`IMAGE`] of [`IMAGE_MIB`] and nothing else. Its first pool is `zones`.
async fn conformance(storage: &dyn Storage) {
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

/// The driver has the image [`IMAGE`] and nothing else.
async fn conformance_of_snapshots(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    storage.create_disk(&spec(vm(5), 0, Some(image()), None), &one).await.unwrap();
    storage.create_disk(&spec(vm(5), 1, None, Some(5)), &one).await.unwrap();
    let disks = [Role::Disk(0), Role::Disk(1)];
    let names = async || -> Vec<(u32, String)> {
        let found = storage.snapshots(vm(5)).await.unwrap();
        let disk = |snapshot: VolumeSnapshot| match snapshot.volume {
            Role::Disk(index) => (index, snapshot.name),
            Role::Firmware => panic!("no firmware keeps anything here"),
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

#[tokio::test]
async fn the_simulated_driver_conforms() {
    let pool = SimPool::default();
    let installed = SimImage { manifest: json!({}), size_bytes: IMAGE_MIB * MIB };
    pool.install(image(), installed).unwrap();
    let storage = SimStorage::new(pool.clone(), Faults::none());
    conformance(&storage).await;
    conformance_of_snapshots(&storage).await;
    fill::conformance(&storage).await;
    assert!(pool.disks().is_empty() && pool.stashed().is_empty());
}

#[tokio::test]
async fn simulated_disks_outlive_the_driver_and_fill_the_pool() {
    let (pool, faults) = (SimPool::new(64 * MIB), Faults::none());
    let storage = SimStorage::new(pool.clone(), faults.clone());
    faults.fail_nth("storage.create_disk", 1, Fault::after());
    storage.create_disk(&spec(vm(1), 0, None, Some(5)), &task("one")).await.unwrap_err();
    drop(storage);
    let storage = SimStorage::new(pool.clone(), faults);
    storage.create_disk(&spec(vm(1), 0, None, Some(5)), &task("one")).await.unwrap();
    assert_eq!(pool.disks().len(), 1);
    pool.occupy(64 * MIB);
    let full = storage.create_disk(&spec(vm(1), 1, None, Some(5)), &task("one")).await;
    check_code(&full, "StoreFull");
}

struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// A data folder with the image installed.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = folder.path().join("images");
        std::fs::create_dir(&images).unwrap();
        let path = images.join(format!("{IMAGE}.qcow2"));
        let storage = Self { folder };
        let made = storage.file(Arc::new(SystemExec::new())).await;
        made.qemu_img_create(&path, None, IMAGE_MIB * MIB).await.unwrap();
        std::fs::write(path.with_extension("json"), r#"{"manifest":{}}"#).unwrap();
        storage
    }

    async fn file(&self, exec: crate::host::SharedExec) -> FileStorage {
        self.pool("zones", self.folder.path(), exec).await
    }

    async fn pool(&self, name: &str, dir: &Path, exec: crate::host::SharedExec) -> FileStorage {
        let config = FileStorageConfig {
            storage_dir: dir.to_owned(),
            data_dir: self.folder.path().to_owned(),
            server_uuid: uuid::Uuid::nil().into(),
            cluster: Cluster::unknown(),
            pool: name.to_owned(),
        };
        FileStorage::open(config, exec).await.unwrap()
    }

    fn vols(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("vols")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[tokio::test]
async fn the_file_driver_conforms() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    conformance(&storage).await;
    conformance_of_snapshots(&storage).await;
    fill::conformance(&storage).await;
    assert_eq!(node.vols(), Vec::<String>::new());
}

#[tokio::test]
async fn a_disk_is_a_clone_that_leaves_its_image_alone() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    let disk = storage.create_disk(&spec(vm(1), 0, Some(image()), None), &task("one")).await;
    let disk = disk.unwrap();
    assert!(disk.used_bytes < MIB, "{disk:?}");
    // The data folder can be moved as a whole.
    let start = std::fs::read(&disk.path).unwrap();
    let name = format!("../../images/{IMAGE}.qcow2");
    assert!(start.windows(name.len()).any(|window| window == name.as_bytes()));
}

/// Every change of a VM is reported, and each report has these figures.
#[tokio::test]
async fn disks_that_are_known_are_not_opened_for_a_report() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    let made = storage.create_disk(&spec(vm(1), 0, None, Some(3)), &task("one")).await.unwrap();
    assert_eq!(storage.usage().await.unwrap()[0].disks_virtual_bytes, 3 * MIB);
    // One that is no disk any more would be left out, if somebody looked.
    let mut file = std::fs::OpenOptions::new().write(true).open(&made.path).unwrap();
    std::io::Write::write_all(&mut file, b"damaged").unwrap();
    assert_eq!(storage.usage().await.unwrap()[0].disks_virtual_bytes, 3 * MIB);
    // Another file under its name is another disk.
    let other = storage.create_disk(&spec(vm(2), 0, None, Some(5)), &task("one")).await.unwrap();
    std::fs::rename(other.path, made.path).unwrap();
    assert_eq!(storage.usage().await.unwrap()[0].disks_virtual_bytes, 5 * MIB);
}

#[tokio::test]
async fn a_damaged_disk_is_based_on_what_its_stamp_says() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    for of in [vm(1), vm(2)] {
        storage.create_disk(&spec(of, 0, Some(image()), None), &task("one")).await.unwrap();
    }
    let disk = storage.disks(vm(2)).await.unwrap().remove(0).path;
    std::fs::write(&disk, "damaged").unwrap();
    assert_eq!(based(&storage).await, [(image(), 2, 2)]);
    std::fs::remove_file(disk.with_extension("json")).unwrap();
    let untold = storage.bases().await.unwrap_err();
    assert!(untold.to_string().contains("disk0.qcow2 is based on"), "{untold}");
}

#[tokio::test]
async fn a_failed_qemu_img_leaves_nothing() {
    let node = Node::new().await;
    let exec = Arc::new(FakeExec::default());
    let storage = node.file(Arc::clone(&exec) as _).await;
    let wanted = spec(vm(1), 0, Some(image()), None);
    exec.fails(&["qemu-img"], 1, "qemu-img: x: No space left on device");
    check_code(&storage.create_disk(&wanted, &task("one")).await, "StoreFull");
    exec.fails(&["qemu-img"], 1, "qemu-img: x: something else");
    let failed = storage.create_disk(&wanted, &task("one")).await;
    assert!(matches!(failed, Err(DriverError::Failed { .. })), "{failed:?}");
    storage.destroy_disks(vm(1), Some(&task("one"))).await.unwrap();
    assert_eq!(node.vols(), Vec::<String>::new());
}

/// What a crash may leave of a create: the stamp, and the disk under its temporary name.
#[tokio::test]
async fn what_a_crash_left_is_made_whole_or_removed() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    let folder = node.folder.path().join("vols").join(vm(1).to_string());
    let leave = || {
        std::fs::create_dir_all(&folder).unwrap();
        let stamp = json!({ "server_uuid": uuid::Uuid::nil(), "vm_uuid": vm(1), "task_id": "one" });
        std::fs::write(folder.join("disk0.json"), stamp.to_string()).unwrap();
        std::fs::write(folder.join(".disk0.qcow2.tmp"), "half").unwrap();
        std::fs::write(folder.join(".disk0.json.tmp"), "half").unwrap();
    };
    leave();
    assert_eq!(storage.disks(vm(1)).await.unwrap(), vec![]);
    storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await.unwrap();
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
    storage.destroy_disks(vm(1), Some(&task("one"))).await.unwrap();
    assert_eq!(node.vols(), Vec::<String>::new());
    leave();
    storage.destroy_disks(vm(1), Some(&task("one"))).await.unwrap();
    assert_eq!(node.vols(), Vec::<String>::new());
}
