//! Several pools as one: they conform like one of them, and each disk lies where it was asked for.

use super::*;
use crate::drivers::storage::{Pools, RecordCopy};

/// Two pools, `zones` and `fast`. The image is in the first, and nothing else is anywhere.
async fn conformance_of_two(storage: &dyn Storage) {
    let one = task("one");
    assert_eq!(storage.pools(), ["zones", "fast"]);
    storage.put_copy(vm(7), b"early").await.unwrap();
    let boot = in_pool("fast", spec(vm(7), 0, Some(image()), None));
    let boot = storage.create_disk(&boot, &one).await.unwrap();
    storage.create_disk(&spec(vm(7), 1, Some(image()), None), &one).await.unwrap();
    let pools = async || {
        let disks = storage.disks(vm(7)).await.unwrap().into_iter();
        disks.map(|disk| (disk.index, disk.identity.unwrap().pool)).collect::<Vec<_>>()
    };
    let both = [(0, "fast".to_owned()), (1, "zones".to_owned())];
    assert_eq!(pools().await, both);
    // One disk of a VM is one, in whatever pool the second is wanted.
    for pool in ["fast", "zones"] {
        let again = in_pool(pool, spec(vm(7), 0, Some(image()), None));
        let again = storage.create_disk(&again, &one).await;
        match pool {
            "fast" => assert_eq!(again.unwrap(), boot),
            _ => check_code(&again, "DatasetExists"),
        }
    }
    assert_eq!(based(storage).await, [(image(), 2, 1)], "it is one VM");
    let usages = storage.usage().await.unwrap();
    let shown: Vec<_> =
        usages.iter().map(|usage| (&*usage.pool, usage.disks_virtual_bytes)).collect();
    assert_eq!(shown, [("zones", IMAGE_MIB * MIB), ("fast", IMAGE_MIB * MIB)]);
    assert_eq!(usages[1].images_bytes, 0, "they are in the first");

    // What is the VM's as a whole lies beside its boot disk; an older copy counts no more.
    storage.put_copy(vm(7), b"late").await.unwrap();
    let late = RecordCopy { vm: vm(7), content: b"late".to_vec() };
    assert_eq!(storage.copy(vm(7)).await.unwrap(), Some(late));
    assert_eq!(storage.copied().await.unwrap(), [vm(7)]);

    // A snapshot is of both or can't be gone back to.
    let all = [Role::Disk(0), Role::Disk(1)];
    storage.create_snapshot(vm(7), "vmsnap-a", &all).await.unwrap();
    storage.create_snapshot(vm(7), "vmsnap-b", &all[..1]).await.unwrap();
    storage.grow_disk(vm(7), 0, IMAGE_MIB * 2).await.unwrap();
    storage.grow_disk(vm(7), 1, IMAGE_MIB * 3).await.unwrap();
    let sizes = async || {
        let disks = storage.disks(vm(7)).await.unwrap().into_iter();
        disks.map(|disk| disk.size_bytes / MIB).collect::<Vec<_>>()
    };
    let grown = [IMAGE_MIB * 2, IMAGE_MIB * 3];
    check_code(&storage.roll_back(vm(7), "vmsnap-b").await, "SnapshotNotFound");
    assert_eq!(sizes().await, grown, "none was touched");
    storage.roll_back(vm(7), "vmsnap-a").await.unwrap();
    assert_eq!(sizes().await, [IMAGE_MIB, IMAGE_MIB]);
    storage.delete_snapshot(vm(7), "vmsnap-a", &all).await.unwrap();

    // A boot disk is replaced where it was.
    storage.stash_disk(vm(7), 0, &task("two")).await.unwrap();
    let anew = in_pool("fast", spec(vm(7), 0, None, Some(1)));
    storage.create_disk(&anew, &task("two")).await.unwrap();
    let found = storage.volumes().await.unwrap();
    let found: Vec<_> = found.iter().map(|v| (v.role, v.is_aside, &*v.pool)).collect();
    let aside = (Role::Disk(0), true, "fast");
    assert_eq!(found, [(all[0], false, "fast"), aside, (all[1], false, "zones")]);
    storage.restore_disk(vm(7), 0, &task("two")).await.unwrap();
    assert_eq!(pools().await, both);
    storage.destroy_disks(vm(7), None).await.unwrap();
    assert_eq!(storage.volumes().await.unwrap(), []);
    storage.remove_copy(vm(7)).await.unwrap();
    assert_eq!(storage.copy(vm(7)).await.unwrap(), None);
}

/// The pools of a simulated host, and the storage over them.
fn simulated() -> ([SimPool; 2], Faults, Pools) {
    let (zones, fast, faults) = (SimPool::default(), SimPool::default(), Faults::none());
    let installed = SimImage { manifest: json!({}), size_bytes: IMAGE_MIB * MIB };
    zones.install(image(), installed).unwrap();
    let first = Arc::new(SimStorage::new(zones.clone(), Faults::none()));
    let further = SimStorage::further(fast.clone(), "fast", zones.clone(), faults.clone());
    let pools = Pools::new(first, vec![Arc::new(further)]);
    ([zones, fast], faults, pools)
}

#[tokio::test]
async fn simulated_pools_conform() {
    let ([zones, fast], _, storage) = simulated();
    conformance(&storage).await;
    conformance_of_snapshots(&storage).await;
    variables::conformance(&storage, Path::new("/sim/firmware.fd")).await;
    conformance_of_two(&storage).await;
    assert!(zones.disks().is_empty() && fast.disks().is_empty() && fast.copies().is_empty());
}

#[tokio::test]
async fn a_copy_lies_in_the_pool_of_the_boot_disk_alone() {
    let ([zones, fast], _, storage) = simulated();
    storage.put_copy(vm(1), b"early").await.unwrap();
    storage
        .create_disk(&in_pool("fast", spec(vm(1), 0, None, Some(1))), &task("one"))
        .await
        .unwrap();
    storage.put_copy(vm(1), b"late").await.unwrap();
    assert_eq!((zones.copies().len(), fast.copies().len()), (0, 1));
    // A crash between the two steps leaves both.
    zones.set_copy(vm(1), b"early".to_vec());
    assert_eq!(storage.copy(vm(1)).await.unwrap().unwrap().content, b"late");
}

#[tokio::test]
async fn a_pool_that_tells_nothing_does_not_hide_the_others() {
    let (_, faults, storage) = simulated();
    faults.fail_nth("storage.usage", 1, Fault::before());
    let usages = storage.usage().await.unwrap();
    assert_eq!(usages.iter().map(|usage| &*usage.pool).collect::<Vec<_>>(), ["zones"]);
    // What a VM has is not known then.
    faults.fail_nth("storage.disks", 1, Fault::before());
    storage.disks(vm(1)).await.unwrap_err();
    faults.fail_nth("storage.bases", 1, Fault::before());
    storage.bases().await.unwrap_err();
}

#[tokio::test]
async fn nothing_of_a_vm_goes_while_a_disk_of_it_is_in_use_in_another_pool() {
    let ([zones, _], faults, storage) = simulated();
    storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await.unwrap();
    storage
        .create_disk(&in_pool("fast", spec(vm(1), 1, None, Some(1))), &task("one"))
        .await
        .unwrap();
    faults.fail_nth("storage.check_idle", 1, Fault::refusal("DatasetBusy".into()));
    check_code(&storage.destroy_disks(vm(1), None).await, "DatasetBusy");
    assert_eq!(zones.disks().len(), 1);
}

/// A further pool of files beside the first.
async fn of_files(node: &Node) -> (tempfile::TempDir, Pools) {
    let folder = tempfile::tempdir().unwrap();
    let exec = Arc::new(SystemExec::new());
    let first = Arc::new(node.file(exec.clone()).await);
    let further = node.pool("fast", folder.path(), exec).await;
    let further = further.with_images_of(node.folder.path()).unwrap();
    (folder, Pools::new(first, vec![Arc::new(further)]))
}

#[tokio::test]
async fn pools_of_files_conform() {
    let node = Node::new().await;
    let (fast, storage) = of_files(&node).await;
    conformance(&storage).await;
    conformance_of_snapshots(&storage).await;
    let template = node.folder.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672]).unwrap();
    variables::conformance(&storage, &template).await;
    conformance_of_two(&storage).await;
    assert_eq!(node.vols(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(fast.path().join("vols")).unwrap().count(), 0);
}
