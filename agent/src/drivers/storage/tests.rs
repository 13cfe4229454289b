//! What every storage driver owes, checked on each of them, and what each owes by itself.

mod pools;
mod roots;
mod variables;
mod zfs;

use std::path::Path;
use std::sync::Arc;

use muster_shared::units::MIB;
use serde_json::json;

use super::conformance::{
    ALL, IMAGE, IMAGE_MIB, based, check_code, image, in_pool, of_disks, of_filling,
    of_root_snapshots, of_roots, of_snapshots, of_variables, spec, task, vm,
};
use super::sim::{SimImage, SimPool, SimStorage};
use super::{FileStorage, FileStorageConfig, Role, Storage};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::drivers::faults::{Fault, Faults};
use crate::host::{FakeExec, SystemExec};

#[tokio::test]
async fn the_simulated_driver_conforms() {
    let pool = SimPool::default();
    let installed = SimImage { manifest: json!({}), size_bytes: IMAGE_MIB * MIB };
    pool.install(image(), installed).unwrap();
    let storage = SimStorage::new(pool.clone(), Faults::none());
    of_disks(&storage).await;
    of_snapshots(&storage).await;
    of_filling(&storage).await;
    of_roots(&storage).await;
    of_root_snapshots(&storage).await;
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
    of_disks(&storage).await;
    of_snapshots(&storage).await;
    of_filling(&storage).await;
    of_roots(&storage).await;
    of_root_snapshots(&storage).await;
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
