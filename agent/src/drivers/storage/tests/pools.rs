//! Several pools as one: they conform like one of them, and each disk lies where it was asked for.

use std::collections::BTreeSet;
use std::time::Duration;

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
    of_disks(&storage).await;
    of_snapshots(&storage).await;
    of_variables(&storage, Path::new("/sim/firmware.fd")).await;
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

#[tokio::test(start_paused = true)]
async fn a_pool_that_hangs_delays_only_vms_that_have_disks_in_it() {
    let (_, faults, storage) = simulated();
    let names = |name: &str| Some(BTreeSet::from([name.to_owned()]));
    for (number, pool) in [(1, "zones"), (2, "fast")] {
        storage.expect(vm(number), names(pool));
        let disk = in_pool(pool, spec(vm(number), 0, None, Some(1)));
        storage.create_disk(&disk, &task("one")).await.unwrap();
    }
    faults.fail_nth("storage.disks", 1, Fault::hangs());
    let at_once = async |number: u8| {
        let soon = Duration::from_millis(1);
        let asked = tokio::time::timeout(soon, storage.disks(vm(number))).await;
        asked.expect("nobody waits for the pool again").map(|disks| disks.len())
    };
    // Who meets it first waits for it.
    let first = tokio::time::timeout(Duration::from_secs(6), storage.disks(vm(1))).await;
    assert_eq!(first.unwrap().unwrap().len(), 1);
    assert_eq!((at_once(1).await.unwrap(), at_once(3).await.unwrap()), (1, 0));
    assert!(at_once(2).await.unwrap_err().to_string().contains("pool fast"));
    storage.create_disk(&spec(vm(3), 0, None, Some(1)), &task("one")).await.unwrap();
    storage.put_copy(vm(3), b"late").await.unwrap();
    assert_eq!(storage.usage().await.unwrap().len(), 1);
    // Not known whether a disk is based on an image, or who has volumes.
    storage.bases().await.unwrap_err();
    storage.volumes().await.unwrap_err();
    storage.destroy_disks(vm(1), None).await.unwrap();
    assert_eq!((at_once(1).await.unwrap(), faults.calls("storage.disks")), (0, 1));

    tokio::time::sleep(crate::drivers::faults::HANG).await;
    assert_eq!((at_once(2).await.unwrap(), at_once(3).await.unwrap()), (1, 1));
    assert_eq!(storage.usage().await.unwrap().len(), 2);
}

/// A disk that was moved by hand while the agent did not run.
#[tokio::test]
async fn a_disk_is_found_where_its_record_does_not_expect_it() {
    let (_, _, storage) = simulated();
    let disk = in_pool("fast", spec(vm(1), 0, None, Some(1)));
    storage.create_disk(&disk, &task("one")).await.unwrap();
    for pools in [Some(BTreeSet::from(["zones".to_owned()])), None] {
        storage.expect(vm(1), pools);
        assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
        storage.grow_disk(vm(1), 0, 2).await.unwrap();
    }
    storage.destroy_disks(vm(1), None).await.unwrap();
    assert_eq!(storage.disks(vm(1)).await.unwrap(), []);
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
    of_disks(&storage).await;
    of_snapshots(&storage).await;
    let template = node.folder.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672]).unwrap();
    of_variables(&storage, &template).await;
    conformance_of_two(&storage).await;
    assert_eq!(node.vols(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(fast.path().join("vols")).unwrap().count(), 0);
}

/// Its folder is there and empty, as the place is where its file system is to be mounted.
#[tokio::test]
async fn nothing_is_made_in_place_of_a_pool_that_is_not_there() {
    let node = Node::new().await;
    let folder = tempfile::tempdir().unwrap();
    let open = async || node.pool("fast", folder.path(), Arc::new(SystemExec::new())).await;
    let (one, disk) = (task("one"), in_pool("fast", spec(vm(1), 0, None, Some(1))));
    let storage = open().await;
    storage.create_disk(&disk, &one).await.unwrap();
    let names = || {
        let found = std::fs::read_dir(folder.path()).unwrap();
        found.map(|it| it.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    let mounted = names();
    let away = tempfile::tempdir().unwrap();
    let carry = |from: &Path, to: &Path| {
        for name in &mounted {
            std::fs::rename(from.join(name), to.join(name)).unwrap();
        }
    };
    carry(folder.path(), away.path());
    let other = in_pool("fast", spec(vm(2), 0, None, Some(1)));
    // Whether or not the agent is started again meanwhile.
    for storage in [storage, open().await] {
        check_code(&storage.create_disk(&other, &one).await, "DatasetNotFound");
        check_code(&storage.put_copy(vm(2), b"copy").await, "DatasetNotFound");
        check_code(&storage.variables(vm(2), Path::new("/none")).await, "DatasetNotFound");
        assert_eq!(storage.usage().await.unwrap()[0].size_bytes, 0);
        let [problem] = &storage.problems()[..] else { panic!("{:?}", storage.problems()) };
        assert!(problem.contains("pool fast") && problem.contains("mounted"), "{problem}");
        assert_eq!(names(), BTreeSet::new(), "nothing was made");
        carry(away.path(), folder.path());
        storage.create_disk(&disk, &one).await.unwrap();
        assert_eq!(storage.problems(), Vec::<String>::new());
        carry(folder.path(), away.path());
    }
    // The agent's data folder was lost; the pool is the same.
    carry(away.path(), folder.path());
    std::fs::remove_dir_all(node.folder.path().join("pools")).unwrap();
    let storage = open().await;
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
    // Another pool's disk is mounted here.
    std::fs::write(
        folder.path().join("muster-pool.json"),
        json!({
            "pool": "slow", "server_uuid": uuid::Uuid::nil(),
        })
        .to_string(),
    )
    .unwrap();
    check_code(&storage.create_disk(&other, &one).await, "DatasetNotFound");
    assert!(storage.problems()[0].contains("pool slow"), "{:?}", storage.problems());
}
