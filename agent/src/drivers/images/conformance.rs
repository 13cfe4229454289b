//! What every image driver owes, checked on each of them; and what the file driver makes of files
//! that a crash left.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::clock::{SystemClock, TokioClock};
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::oci::samples::{self, File};
use super::sim::{SimImages, SimRepository};
use super::test_server::Misbehaviour;
use super::tests::{IMAGE, Node, check_code, image, raw_disk};
use super::{Images, ROOT_FORMAT, ZfsImages, ZfsImagesConfig};
use crate::drivers::cluster::Cluster;
use crate::drivers::faults::{Fault, Faults};
use crate::drivers::storage::sim::{SimImage, SimPool, SimStorage};
use crate::drivers::storage::zfs::{Owner, SimDevices, SimMounts, ZfsStorage, ZfsStorageConfig};
use crate::drivers::storage::{
    ContainerRoots as _, Dependents, DiskSpec, RootWishes, Storage, Wishes,
};
use crate::drivers::zfs::sim::{SimPools, SimZfs};
use crate::drivers::zfs::{Properties, Zfs};

pub(super) const OTHER: &str = "ffffffff-0506-4708-890a-0b0c0d0e0f10";

pub(super) fn other() -> ImageUuid {
    OTHER.parse().unwrap()
}

pub(super) fn task(name: &str) -> TaskId {
    name.parse().unwrap()
}

fn disk() -> DiskSpec {
    let vm: VmUuid = "aaaaaaaa-0000-4000-8000-000000000001".parse().unwrap();
    DiskSpec {
        vm,
        index: 0,
        pool: None,
        image: Some(image()),
        size_mib: None,
        wishes: Wishes::default(),
    }
}

async fn check_absent(images: &dyn Images) {
    assert_eq!(images.get(image()).await.unwrap(), None);
    assert_eq!(images.list().await.unwrap(), vec![]);
}

async fn ensure(images: &dyn Images) {
    images.ensure(image(), &|_| (), &CancellationToken::new()).await.unwrap();
}

async fn check_refused(images: &dyn Images) {
    let refused = images.remove(image()).await;
    let text = refused.as_ref().unwrap_err().to_string();
    check_code(&refused, "ImageHasDependentClones");
    assert!(text.contains("in use by 1 VM (1 disk)"), "{text}");
    assert!(images.get(image()).await.unwrap().is_some());
}

/// The repository has [`image`] and no other; nothing is installed. After `stall` the next fetch
/// does not end.
async fn conformance(images: &dyn Images, storage: &dyn Storage, stall: impl FnOnce()) {
    check_absent(images).await;
    images.remove(image()).await.unwrap();
    let missing = images.ensure(other(), &|_| (), &CancellationToken::new()).await;
    check_code(&missing, "ImageNotFound");

    stall();
    let cancelled = CancellationToken::new();
    let stopped = images.ensure(image(), &|_| cancelled.cancel(), &cancelled).await;
    check_code(&stopped, "Cancelled");
    check_absent(images).await;

    ensure(images).await;
    ensure(images).await;
    let installed = images.get(image()).await.unwrap().unwrap();
    let listed = images.list().await.unwrap();
    assert_eq!((listed.len(), listed[0].image), (1, image()));
    assert_eq!(listed[0].manifest, installed.manifest);
    assert!(listed[0].used_bytes > 0, "{listed:?}");
    assert_eq!((listed[0].last_used_at, listed[0].origin()), (None, None));
    assert_eq!(listed[0].dependents, Dependents::default());

    images.note_use(image()).await.unwrap();
    storage.create_disk(&disk(), &task("one")).await.unwrap();
    let used = images.list().await.unwrap().remove(0);
    assert!(used.last_used_at >= Some(used.installed_at), "{used:?}");
    assert_eq!(used.installed_at, listed[0].installed_at);
    assert_eq!(used.dependents, Dependents { disks: 1, vms: 1 });
    check_refused(images).await;
    // A disk that was put aside may come back.
    storage.stash_disk(disk().vm, 0, &task("two")).await.unwrap();
    check_refused(images).await;
    storage.purge_stash(disk().vm, 0).await.unwrap();
    storage.destroy_disks(disk().vm, None).await.unwrap();

    for _ in 0..2 {
        images.remove(image()).await.unwrap();
        check_absent(images).await;
    }
    let made = storage.create_disk(&disk(), &task("one")).await;
    check_code(&made.map(drop), "ImageNotInstalled");

    ensure(images).await;
    assert_eq!(images.get(image()).await.unwrap(), Some(installed));
    // It is another one, as far as its use is concerned.
    assert_eq!(images.list().await.unwrap()[0].last_used_at, None);
}

#[tokio::test]
async fn the_file_driver_conforms() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let (storage, images) = (node.storage().await, node.images().await);
    let stall = || node.server.misbehave([Misbehaviour::Hang(1000)]);
    conformance(&images, storage.as_ref(), stall).await;
    images.remove(image()).await.unwrap();
    node.check_nothing_left();
}

/// A node with a simulated pool: its storage and its images.
pub(super) async fn with_a_pool(
    node: &Node,
    faults: &Faults,
) -> (Arc<ZfsStorage>, ZfsImages, SimPools) {
    let pools = SimPools::new("zones");
    let zfs = Arc::new(SimZfs::new(pools.clone(), faults.clone()));
    let devices = Arc::new(SimDevices::new(pools.clone()));
    let owner = Owner { server_uuid: uuid::Uuid::nil().into(), cluster: Cluster::unknown() };
    // A simulated file system has no folder of its own.
    let mounts = node.folder.path().join("mounts");
    std::fs::create_dir_all(mounts.join("zones/muster")).unwrap();
    let config = ZfsStorageConfig {
        pool: "zones".to_owned(),
        data_dir: node.folder.path().join("data"),
        root: mounts,
        roots: node.folder.path().join("shown/roots"),
        owner: owner.clone(),
    };
    let mounts = Arc::new(SimMounts::default());
    let opened = ZfsStorage::open(config, zfs.clone(), devices.clone(), mounts.clone()).await;
    let storage = Arc::new(opened.unwrap());
    let config = ZfsImagesConfig {
        pool: "zones".to_owned(),
        folder: node.folder.path().join("images"),
        shown: node.folder.path().join("shown/images"),
        owner,
        storage: storage.clone(),
    };
    let clock = Arc::new(SystemClock::new());
    let images = ZfsImages::new(config, node.images().await, zfs, devices, mounts, clock);
    (storage, images, pools)
}

#[tokio::test]
async fn the_zfs_driver_conforms() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let (storage, images, pools) = with_a_pool(&node, &Faults::none()).await;
    let stall = || node.server.misbehave([Misbehaviour::Hang(1000)]);
    conformance(&images, storage.as_ref(), stall).await;
    let volume = format!("zones/{IMAGE}");
    assert_eq!(pools.content()[&volume]["muster:image_uuid"], IMAGE);
    // The file has become the volume.
    assert_eq!(node.names(), BTreeSet::from([format!("zones-{IMAGE}.json")]));
    images.remove(image()).await.unwrap();
    node.check_nothing_left();
    assert!(!pools.content().contains_key(&volume));
}

#[tokio::test]
async fn a_volume_that_a_crash_left_half_written_is_written_anew() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let faults = Faults::none();
    let (_, images, pools) = with_a_pool(&node, &faults).await;
    for operation in ["zfs.create", "zfs.snapshot", "zfs.rename"] {
        for fault in [Fault::before(), Fault::after()] {
            faults.fail_nth(operation, 1, fault);
            let failed = images.ensure(image(), &|_| (), &CancellationToken::new()).await;
            failed.unwrap_err();
            check_absent(&images).await;
            ensure(&images).await;
            assert!(images.get(image()).await.unwrap().is_some());
            images.remove(image()).await.unwrap();
            let left = pools.content().into_keys().filter(|name| name.contains(IMAGE));
            assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
        }
    }
    node.check_nothing_left();
}

/// Publishes an image of containers with one file.
fn publish_container(node: &Node) {
    let layer = samples::layer(&[File::plain("issue", "image")]);
    let path = node.folder.path().join("container.tar");
    samples::docker(&samples::config(&samples::here(), std::slice::from_ref(&layer)), &[layer])
        .write(&path);
    node.publish(&std::fs::read(&path).unwrap(), "none", |manifest| {
        manifest["type"] = json!("docker");
        manifest["files"][0]["format"] = json!("docker-archive");
    });
}

#[tokio::test]
async fn an_image_of_containers_becomes_a_file_system() {
    let node = Node::new().await;
    publish_container(&node);
    let faults = Faults::none();
    let (storage, images, pools) = with_a_pool(&node, &faults).await;
    for operation in ["zfs.create", "zfs.snapshot", "zfs.rename"] {
        for fault in [Fault::before(), Fault::after()] {
            faults.fail_nth(operation, 1, fault);
            let failed = images.ensure(image(), &|_| (), &CancellationToken::new()).await;
            failed.unwrap_err();
            check_absent(&images).await;
            assert_eq!(images.container(image()).await.unwrap(), None);
            ensure(&images).await;
            let installed = images.get(image()).await.unwrap().unwrap();
            assert_eq!((&*installed.format, installed.size_bytes), (ROOT_FORMAT, 5));
            let container = images.container(image()).await.unwrap().unwrap();
            assert_eq!(container.runtime.entrypoint, ["/bin/server"]);
            // The files have become the file system, and nothing of it is shown.
            assert_eq!(node.names(), BTreeSet::from([format!("zones-{IMAGE}.json")]));
            assert!(!container.root.exists());
            let set = pools.content()[&format!("zones/{IMAGE}")].clone();
            assert_eq!((&*set["mountpoint"], &*set["muster:image_uuid"]), ("legacy", IMAGE));

            let (vm, one) = (disk().vm, task("one"));
            let usage = images.list().await.unwrap().remove(0);
            assert_eq!((usage.image, usage.dependents), (image(), Dependents::default()));
            storage.create_root(vm, image(), &RootWishes::default(), &one).await.unwrap();
            check_refused(&images).await;
            storage.destroy_root(vm, Some(&one)).await.unwrap();
            images.remove(image()).await.unwrap();
            let left = pools.content().into_keys().filter(|name| name.contains(IMAGE));
            assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
        }
    }
    node.check_nothing_left();
}

#[tokio::test]
async fn an_image_that_a_foreign_clone_needs_stays() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let (_, images, pools) = with_a_pool(&node, &Faults::none()).await;
    ensure(&images).await;
    let zfs = SimZfs::new(pools, Faults::none());
    let snapshot = format!("zones/{IMAGE}@final").parse().unwrap();
    let clone = "zones/other".parse().unwrap();
    zfs.clone_snapshot(&snapshot, &clone, &Properties::new()).await.unwrap();
    check_code(&images.remove(image()).await, "ImageHasDependentClones");
    assert!(images.get(image()).await.unwrap().is_some(), "nothing of it was removed");
    zfs.destroy(&clone).await.unwrap();
    images.remove(image()).await.unwrap();
    check_absent(&images).await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_driver_conforms() {
    let (pool, repository, faults) = (SimPool::default(), SimRepository::default(), Faults::none());
    repository.publish(image(), SimImage { manifest: json!({ "name": "x" }), size_bytes: 1 << 20 });
    let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
    let images = SimImages::new(pool.clone(), repository, clock, faults.clone());
    let storage = SimStorage::new(pool, faults.clone());
    let stall = || faults.fail_nth("images.fetch", 1, Fault::hangs());
    conformance(&images, &storage, stall).await;
}

#[tokio::test]
async fn a_half_removed_image_is_not_here_and_goes_at_the_next_start() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let images = node.images().await;
    ensure(&images).await;
    images.note_use(image()).await.unwrap();
    let folder = node.folder.path().join("images");
    std::fs::remove_file(folder.join(format!("{IMAGE}.json"))).unwrap();
    check_absent(&images).await;
    let left = BTreeSet::from([format!("{IMAGE}.qcow2"), format!("{IMAGE}.used")]);
    assert_eq!(node.names(), left);
    drop(node.images().await);
    node.check_nothing_left();
}

#[tokio::test]
async fn an_image_that_lost_its_record_stays_as_long_as_a_disk_needs_it() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    ensure(&node.images().await).await;
    let storage = node.storage().await;
    storage.create_disk(&disk(), &task("one")).await.unwrap();
    let folder = node.folder.path().join("images");
    std::fs::remove_file(folder.join(format!("{IMAGE}.json"))).unwrap();
    let images = node.images().await;
    check_code(&images.remove(image()).await, "ImageHasDependentClones");
    assert_eq!(node.names(), BTreeSet::from([format!("{IMAGE}.qcow2")]));
    storage.destroy_disks(disk().vm, None).await.unwrap();
    images.remove(image()).await.unwrap();
    node.check_nothing_left();
}

#[tokio::test]
async fn an_image_that_another_builds_on_stays() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let images = node.images().await;
    ensure(&images).await;
    let child = node.folder.path().join("images").join(format!("{OTHER}.json"));
    let record = json!({ "manifest": { "origin": IMAGE }, "zpool": "zones", "source": "" });
    std::fs::write(&child, record.to_string()).unwrap();
    let refused = images.remove(image()).await;
    check_code(&refused, "ImageHasDependentClones");
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("in use by 1 other image"), "{text}");
    // A damaged record tells no origin, but may be removed itself.
    std::fs::write(&child, "damaged").unwrap();
    images.remove(image()).await.unwrap_err();
    images.remove(other()).await.unwrap();
    images.remove(image()).await.unwrap();
    node.check_nothing_left();
}
