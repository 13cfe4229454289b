//! What every storage driver owes the firmware of VMs.

use super::*;
use crate::drivers::storage::Role;

const ALL: [Role; 2] = [Role::Firmware, Role::Disk(0)];

/// The driver has nothing of VM 6.
pub(super) async fn conformance(storage: &dyn Storage, template: &Path) {
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

#[tokio::test]
async fn the_simulated_driver_keeps_what_firmware_keeps() {
    let pool = SimPool::default();
    let storage = SimStorage::new(pool.clone(), Faults::none());
    conformance(&storage, Path::new("/sim/firmware.fd")).await;
    assert!(pool.firmware().is_empty());
}

#[track_caller]
fn tool(words: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the file is changed as a guest does it")]
    let done = std::process::Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(done.success(), "{words:?}");
}

#[tokio::test]
async fn the_file_driver_keeps_what_firmware_keeps() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    // As large as OVMF's: no multiple of what qcow2 counts in.
    let template = node.folder.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672]).unwrap();
    conformance(&storage, &template).await;
    assert_eq!(node.vols(), Vec::<String>::new());

    storage.create_disk(&spec(vm(6), 0, None, Some(1)), &task("one")).await.unwrap();
    let path = storage.variables(vm(6), &template).await.unwrap().path;
    let (path, raw) = (path.to_str().unwrap(), node.folder.path().join("raw"));
    let content = || {
        tool(&["qemu-img", "convert", "-O", "raw", path, raw.to_str().unwrap()]);
        std::fs::read(&raw).unwrap()
    };
    assert_eq!(content(), std::fs::read(&template).unwrap());
    let change = |pattern: &str| {
        tool(&["qemu-io", "-f", "qcow2", "-c", &format!("write -q -P {pattern} 0 512"), path]);
    };
    change("1");
    storage.create_snapshot(vm(6), "vmsnap-a", &ALL).await.unwrap();
    change("2");
    assert_eq!(content()[0], 2);
    storage.roll_back(vm(6), "vmsnap-a").await.unwrap();
    assert_eq!(content()[0], 1);
}
