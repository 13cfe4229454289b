//! Installing images from a server that misbehaves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_compression::tokio::write::{BzEncoder, GzipEncoder, XzEncoder, ZstdEncoder};
use async_trait::async_trait;
use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::ImageUuid;
use muster_shared::tls::{self, ClientAuth, Identity};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use super::test_server::{Misbehaviour, TestServer};
use super::{Credentials, FileImages, FileImagesConfig, Images};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::drivers::storage::{FileStorage, FileStorageConfig};
use crate::host::{
    Command, Detached, Exec, ExecError, Output, Piped, RunningChild, SharedExec, Spawned,
    SystemExec, UnitProperty,
};

pub(super) const IMAGE: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";

pub(super) fn image() -> ImageUuid {
    IMAGE.parse().unwrap()
}

/// A raw disk whose every block differs.
pub(super) fn raw_disk() -> Vec<u8> {
    (0..512_u32 * 1024 / 4)
        .flat_map(|word| word.wrapping_mul(2_654_435_761).to_be_bytes())
        .collect()
}

pub(super) struct Node {
    pub(super) server: TestServer,
    pub(super) folder: tempfile::TempDir,
    credentials: Credentials,
}

impl Node {
    pub(super) async fn new() -> Self {
        Self::of(TestServer::start().await, Credentials::default())
    }

    fn of(server: TestServer, credentials: Credentials) -> Self {
        Self { server, folder: tempfile::tempdir().unwrap(), credentials }
    }

    pub(super) async fn storage(&self) -> Arc<FileStorage> {
        let storage = FileStorageConfig {
            storage_dir: self.folder.path().to_owned(),
            data_dir: self.folder.path().to_owned(),
            server_uuid: uuid::Uuid::nil().into(),
            cluster: Cluster::unknown(),
            pool: "zones".to_owned(),
        };
        let storage = FileStorage::open(storage, Arc::new(SystemExec::new())).await.unwrap();
        Arc::new(storage)
    }

    pub(super) async fn images(&self) -> FileImages {
        self.images_with(Arc::new(SystemExec::new())).await
    }

    async fn images_with(&self, exec: SharedExec) -> FileImages {
        let config = FileImagesConfig {
            storage: self.storage().await,
            storage_dir: self.folder.path().to_owned(),
            sources: vec![self.server.url.clone()],
            credentials: self.credentials.clone(),
            pool: "zones".to_owned(),
        };
        let clock: SharedClock = Arc::new(SystemClock::new());
        let entropy = Arc::new(SeededEntropy::new(1));
        FileImages::open(config, exec, &clock, entropy).await.unwrap()
    }

    /// Publishes `content` with a manifest that describes it, after `change`.
    pub(super) fn publish(
        &self,
        content: &[u8],
        compression: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let mut manifest = json!({
            "v": 2, "uuid": IMAGE, "name": "test", "state": "active", "type": "zvol",
            "files": [{
                "size": content.len(), "compression": compression,
                "sha1": hex::encode(Sha1::digest(content)),
                "sha256": hex::encode(Sha256::digest(content)),
            }],
        });
        change(&mut manifest);
        let uuid = manifest["uuid"].as_str().unwrap().to_owned();
        self.server.put(&format!("/images/{uuid}"), manifest.to_string());
        self.server.put(&format!("/images/{uuid}/file"), content);
    }

    async fn ensure(&self) -> Result<(), DriverError> {
        self.images().await.ensure(image(), &|_| (), &CancellationToken::new()).await
    }

    /// Names in the folder of images.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.folder.path().join("images")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    async fn check_installed(&self, raw: &[u8]) {
        assert_eq!(
            self.names(),
            BTreeSet::from([format!("{IMAGE}.json"), format!("{IMAGE}.qcow2")])
        );
        let images = self.images().await;
        let installed = images.get(image()).await.unwrap().unwrap();
        assert_eq!(installed.size_bytes, u64::try_from(raw.len()).unwrap());
        assert_eq!(installed.manifest["uuid"], IMAGE);
        let listed = images.list().await.unwrap();
        assert_eq!(listed.iter().map(|found| found.image).collect::<Vec<_>>(), [image()]);
        assert!(convert_back(&installed.path).await == raw, "the content differs");
    }

    #[track_caller]
    pub(super) fn check_nothing_left(&self) {
        assert_eq!(self.names(), BTreeSet::new());
    }
}

async fn qemu_img(arguments: &[&str]) {
    use crate::host::{Command, Exec as _};
    let argv = std::iter::once("qemu-img").chain(arguments.iter().copied());
    let command = Command::new(argv, Duration::from_secs(60));
    let output = SystemExec::new().run(&command, &CancellationToken::new()).await.unwrap();
    output.checked("qemu-img").unwrap();
}

pub(super) async fn convert_back(qcow2: &Path) -> Vec<u8> {
    let raw = tempfile::NamedTempFile::new().unwrap();
    let (from, to) = (qcow2.to_str().unwrap(), raw.path().to_str().unwrap());
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", from, to]).await;
    std::fs::read(raw.path()).unwrap()
}

async fn qcow2_of(raw: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("raw"), folder.path().join("qcow2"));
    std::fs::write(&from, raw).unwrap();
    let (from, to_text) = (from.to_str().unwrap(), to.to_str().unwrap());
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", from, to_text]).await;
    std::fs::read(to).unwrap()
}

#[track_caller]
pub(super) fn check_code(result: &Result<(), DriverError>, wanted: &str) {
    match result {
        Err(DriverError::Refused { code, .. }) if *code == wanted => {}
        other => panic!("expected {wanted}, got {other:?}"),
    }
}

#[tokio::test]
async fn every_compression_of_raw_and_qcow2_is_installed() {
    let raw = raw_disk();
    let qcow2 = qcow2_of(&raw).await;
    for plain in [&raw, &qcow2] {
        let mut bzip2 = BzEncoder::new(Vec::new());
        bzip2.write_all(plain).await.unwrap();
        bzip2.shutdown().await.unwrap();
        let mut gzip = GzipEncoder::new(Vec::new());
        gzip.write_all(plain).await.unwrap();
        gzip.shutdown().await.unwrap();
        let mut xz = XzEncoder::new(Vec::new());
        xz.write_all(plain).await.unwrap();
        xz.shutdown().await.unwrap();
        let mut zstd = ZstdEncoder::new(Vec::new());
        zstd.write_all(plain).await.unwrap();
        zstd.shutdown().await.unwrap();
        let packed = [
            ("none", plain.clone()),
            ("bzip2", bzip2.into_inner()),
            ("gzip", gzip.into_inner()),
            ("xz", xz.into_inner()),
            ("zstd", zstd.into_inner()),
        ];
        for (compression, content) in packed {
            let node = Node::new().await;
            node.publish(&content, compression, |_| ());
            let seen = Mutex::new(Vec::new());
            let progress = |percent| seen.lock().push(percent);
            let images = node.images().await;
            images.ensure(image(), &progress, &CancellationToken::new()).await.unwrap();
            node.check_installed(&raw).await;
            let seen = seen.lock().clone();
            assert!(seen.is_sorted() && seen.last() == Some(&100), "{seen:?}");
            // Again: nothing is fetched.
            node.ensure().await.unwrap();
            assert_eq!(node.server.ranges(), vec![None]);
        }
    }
}

#[tokio::test]
async fn an_interrupted_download_goes_on_where_it_stopped() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    node.server.misbehave([Misbehaviour::Cut(100_000), Misbehaviour::Cut(50_000)]);
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
    assert_eq!(node.server.ranges(), vec![None, Some(100_000), Some(150_000)]);
}

#[tokio::test]
async fn a_repository_without_ranges_starts_over() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    node.server.misbehave([
        Misbehaviour::Cut(100_000),
        Misbehaviour::Status(503),
        Misbehaviour::IgnoreRange,
    ]);
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
}

#[tokio::test]
async fn a_cancelled_fetch_is_continued_by_the_next_driver() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    node.server.misbehave([Misbehaviour::Hang(300_000)]);
    let cancelled = CancellationToken::new();
    let token = cancelled.clone();
    // 57 % of the file arrive, of which the progress shows 90 %.
    let progress = move |percent| {
        if percent >= 50 {
            token.cancel();
        }
    };
    let images = node.images().await;
    check_code(&images.ensure(image(), &progress, &cancelled).await, "Cancelled");
    let partial = format!("{IMAGE}.partial");
    assert_eq!(node.names(), BTreeSet::from([partial.clone(), format!("{partial}.json")]));
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
    let ranges = node.server.ranges();
    assert!(matches!(ranges[..], [None, Some(_)]), "{ranges:?}");
}

/// Programs that begin and do not end.
#[derive(Debug)]
struct Stalled {
    begun: CancellationToken,
}

#[async_trait]
impl Exec for Stalled {
    async fn run(&self, command: &Command, _: &CancellationToken) -> Result<Output, ExecError> {
        std::fs::write(command.argv.last().unwrap(), "half").unwrap();
        self.begun.cancel();
        std::future::pending().await
    }

    async fn spawn_detached(&self, _: &Detached) -> Result<Spawned, ExecError> {
        unreachable!("no image needs a process that stays")
    }

    async fn spawn_piped(&self, _: &Piped) -> Result<RunningChild, ExecError> {
        unreachable!("no image needs a process that is talked to")
    }

    async fn change_unit(&self, _: &str, _: &[UnitProperty]) -> Result<(), ExecError> {
        unreachable!("no image has a unit")
    }

    fn supervisor(&self) -> &'static str {
        "direct"
    }
}

#[tokio::test]
async fn of_a_cancelled_install_only_the_download_is_left() {
    let (node, raw) = (Node::new().await, raw_disk());
    let mut gzip = GzipEncoder::new(Vec::new());
    gzip.write_all(&raw).await.unwrap();
    gzip.shutdown().await.unwrap();
    node.publish(&gzip.into_inner(), "gzip", |_| ());
    let cancelled = CancellationToken::new();
    let images = node.images_with(Arc::new(Stalled { begun: cancelled.clone() })).await;
    check_code(&images.ensure(image(), &|_| (), &cancelled).await, "Cancelled");
    let partial = format!("{IMAGE}.partial");
    assert_eq!(node.names(), BTreeSet::from([partial.clone(), format!("{partial}.json")]));
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
}

#[tokio::test]
async fn an_image_whose_record_is_damaged_hides_no_other_and_is_fetched_anew() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    node.ensure().await.unwrap();
    let other = node.folder.path().join("images/11020304-0506-4708-890a-0b0c0d0e0f10.json");
    std::fs::write(&other, "damaged").unwrap();
    let listed = node.images().await.list().await.unwrap();
    assert_eq!(listed.iter().map(|found| found.image).collect::<Vec<_>>(), [image()]);
    std::fs::remove_file(other).unwrap();
    std::fs::write(node.folder.path().join(format!("images/{IMAGE}.json")), "damaged").unwrap();
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
}

#[tokio::test]
async fn a_damaged_partial_file_is_fetched_anew() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    drop(node.images().await);
    let partial = node.folder.path().join("images").join(format!("{IMAGE}.partial"));
    std::fs::write(&partial, vec![0; 1000]).unwrap();
    let record = json!({
        "size_bytes": raw.len(),
        "sha1": hex::encode(Sha1::digest(&raw)),
        "sha256": hex::encode(Sha256::digest(&raw)),
    });
    let record_path = partial.with_extension("partial.json");
    std::fs::write(record_path, record.to_string()).unwrap();
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
    assert_eq!(node.server.ranges(), vec![Some(1000), None]);
}

#[tokio::test]
async fn partial_files_of_another_version_and_temporary_files_are_removed() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    drop(node.images().await);
    let folder = node.folder.path().join("images");
    std::fs::write(folder.join(format!("{IMAGE}.partial")), "old").unwrap();
    std::fs::write(folder.join(format!(".{IMAGE}.qcow2.tmp")), "half").unwrap();
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
    assert_eq!(node.server.ranges(), vec![None]);
}

#[tokio::test]
async fn damage_is_refused_and_leaves_nothing() {
    let raw = raw_disk();
    for change in [
        |m: &mut Value| m["files"][0]["sha256"] = json!("00"),
        |m: &mut Value| m["files"][0]["sha1"] = json!("00"),
        |m: &mut Value| m["files"][0]["size"] = json!(10),
        |m: &mut Value| m["files"][0]["size"] = json!(1_000_000),
    ] {
        let node = Node::new().await;
        node.publish(&raw, "none", change);
        check_code(&node.ensure().await, "ImageChecksum");
        node.check_nothing_left();
    }
}

#[tokio::test]
async fn images_that_can_not_be_used_are_refused_and_leave_nothing() {
    let raw = raw_disk();
    let node = Node::new().await;
    check_code(&node.ensure().await, "ImageNotFound");
    node.publish(&raw, "none", |m| m["state"] = json!("disabled"));
    check_code(&node.ensure().await, "ImageNotActive");
    node.publish(&raw, "gzip", |_| ());
    check_code(&node.ensure().await, "ImageInvalid");
    node.publish(&raw, "none", |m| m["files"][0]["format"] = json!("qcow2"));
    check_code(&node.ensure().await, "ImageInvalid");
    let mut with_backing = qcow2_of(&raw).await;
    with_backing[15] = 1;
    node.publish(&with_backing, "none", |_| ());
    check_code(&node.ensure().await, "ImageInvalid");
    node.check_nothing_left();
}

#[tokio::test]
async fn a_full_disk_is_refused_and_leaves_nothing() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |m| m["files"][0]["size"] = json!(1_u64 << 60));
    let refused = node.ensure().await;
    check_code(&refused, "StoreFull");
    let text = refused.unwrap_err().to_string();
    let needed = format!("it needs {} bytes more", 1_u64 << 60);
    assert!(text.contains(&needed) && text.ends_with("are free"), "{text}");
    node.check_nothing_left();

    // A small file that holds a large disk.
    node.publish(&raw, "gzip", |m| {
        m["files"][0]["format"] = json!("raw");
        m["image_size"] = json!(1_u64 << 40);
    });
    check_code(&node.ensure().await, "StoreFull");
    node.check_nothing_left();
    // Of both not one byte was asked for.
    assert_eq!(node.server.ranges(), vec![]);

    // /dev/full answers every write as a full disk does.
    node.publish(&raw, "none", |_| ());
    let folder = node.folder.path().join("images");
    std::os::unix::fs::symlink("/dev/full", folder.join(format!("{IMAGE}.partial"))).unwrap();
    let record = json!({
        "size_bytes": raw.len(),
        "sha1": hex::encode(Sha1::digest(&raw)),
        "sha256": hex::encode(Sha256::digest(&raw)),
    });
    std::fs::write(folder.join(format!("{IMAGE}.partial.json")), record.to_string()).unwrap();
    check_code(&node.ensure().await, "StoreFull");
    node.check_nothing_left();
    node.ensure().await.unwrap();
    node.check_installed(&raw).await;
}

#[tokio::test]
async fn two_tasks_share_one_fetch() {
    let (node, raw) = (Node::new().await, raw_disk());
    node.publish(&raw, "none", |_| ());
    let (images, token) = (node.images().await, CancellationToken::new());
    let one = images.ensure(image(), &|_| (), &token);
    let other = images.ensure(image(), &|_| (), &token);
    tokio::try_join!(one, other).unwrap();
    assert_eq!(node.server.ranges(), vec![None]);
    node.check_installed(&raw).await;
}

/// A CA, and a certificate of it for `localhost`, as PEM files.
fn certificates(folder: &Path) -> (PathBuf, Identity) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = params.signed_by(&key, &ca).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let certificate = file("cert.pem", leaf.pem());
    let identity = Identity { certificate, key: file("key.pem", key.serialize_pem()) };
    (file("ca.pem", ca.pem()), identity)
}

#[tokio::test]
async fn a_coordinator_is_known_and_shown_what_its_link_is() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, identity) = certificates(folder.path());
    // Only who has a certificate of the CA gets in.
    let secured = tls::server(&identity, &ClientAuth::Required(ca.clone())).unwrap();
    let coordinator = TestServer::start_with(Some(secured)).await;
    let store = TestServer::start().await;
    let websocket = format!("wss://localhost:{}/agent", coordinator.url.port().unwrap());
    let tls = tls::client(Some(&ca), Some(&identity)).unwrap();
    let credentials = Credentials::new(&[websocket.parse().unwrap()], Some(tls), Some("secret"));
    let node = Node::of(coordinator, credentials.unwrap());
    node.publish(&raw_disk(), "none", |_| ());
    // The file lies elsewhere, where neither CA nor token are known.
    let path = format!("/images/{IMAGE}/file");
    store.put(&path, raw_disk());
    node.server.redirect(&path, store.url.join(&path).unwrap());
    node.ensure().await.unwrap();
    node.check_installed(&raw_disk()).await;
    let shown = Some("Bearer secret".to_owned());
    assert_eq!(node.server.authorizations(), [shown.clone(), shown]);
    assert_eq!(store.authorizations(), [None]);
}
