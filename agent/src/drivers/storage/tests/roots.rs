//! Roots of containers on files: what is in their folders, whatever a crash leaves there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::conformance::{check_code, image, of_root_content, task, vm};
use super::super::{ContainerRoots as _, Role, RootWishes, Storage as _};
use super::Node;
use crate::host::FakeExec;
use crate::host::idmap::{self, IdRange, NOBODY, UserNamespace};

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
    check_code(
        &rooted.storage.mount_root(vm(1), "/nowhere".as_ref(), None).await,
        "DatasetNotFound",
    );
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

const IDS: IdRange = IdRange { first: 1_000_000, count: 65_536 };

/// User, group and mode.
fn owner(path: &Path) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let found = path.symlink_metadata().unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

/// A node with the files of an image, or none where nothing can be shown under other ids.
async fn mapped() -> Option<(Node, super::FileStorage, PathBuf)> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root mounts overlays");
        return None;
    }
    let node = Node::new().await;
    let storage = node.file(Arc::new(FakeExec::default()) as _).await;
    let image_root = node.folder.path().join(format!("images/{}.root", image()));
    std::fs::create_dir_all(image_root.join("etc")).unwrap();
    for name in ["issue", "removed", "strange", "web"] {
        std::fs::write(image_root.join("etc").join(name), "image").unwrap();
    }
    std::os::unix::fs::chown(image_root.join("etc/web"), Some(33), Some(34)).unwrap();
    std::os::unix::fs::chown(image_root.join("etc/strange"), Some(70_000), None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(image_root.join("etc/web"), mode).unwrap();
    if let Some(why) = storage.lacks_ids(IDS).await {
        println!("SKIPPED: {why}");
        return None;
    }
    assert!(!node.folder.path().join("roots/.probe").exists());
    storage.create_root(vm(1), image(), &RootWishes::default(), &task("one")).await.unwrap();
    Some((node, storage, image_root))
}

#[tokio::test]
async fn a_root_is_shown_under_ids_of_its_containers_own() {
    let Some((node, storage, image_root)) = mapped().await else { return };
    let folder = node.folder.path().join("roots").join(vm(1).to_string());
    let root = storage.mount_root(vm(1), &image_root, Some(IDS)).await.unwrap();
    assert_eq!(storage.mount_root(vm(1), &image_root, Some(IDS)).await.unwrap(), root);
    let (first, shown) = (IDS.first, |name: &str| owner(&root.join(name)));
    assert_eq!(shown("etc/web"), (first + 33, first + 34, 0o4755));
    assert_eq!((shown("etc/issue").0, shown("").0), (first, first));
    assert_eq!(shown("etc/strange").0, NOBODY, "it is of nobody there is");

    let at = root.clone();
    let work = move || {
        std::fs::write(at.join("etc/own"), "own")?;
        std::os::unix::fs::chown(at.join("etc/own"), Some(first + 5), Some(first))?;
        // Of the image: each comes up first.
        std::fs::write(at.join("etc/web"), "changed")?;
        std::fs::hard_link(at.join("etc/web"), at.join("linked"))?;
        std::fs::remove_file(at.join("etc/removed"))?;
        std::fs::create_dir(at.join("etc/removed"))
    };
    idmap::as_root_of(IDS, work).unwrap();
    let kept = |name: &str| owner(&folder.join("upper").join(name));
    assert_eq!((kept("etc/own").0, kept("etc/own").1), (5, 0));
    assert_eq!((kept("linked").0, kept("etc/removed").0, kept("").0), (33, 0, 0));
    assert_eq!((shown("linked").0, shown("etc/own").0), (first + 33, first + 5));
    // Nothing else is mounted there.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let folder_name = folder.display().to_string();
    assert_eq!(mounts.lines().filter(|line| line.contains(&folder_name)).count(), 1, "{mounts}");

    // What leaves the node has the ids that the container knows.
    storage.create_snapshot(vm(1), "vmsnap-a", &[Role::Root]).await.unwrap();
    storage.pack_root(vm(1), "vmsnap-a", &image_root).await.unwrap();
    let piece = storage.read_snapshot(vm(1), Role::Root, "vmsnap-a", 0).await.unwrap();
    let mut archive = tar::Archive::new(&piece.data[..]);
    let mut owners = std::collections::BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        owners.insert(entry.path().unwrap().display().to_string(), entry.header().uid().unwrap());
    }
    let of = |name: &str| owners.get(name).copied();
    assert_eq!((of("etc/own"), of("linked"), of("etc/issue")), (Some(5), Some(33), Some(0)));
    storage.unmount_root(vm(1)).await.unwrap();
    assert!(!root.join("etc").exists());
    // And without them, as an agent that knows of none.
    let root = storage.mount_root(vm(1), &image_root, None).await.unwrap();
    assert_eq!(owner(&root.join("etc/own")).0, 5);
    storage.destroy_root(vm(1), None).await.unwrap();
    assert_eq!(storage.rooted().await.unwrap(), []);
}

#[tokio::test]
async fn an_image_outlives_a_root_that_was_half_put_together() {
    let Some((node, storage, image_root)) = mapped().await else { return };
    let folder = node.folder.path().join("roots").join(vm(1).to_string());
    for name in ["own", "image"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let half = || {
        let namespace = UserNamespace::make(IDS).unwrap();
        idmap::show(&folder, &folder.join("own"), &namespace, false).unwrap();
        idmap::show(&image_root, &folder.join("image"), &namespace, true).unwrap();
    };
    half();
    let root = storage.mount_root(vm(1), &image_root, Some(IDS)).await.unwrap();
    assert!(root.join("etc/issue").exists());
    half();
    storage.destroy_root(vm(1), None).await.unwrap();
    assert_eq!(std::fs::read(image_root.join("etc/issue")).unwrap(), b"image");
    assert!(!folder.exists());
}
