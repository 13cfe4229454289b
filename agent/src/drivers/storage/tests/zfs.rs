//! The driver `zfs` on a simulated pool.

use muster_shared::ids::ImageUuid;

use super::*;
use crate::drivers::storage::conformance::other_image;
use crate::drivers::storage::zfs::{
    Names, Owner, SimDevices, SimMounts, ZfsStorage, ZfsStorageConfig,
};
use crate::drivers::storage::{ContainerRoots as _, DiskSpec, Pools, RootWishes, SetAside, Wishes};
use crate::drivers::zfs::sim::{SimPools, SimZfs};
use crate::drivers::zfs::{Dataset, Kind, Properties, Snapshot, Wanted, Zfs};

/// A host with a pool, in which the image is.
struct Host {
    folder: tempfile::TempDir,
    pools: SimPools,
    faults: Faults,
    zfs: Arc<SimZfs>,
    devices: Arc<SimDevices>,
    mounts: Arc<SimMounts>,
}

impl Host {
    async fn new() -> Self {
        let pools = SimPools::new("zones");
        pools.add("fast", 64 << 30);
        let faults = Faults::none();
        let zfs = Arc::new(SimZfs::new(pools.clone(), faults.clone()));
        let folder = tempfile::tempdir().unwrap();
        let devices = Arc::new(SimDevices::new(pools.clone()));
        let mounts = Arc::default();
        let host = Self { folder, pools, faults, zfs, devices, mounts };
        host.install(image(), Kind::Volume { size_bytes: IMAGE_MIB * MIB, sparse: true }).await;
        host
    }

    /// The same with images of containers.
    async fn of_containers() -> Self {
        let host = Self::new().await;
        host.zfs.destroy_snapshots(&[final_of(image())], false).await.unwrap();
        host.zfs.destroy(final_of(image()).dataset()).await.unwrap();
        for image in [image(), other_image()] {
            host.install(image, Kind::Filesystem).await;
        }
        host
    }

    async fn install(&self, image: ImageUuid, kind: Kind) {
        let (snapshot, none) = (final_of(image), Properties::new());
        self.zfs.create(snapshot.dataset(), kind, &none).await.unwrap();
        self.zfs.snapshot(&[snapshot], &none).await.unwrap();
    }

    async fn storage(&self, pool: &str) -> ZfsStorage {
        // A simulated file system has no folder of its own.
        let mounts = self.folder.path().join("mounts");
        std::fs::create_dir_all(mounts.join(pool).join("muster")).unwrap();
        let config = ZfsStorageConfig {
            pool: pool.to_owned(),
            data_dir: self.folder.path().join("data"),
            root: mounts,
            roots: self.folder.path().join("shown"),
            owner: Owner { server_uuid: uuid::Uuid::nil().into(), cluster: Cluster::unknown() },
        };
        let (devices, mounts) = (self.devices.clone(), self.mounts.clone());
        ZfsStorage::open(config, self.zfs.clone(), devices, mounts).await.unwrap()
    }

    /// Every dataset and snapshot of a pool.
    async fn names(&self, pool: &str) -> Vec<String> {
        let root: Dataset = pool.parse().unwrap();
        let wanted = Wanted { snapshots: true, ..Wanted::below(&root, &["name"]) };
        let told = self.zfs.list(&wanted).await.unwrap();
        told.into_iter().map(|mut row| row.remove("name").unwrap()).collect()
    }
}

/// What disks and roots of an image are clones of.
fn final_of(image: ImageUuid) -> Snapshot {
    Names::new("zones").final_snapshot(image).parse().unwrap()
}

#[tokio::test]
async fn the_zfs_driver_conforms_on_a_simulated_pool() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    let before = host.names("zones").await;
    of_disks(&storage).await;
    of_snapshots(&storage).await;
    let template = host.folder.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672]).unwrap();
    of_variables(&storage, &template).await;
    of_filling(&storage).await;
    assert_eq!(host.names("zones").await, before);
}

#[tokio::test]
async fn disks_in_another_pool_are_copies_of_the_image() {
    let host = Host::new().await;
    let first = Arc::new(host.storage("zones").await);
    let further = host.storage("fast").await.with_images_of(first.clone());
    let storage = Pools::new(first, vec![Arc::new(further)]);
    let boot = in_pool("fast", spec(vm(7), 0, Some(image()), Some(20)));
    let made = storage.create_disk(&boot, &task("one")).await.unwrap();
    assert_eq!(made.size_bytes, 20 * MIB);
    assert_eq!(based(&storage).await, [], "the image may go");
    storage.create_disk(&spec(vm(7), 1, Some(image()), None), &task("one")).await.unwrap();
    assert_eq!(based(&storage).await, [(image(), 1, 1)]);
    storage.put_copy(vm(7), b"copy").await.unwrap();
    assert_eq!(storage.copied().await.unwrap(), [vm(7)]);
    storage.destroy_disks(vm(7), None).await.unwrap();
    assert_eq!(host.names("fast").await, ["fast", "fast/muster"]);
}

#[tokio::test]
async fn a_volume_that_a_process_has_open_stays() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    for index in [0, 1] {
        storage.create_disk(&spec(vm(1), index, None, Some(1)), &task("one")).await.unwrap();
    }
    host.devices.hold(&format!("zones/{}/disk1", vm(1)));
    check_code(&storage.check_idle(vm(1)).await, "DatasetBusy");
    check_code(&storage.destroy_disks(vm(1), None).await, "DatasetBusy");
    check_code(&storage.destroy_disk(vm(1), 1, None).await, "DatasetBusy");
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 2, "none of them goes");
    storage.create_snapshot(vm(1), "vmsnap-a", &[Role::Disk(0), Role::Disk(1)]).await.unwrap();
    host.devices.release();
    storage.destroy_disks(vm(1), None).await.unwrap();
    assert_eq!(storage.volumes().await.unwrap(), []);
}

#[tokio::test]
async fn what_somebody_else_made_in_a_vms_dataset_stays_with_it() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await.unwrap();
    let foreign = format!("{}/notes", Names::new("zones").of_vm(vm(1)));
    let (dataset, none) = (foreign.parse().unwrap(), Properties::new());
    host.zfs.create(&dataset, Kind::Filesystem, &none).await.unwrap();
    let refused = storage.destroy_disks(vm(1), None).await;
    check_code(&refused, "DatasetHasChildren");
    assert!(refused.unwrap_err().to_string().contains("/notes"));
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
    // An undo takes what its task made, and no more.
    storage.destroy_disks(vm(1), Some(&task("one"))).await.unwrap();
    assert!(host.names("zones").await.contains(&foreign));
}

#[tokio::test]
async fn a_snapshot_that_a_clone_depends_on_keeps_disks_from_going_back_and_away() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await.unwrap();
    for name in ["vmsnap-a", "vmsnap-b"] {
        storage.create_snapshot(vm(1), name, &[Role::Disk(0)]).await.unwrap();
    }
    let newer = format!("zones/{}/disk0@vmsnap-b", vm(1)).parse().unwrap();
    let clone: Dataset = "zones/other".parse().unwrap();
    host.zfs.clone_snapshot(&newer, &clone, &Properties::new()).await.unwrap();
    check_code(&storage.roll_back(vm(1), "vmsnap-a").await, "DatasetHasClones");
    assert_eq!(storage.snapshots(vm(1)).await.unwrap().len(), 2);
    check_code(&storage.destroy_disks(vm(1), None).await, "DatasetHasClones");
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
    host.zfs.destroy(&clone).await.unwrap();
    storage.destroy_disks(vm(1), None).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_is_not_there_has_no_disks_to_tell_of() {
    let host = Host::new().await;
    let storage = host.storage("gone").await;
    let [problem] = &storage.problems()[..] else { panic!("{:?}", storage.problems()) };
    assert!(problem.contains("pool gone is not there"), "{problem}");
    assert_eq!(storage.usage().await.unwrap()[0].size_bytes, 0);
    // Nobody can tell that they are not there.
    storage.disks(vm(1)).await.unwrap_err();
    storage.volumes().await.unwrap_err();
    storage.bases().await.unwrap_err();
    let refused = storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await;
    check_code(&refused, "DatasetNotFound");
    check_code(&storage.put_copy(vm(1), b"copy").await, "DatasetNotFound");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_stays_open_gets_out_of_the_way_and_goes_later() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    storage.create_disk(&spec(vm(1), 0, None, Some(1)), &task("one")).await.unwrap();
    let disk: Dataset = format!("zones/{}/disk0", vm(1)).parse().unwrap();
    host.pools.set_busy(&disk, true);
    storage.destroy_disks(vm(1), None).await.unwrap();
    assert_eq!(storage.volumes().await.unwrap(), []);
    storage.create_disk(&spec(vm(1), 0, None, Some(2)), &task("two")).await.unwrap();
    let going = |names: &[String]| {
        names.iter().find(|name| name.starts_with("zones/muster/going/")).cloned()
    };
    let left = going(&host.names("zones").await).expect("it is kept aside");
    // It is still open when the agent starts again, and then no more.
    for busy in [true, false] {
        host.pools.set_busy(&left.parse().unwrap(), busy);
        drop(host.storage("zones").await);
        assert_eq!(going(&host.names("zones").await).is_some(), busy);
    }
    assert_eq!(storage.disks(vm(1)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn disks_are_kept_as_their_owner_wishes() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    let wishes = Wishes {
        block_bytes: Some(4096),
        set_aside: Some(SetAside::Mib(3)),
        compression: Some("zstd".to_owned()),
    };
    let blank = DiskSpec { wishes: wishes.clone(), ..spec(vm(1), 0, None, Some(5)) };
    storage.create_disk(&blank, &task("one")).await.unwrap();
    storage.grow_disk(vm(1), 0, 9).await.unwrap();
    let clone = DiskSpec { wishes: wishes.clone(), ..spec(vm(1), 1, Some(image()), Some(20)) };
    check_code(&storage.create_disk(&clone, &task("one")).await, "InvalidParameters");
    let clone = DiskSpec { wishes: Wishes { block_bytes: None, ..wishes }, ..clone };
    storage.create_disk(&clone, &task("one")).await.unwrap();
    storage.create_disk(&spec(vm(1), 2, None, Some(5)), &task("one")).await.unwrap();
    storage.grow_disk(vm(1), 2, 7).await.unwrap();
    let content = host.pools.content();
    let set = |index: u32, name: &str| {
        content[&format!("zones/{}/disk{index}", vm(1))].get(name).cloned().unwrap_or_default()
    };
    assert_eq!((set(0, "volblocksize"), set(0, "compression")), ("4096".into(), "zstd".into()));
    assert_eq!(set(0, "refreservation"), (3 * MIB).to_string(), "as much as before it grew");
    assert_eq!((set(1, "volblocksize"), set(1, "compression")), (String::new(), "zstd".into()));
    assert_eq!(set(1, "refreservation"), (3 * MIB).to_string());
    assert_eq!(set(2, "refreservation"), (7 * MIB).to_string(), "all of it");
    assert_eq!(set(2, "muster:create_task"), "one");
}

/// What a crash between two operations leaves.
#[tokio::test]
async fn a_crash_in_the_middle_leaves_what_the_task_makes_whole_or_removes() {
    let host = Host::new().await;
    let storage = host.storage("zones").await;
    let wanted = spec(vm(1), 0, Some(image()), Some(20));
    let whole = async || {
        let made = storage.create_disk(&wanted, &task("one")).await.unwrap();
        assert_eq!(made.size_bytes, 20 * MIB);
    };
    for operation in ["zfs.create", "zfs.clone", "zfs.list"] {
        // What a look-up found does not matter once it has failed.
        let after = (operation != "zfs.list").then(Fault::after);
        for fault in std::iter::once(Fault::before()).chain(after) {
            for undone in [false, true] {
                host.faults.fail_nth(operation, 1, fault.clone());
                let failed = storage.create_disk(&wanted, &task("one")).await;
                assert!(failed.is_err(), "{operation} {fault:?} {undone}: {failed:?}");
                if !undone {
                    whole().await;
                }
                storage.destroy_disks(vm(1), Some(&task("one"))).await.unwrap();
                let names = host.names("zones").await;
                assert!(!names.iter().any(|name| name.contains(&vm(1).to_string())), "{names:?}");
            }
        }
    }
}

#[tokio::test]
async fn roots_of_containers_conform_on_a_simulated_pool() {
    let host = Host::of_containers().await;
    let storage = host.storage("zones").await;
    let before = host.names("zones").await;
    of_roots(&storage).await;
    of_root_snapshots(&storage).await;
    assert_eq!(host.names("zones").await, before);
    let of_disks = storage.create_disk(&spec(vm(1), 0, Some(image()), None), &task("one")).await;
    check_code(&of_disks, "ImageNotInstalled");
}

#[tokio::test]
async fn a_root_is_kept_as_its_owner_wishes() {
    let host = Host::of_containers().await;
    let storage = host.storage("zones").await;
    let wishes = RootWishes {
        quota_bytes: Some(3 << 30),
        record_bytes: Some(8192),
        compression: Some("zstd".to_owned()),
    };
    storage.create_root(vm(1), image(), &wishes, &task("one")).await.unwrap();
    let set = || host.pools.content()[&format!("zones/{}/root", vm(1))].clone();
    let made = set();
    for (name, value) in [
        ("quota", "3221225472"),
        ("recordsize", "8192"),
        ("compression", "zstd"),
        ("mountpoint", "legacy"),
        ("canmount", "noauto"),
        ("muster:create_task", "one"),
    ] {
        assert_eq!(made.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(made["muster:image_uuid"], image().to_string());
    let odd = RootWishes { record_bytes: Some(5000), ..wishes.clone() };
    check_code(&storage.change_root(vm(1), &odd).await, "InvalidParameters");
    let small = RootWishes { quota_bytes: Some(1), ..wishes };
    let refused = storage.change_root(vm(1), &small).await;
    assert!(refused.as_ref().unwrap_err().to_string().contains("quota"));
    check_code(&refused, "InvalidParameters");
    assert_eq!(set(), made);
    storage.change_root(vm(1), &RootWishes::default()).await.unwrap();
    assert_eq!(set()["quota"], "none");
    assert!(!set().contains_key("recordsize") && !set().contains_key("compression"));
}

/// What a crash between two operations leaves of a root.
#[tokio::test]
async fn a_crash_in_the_middle_leaves_a_root_that_its_task_makes_whole_or_removes() {
    let host = Host::of_containers().await;
    let storage = host.storage("zones").await;
    let (one, plain) = (task("one"), RootWishes::default());
    for operation in ["zfs.create", "zfs.clone"] {
        for fault in [Fault::before(), Fault::after()] {
            for undone in [false, true] {
                host.faults.fail_nth(operation, 1, fault.clone());
                storage.create_root(vm(1), image(), &plain, &one).await.unwrap_err();
                if !undone {
                    storage.create_root(vm(1), image(), &plain, &one).await.unwrap();
                    assert_eq!(storage.root(vm(1)).await.unwrap(), Some(image()));
                }
                // As the task's undo does it.
                storage.destroy_disks(vm(1), Some(&one)).await.unwrap();
                storage.destroy_root(vm(1), Some(&one)).await.unwrap();
                let names = host.names("zones").await;
                assert!(!names.iter().any(|name| name.contains(&vm(1).to_string())), "{names:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_root_that_is_still_in_use_gets_out_of_the_way() {
    let host = Host::of_containers().await;
    let storage = host.storage("zones").await;
    let (one, plain) = (task("one"), RootWishes::default());
    storage.create_root(vm(1), image(), &plain, &one).await.unwrap();
    storage.mount_root(vm(1), "/".as_ref(), None).await.unwrap();
    assert_eq!(host.mounts.all().len(), 1);
    host.pools.set_busy(&format!("zones/{}/root", vm(1)).parse().unwrap(), true);
    storage.destroy_root(vm(1), None).await.unwrap();
    assert!(host.mounts.all().is_empty());
    assert_eq!(storage.rooted().await.unwrap(), []);
    let left = host.names("zones").await;
    let left = left.iter().find(|name| name.starts_with("zones/muster/going/"));
    host.pools.set_busy(&left.expect("it is kept aside").parse().unwrap(), false);
    drop(host.storage("zones").await);
    let names = host.names("zones").await;
    assert!(!names.iter().any(|name| name.starts_with("zones/muster/going/")), "{names:?}");
}

/// A root whose files were imported: the clone goes once they are all there.
#[tokio::test]
async fn an_import_that_is_cut_anywhere_ends_whole_once_it_is_repeated() {
    let empty = tar::Builder::new(Vec::new()).into_inner().unwrap();
    let size = u64::try_from(empty.len()).unwrap();
    for operation in ["zfs.create", "zfs.inherit", "zfs.destroy", "zfs.rename"] {
        for fault in [Fault::before(), Fault::after()] {
            let host = Host::of_containers().await;
            let storage = host.storage("zones").await;
            let (one, plain) = (task("one"), RootWishes::default());
            storage.create_root(vm(1), image(), &plain, &one).await.unwrap();
            storage.begin_fill(vm(1), Role::Root, size, &one).await.unwrap();
            storage.fill(vm(1), Role::Root, 0, &empty, true).await.unwrap();
            host.faults.fail_nth(operation, 1, fault.clone());
            let case = format!("{operation} {fault:?}");
            storage.end_fill(vm(1), Role::Root).await.expect_err(&case);
            storage.end_fill(vm(1), Role::Root).await.expect(&case);
            assert_eq!(storage.root(vm(1)).await.unwrap(), Some(image()), "{case}");
            let rows = host.pools.content();
            assert_eq!(rows[&format!("zones/{}/root", vm(1))]["muster:create_task"], "one");
            assert!(!rows.contains_key(&format!("zones/{}/root-partial", vm(1))), "{case}");
            storage.destroy_root(vm(1), Some(&one)).await.unwrap();
            assert_eq!(storage.rooted().await.unwrap(), [], "{case}");
        }
    }
}
