//! Roots of containers on files: what is in their folders, whatever a crash leaves there.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::conformance::{check_code, image, of_root_content, task, vm};
use super::super::{ContainerRoots as _, Role, RootWishes, Storage as _};
use super::Node;
use crate::host::FakeExec;

/// A node with the root of VM 1; nobody runs a program for it.
struct Rooted {
    node: Node,
    storage: super::FileStorage,
}

impl Rooted {
    async fn new() -> Self {
        let node = Node::new().await;
        let storage = node.file(Arc::new(FakeExec::default()) as _).await;
        storage.create_root(vm(1), image(), &RootWishes::default(), &task("one")).await.unwrap();
        Self { node, storage }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.node.folder.path().join("roots").join(vm(1).to_string()).join(path)
    }

    fn write(&self, text: &str) {
        std::fs::write(self.at("upper/file"), text).unwrap();
    }

    fn read(&self) -> String {
        std::fs::read_to_string(self.at("upper/file")).unwrap()
    }

    async fn take(&self, name: &str) {
        self.storage.create_snapshot(vm(1), name, &[Role::Root]).await.unwrap();
    }
}

#[tokio::test]
async fn a_rollback_brings_the_files_back_and_what_came_since_goes() {
    let rooted = Rooted::new().await;
    rooted.write("first");
    rooted.take("vmsnap-a").await;
    rooted.write("second");
    std::fs::create_dir(rooted.at("upper/since")).unwrap();
    rooted.take("vmsnap-b").await;
    std::fs::create_dir(rooted.at("work/work")).unwrap();
    for (name, wanted, since) in [("vmsnap-a", "first", false), ("vmsnap-b", "second", true)] {
        rooted.storage.roll_back(vm(1), name).await.unwrap();
        assert_eq!((rooted.read().as_str(), rooted.at("upper/since").exists()), (wanted, since));
        // What is written now is not written to the snapshot.
        rooted.write("other");
    }
    assert!(!rooted.at("work/work").exists() && rooted.at("work").exists());
}

#[tokio::test]
async fn what_a_crash_left_of_a_copy_is_no_snapshot_and_in_nobodys_way() {
    let rooted = Rooted::new().await;
    rooted.write("first");
    for half in ["snapshots/.copy.tmp/x", "snapshots/.going.tmp/x", ".copy.tmp/x", ".going.tmp/x"] {
        std::fs::create_dir_all(rooted.at(half)).unwrap();
    }
    assert_eq!(rooted.storage.snapshots(vm(1)).await.unwrap(), []);
    rooted.take("vmsnap-a").await;
    rooted.storage.roll_back(vm(1), "vmsnap-a").await.unwrap();
    rooted.storage.delete_snapshot(vm(1), "vmsnap-a", &[Role::Root]).await.unwrap();
    let left: Vec<_> = std::fs::read_dir(rooted.at("snapshots")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    rooted.take("vmsnap-a").await;
    // Between the two renames of a rollback there is no upper folder.
    std::fs::rename(rooted.at("upper"), rooted.at(".going.tmp")).unwrap();
    rooted.storage.roll_back(vm(1), "vmsnap-a").await.unwrap();
    assert_eq!(rooted.read(), "first");
    assert!(!rooted.at(".going.tmp").exists() && !rooted.at(".copy.tmp").exists());
}

#[tokio::test]
async fn what_a_crash_left_of_a_root_goes_with_its_task() {
    let rooted = Rooted::new().await;
    rooted.storage.destroy_root(vm(1), Some(&task("one"))).await.unwrap();
    std::fs::create_dir_all(rooted.at("")).unwrap();
    rooted.storage.destroy_root(vm(1), Some(&task("one"))).await.unwrap();
    assert_eq!(rooted.storage.rooted().await.unwrap(), []);
    // With files and no stamp nobody can tell whose they are.
    std::fs::create_dir_all(rooted.at("upper")).unwrap();
    rooted.storage.destroy_root(vm(1), Some(&task("one"))).await.unwrap();
    assert_eq!(rooted.storage.rooted().await.unwrap(), [vm(1)]);
    rooted.storage.destroy_root(vm(1), None).await.unwrap();
    assert_eq!(rooted.storage.rooted().await.unwrap(), []);
    check_code(&rooted.storage.mount_root(vm(1), "/nowhere".as_ref()).await, "DatasetNotFound");
}

/// What the image has and the archive has not is hidden; nothing else is changed by it.
#[tokio::test]
async fn a_root_is_filled_with_an_archive_and_shows_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root makes what hides files");
        return;
    }
    let rooted = Rooted::new().await;
    let lower = rooted.node.folder.path().join(format!("images/{}.root", image()));
    for folder in ["bin", "etc", "srv"] {
        std::fs::create_dir_all(lower.join(folder)).unwrap();
    }
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o640);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, "etc/file", &b"first"[..]).unwrap();
    let archive = tar.into_inner().unwrap();
    let size = u64::try_from(archive.len()).unwrap();
    let (storage, root) = (&rooted.storage, Role::Root);
    check_code(&storage.fill(vm(1), root, 0, b"x", false).await, "DatasetNotFound");
    let theirs = storage.begin_fill(vm(1), root, size, &task("two")).await;
    check_code(&theirs, "DatasetNotFound");
    for _ in 0..2 {
        storage.begin_fill(vm(1), root, size, &task("one")).await.unwrap();
        let (start, rest) = archive.split_at(700);
        storage.fill(vm(1), root, 700, rest, false).await.unwrap();
        storage.fill(vm(1), root, 0, start, true).await.unwrap();
    }
    check_code(&storage.fill(vm(1), root, size, b"x", false).await, "InvalidParameters");
    for _ in 0..2 {
        storage.end_fill(vm(1), root).await.unwrap();
    }
    assert!(!rooted.at("import.tar").exists());
    assert_eq!(std::fs::read_to_string(rooted.at("upper/etc/file")).unwrap(), "first");
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    for hidden in ["upper/bin", "upper/srv"] {
        let found = rooted.at(hidden).symlink_metadata().unwrap();
        assert!(found.file_type().is_char_device() && found.rdev() == 0, "{hidden}");
    }
    let mut value = [0; 8];
    let opaque =
        rustix::fs::lgetxattr(rooted.at("upper/etc"), "trusted.overlay.opaque", &mut value[..]);
    assert_eq!(&value[..opaque.unwrap()], b"y");
}

#[tokio::test]
async fn the_file_driver_conforms_with_real_files() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root mounts overlays");
        return;
    }
    let node = Node::new().await;
    let storage = node.file(Arc::new(FakeExec::default()) as _).await;
    let image_root = node.folder.path().join(format!("images/{}.root", image()));
    std::fs::create_dir_all(image_root.join("etc")).unwrap();
    std::fs::write(image_root.join("etc/issue"), "image").unwrap();
    std::fs::write(image_root.join("etc/removed"), "x").unwrap();
    of_root_content(&storage, &image_root).await;
    let left: Vec<_> = std::fs::read_dir(node.folder.path().join("roots")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
