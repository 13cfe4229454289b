//! Incremental images: made, and installed with what they build on, on files and in a simulated pool.

use async_trait::async_trait;
use muster_shared::ids::ImageUuid;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Images;
use super::conformance::{OTHER, other, task, with_a_pool};
use super::manifest::Compression;
use super::pack::{self, DiskBytes, DiskSource};
use super::tests::{IMAGE, Node, check_code, convert_back, image, raw_disk};
use crate::drivers::DriverError;
use crate::drivers::faults::{Fault, Faults};
use crate::drivers::storage::zfs::{Access, Devices as _, SimDevices};

const THIRD: &str = "aaaaaaaa-0506-4708-890a-0b0c0d0e0f10";

struct Whole(Option<Vec<u8>>);

#[async_trait]
impl DiskSource for Whole {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        Ok(self.0.take().map(DiskBytes::Data))
    }
}

async fn ensure(images: &dyn Images, image: ImageUuid) -> Result<(), DriverError> {
    images.ensure(image, &|_| (), &CancellationToken::new()).await
}

/// The file of an image that makes this disk of its origin.
async fn difference(node: &Node, images: &dyn Images, origin: ImageUuid, disk: &[u8]) -> Vec<u8> {
    let (one, mut source) = (task("one"), Whole(Some(disk.to_vec())));
    let packed = images.pack_difference(&one, Compression::Gzip, origin, &mut source).await;
    let packed = packed.unwrap();
    let file = std::fs::read(pack::path(&node.folder.path().join("images"), &one)).unwrap();
    assert_eq!(u64::try_from(file.len()).unwrap(), packed.size_bytes);
    images.drop_packed(&one).await.unwrap();
    file
}

fn publish(node: &Node, uuid: &str, origin: &str, file: &[u8]) {
    node.publish(file, "gzip", |manifest| {
        manifest["uuid"] = json!(uuid);
        manifest["origin"] = json!(origin);
        manifest["files"][0]["format"] = json!("qcow2");
    });
}

/// A larger disk, of which some bytes are others.
fn changed(from: &[u8], at: usize) -> Vec<u8> {
    let mut disk = from.to_vec();
    disk[at..at + 1000].fill(7);
    disk.resize(disk.len() + 100 * 1024, 3);
    disk
}

#[tokio::test]
async fn a_difference_is_laid_over_the_file_of_its_origin() {
    let (node, other_node) = (Node::new().await, Node::new().await);
    let (first, second) = (raw_disk(), changed(&raw_disk(), 70_000));
    let third = changed(&second, 200_000);
    // Made where the images are, and installed elsewhere.
    for node in [&node, &other_node] {
        node.publish(&first, "none", |_| ());
    }
    let images = node.images().await;
    ensure(&images, image()).await.unwrap();
    let file = difference(&node, &images, image(), &second).await;
    assert!(file.len() < first.len() / 2, "{} bytes", file.len());
    publish(&node, OTHER, IMAGE, &file);
    publish(&other_node, OTHER, IMAGE, &file);
    ensure(&images, other()).await.unwrap();
    let file = difference(&node, &images, other(), &third).await;
    publish(&other_node, THIRD, OTHER, &file);

    let images = other_node.images().await;
    for _ in 0..2 {
        ensure(&images, THIRD.parse().unwrap()).await.unwrap();
    }
    for (uuid, disk) in [(IMAGE, &first), (OTHER, &second), (THIRD, &third)] {
        let installed = images.get(uuid.parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(installed.size_bytes, u64::try_from(disk.len()).unwrap());
        assert!(convert_back(&installed.path).await == *disk, "{uuid}");
    }
    // The folder may be moved as a whole.
    let moved = tempfile::tempdir().unwrap();
    for name in other_node.names() {
        let from = other_node.folder.path().join("images").join(&name);
        std::fs::copy(from, moved.path().join(name)).unwrap();
    }
    let path = moved.path().join(format!("{THIRD}.qcow2"));
    std::fs::remove_file(other_node.folder.path().join(format!("images/{IMAGE}.qcow2"))).unwrap();
    assert!(convert_back(&path).await == third);
}

#[tokio::test]
async fn an_origin_stays_as_long_as_what_builds_on_it() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let images = node.images().await;
    ensure(&images, image()).await.unwrap();
    let file = difference(&node, &images, image(), &changed(&raw_disk(), 1)).await;
    publish(&node, OTHER, IMAGE, &file);
    ensure(&images, other()).await.unwrap();
    check_code(&images.remove(image()).await, "ImageHasDependentClones");
    // Also one whose record is lost.
    std::fs::remove_file(node.folder.path().join(format!("images/{IMAGE}.json"))).unwrap();
    drop(node.images().await);
    assert!(node.names().contains(&format!("{IMAGE}.qcow2")));
    images.remove(other()).await.unwrap();
    images.remove(image()).await.unwrap();
    node.check_nothing_left();
}

#[tokio::test]
async fn what_can_not_be_laid_over_another_one_is_refused_and_leaves_nothing() {
    let node = Node::new().await;
    let images = node.images().await;
    publish(&node, OTHER, IMAGE, &raw_disk());
    check_code(&ensure(&images, other()).await, "ImageNotFound");
    node.check_nothing_left();
    publish(&node, IMAGE, OTHER, &raw_disk());
    check_code(&ensure(&images, other()).await, "InvalidManifest");
    node.publish(&raw_disk(), "none", |manifest| {
        manifest["uuid"] = json!(OTHER);
        manifest["origin"] = json!(IMAGE);
        manifest["files"][0]["format"] = json!("raw");
    });
    check_code(&ensure(&images, other()).await, "NotSupported");
    // As `zfs send` begins.
    let mut stream = raw_disk();
    stream[..8].fill(0);
    stream[8..16].copy_from_slice(&0x2_f5ba_cbac_u64.to_le_bytes());
    node.publish(&stream, "none", |_| ());
    check_code(&ensure(&images, image()).await, "NotSupported");
    node.check_nothing_left();
    let missing = images.origin(image()).await.map(drop);
    check_code(&missing, "OriginNotInstalled");
}

/// The origin's content is forgotten by simulated devices: it is zeros.
#[tokio::test]
async fn a_difference_is_written_onto_a_clone_of_its_origin() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let faults = Faults::none();
    let (_, images, pools) = with_a_pool(&node, &faults).await;
    ensure(&images, image()).await.unwrap();
    let mut disk = vec![0; 512 * 1024 + 128 * 1024];
    disk[70_000..71_000].fill(7);
    disk[600_000..].fill(5);
    let file = difference(&node, &images, image(), &disk).await;
    publish(&node, OTHER, IMAGE, &file);
    images.remove(image()).await.unwrap();
    for operation in ["zfs.clone", "zfs.snapshot", "zfs.rename"] {
        for fault in [Fault::before(), Fault::after()] {
            ensure(&images, image()).await.unwrap();
            faults.fail_nth(operation, 1, fault);
            ensure(&images, other()).await.unwrap_err();
            assert_eq!(images.get(other()).await.unwrap(), None, "{operation}");
            ensure(&images, other()).await.unwrap();
            let volume = format!("zones/{OTHER}");
            let device = SimDevices::new(pools.clone()).open(&volume, Access::Read).await;
            let device = device.unwrap().unwrap();
            assert!(device.read(0, disk.len()).await.unwrap() == disk, "{operation}");
            assert_eq!(pools.content()[&volume]["muster:image_uuid"], OTHER);
            check_code(&images.remove(image()).await, "ImageHasDependentClones");
            images.remove(other()).await.unwrap();
            images.remove(image()).await.unwrap();
            let own = |name: &String| name.contains(IMAGE) || name.contains(OTHER);
            let left: Vec<_> = pools.content().into_keys().filter(own).collect();
            assert_eq!(left, Vec::<String>::new());
        }
    }
    node.check_nothing_left();
}

#[tokio::test]
async fn an_origin_without_its_snapshot_is_told_from_one_that_is_not_here() {
    let node = Node::new().await;
    node.publish(&raw_disk(), "none", |_| ());
    let (_, images, pools) = with_a_pool(&node, &Faults::none()).await;
    check_code(&images.origin(image()).await.map(drop), "OriginNotInstalled");
    ensure(&images, image()).await.unwrap();
    images.origin(image()).await.unwrap();
    let zfs = crate::drivers::zfs::sim::SimZfs::new(pools, Faults::none());
    let snapshot = format!("zones/{IMAGE}@final").parse().unwrap();
    crate::drivers::zfs::Zfs::destroy_snapshots(&zfs, &[snapshot], false).await.unwrap();
    check_code(&images.origin(image()).await.map(drop), "OriginHasNoFinalSnapshot");
}
