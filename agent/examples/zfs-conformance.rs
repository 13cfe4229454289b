//! The suites that every ZFS and every storage driver passes, on a pool of this host. The pool `zones`
//! must be there and have nothing in it.
//!
//! `zfs-conformance MUSTER_ZFS`: that program does what has to be atomic.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use anyhow::Context as _;
use muster_agent::drivers::cluster::Cluster;
use muster_agent::drivers::node::FileDocuments;
use muster_agent::drivers::storage::conformance::{self, IMAGE_MIB, image, other_image};
use muster_agent::drivers::storage::zfs::{
    Devices as _, HostDevices, HostMounts, Mounts as _, Names, Owner, Source, ZfsStorage,
    ZfsStorageConfig,
};
use muster_agent::drivers::storage::{ContainerRoots as _, RootWishes};
use muster_agent::drivers::zfs::{
    self, CommandZfs, Dataset, Kind, Properties, Way, Zfs, ZfsConfig,
};
use muster_agent::host::SystemExec;
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::units::MIB;
use tokio_util::sync::CancellationToken;

const POOL: &str = "zones";
static SINCE_START: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    LazyLock::force(&SINCE_START);
    let helper = std::env::args_os().nth(1).context("which muster-zfs?")?.into();
    of_zfs(None).await?;
    passed("zfs by its programs");
    let zfs = of_zfs(Some(helper)).await?;
    passed("zfs by libzfs_core");
    of_storage(zfs).await
}

/// When it was, too, for whoever asks why a run was ended at its time limit.
fn passed(suite: &str) {
    println!("{suite}: ok");
    eprintln!("{suite}: after {:.0?}", SINCE_START.monotonic());
}

/// That of this host passes, and each operation goes the way it should.
async fn of_zfs(helper: Option<PathBuf>) -> anyhow::Result<Arc<dyn Zfs>> {
    let config = ZfsConfig { helper: helper.clone(), ..ZfsConfig::default() };
    let zfs = CommandZfs::open(&config, Arc::new(SystemExec::new())).await;
    let root: Dataset = format!("{POOL}/tests").parse()?;
    zfs.create(&root, Kind::Filesystem, &Properties::new()).await?;
    let fill = |dataset: &Dataset| {
        let noise: Vec<u8> =
            (0..4_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        std::fs::write(format!("/{dataset}/noise"), noise).expect("the dataset is mounted");
    };
    zfs::conformance::of_zfs(&zfs, &root, &fill).await;
    zfs.destroy(&root).await?;
    let calls = zfs.calls();
    for operation in ["create", "snapshot", "destroy_snapshots", "rollback", "clone", "promote"] {
        let by_library = calls.contains_key(&(operation, Way::LibzfsCore));
        anyhow::ensure!(by_library == helper.is_some(), "{operation}: {calls:?}");
    }
    Ok(Arc::new(zfs))
}

async fn of_storage(zfs: Arc<dyn Zfs>) -> anyhow::Result<()> {
    let devices = Arc::new(HostDevices::new(Arc::new(SystemExec::new())));
    let data = tempfile::tempdir()?;
    let documents = Arc::new(FileDocuments::new(data.path().to_owned(), None));
    let config = ZfsStorageConfig {
        pool: POOL.to_owned(),
        data_dir: data.path().to_owned(),
        root: "/".into(),
        roots: data.path().join("roots"),
        owner: Owner {
            server_uuid: uuid::Uuid::nil().into(),
            cluster: Arc::new(Cluster::open(documents).await?),
        },
    };
    let mounts = Arc::new(HostMounts);
    let storage = ZfsStorage::open(config, zfs.clone(), devices.clone(), mounts).await?;

    let content = data.path().join("content.raw");
    std::fs::write(&content, vec![0x5a; usize::try_from(MIB)?])?;
    install(zfs.as_ref(), &devices, &content).await.context("install the image")?;
    conformance::of_disks(&storage).await;
    passed("disks");
    conformance::of_snapshots(&storage).await;
    passed("snapshots");
    let template = data.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672])?;
    conformance::of_variables(&storage, &template).await;
    passed("variables");
    conformance::of_filling(&storage).await;
    passed("filling");
    of_containers(zfs.as_ref(), &storage, data.path()).await
}

/// The image is one of containers from here on, beside another one.
async fn of_containers(zfs: &dyn Zfs, storage: &ZfsStorage, folder: &Path) -> anyhow::Result<()> {
    let snapshot = Names::new(POOL).final_snapshot(image()).parse()?;
    zfs.destroy_snapshots(std::slice::from_ref(&snapshot), false).await?;
    zfs.destroy(snapshot.dataset()).await?;
    for image in [image(), other_image()] {
        let name = Names::new(POOL).image(image);
        let legacy = Properties::from([("mountpoint".to_owned(), "legacy".to_owned())]);
        zfs.create(&name.parse()?, Kind::Filesystem, &legacy).await?;
        let at = folder.join("image");
        HostMounts.mount(&name, &at)?;
        std::fs::create_dir(at.join("etc"))?;
        std::fs::write(at.join("etc/issue"), "image")?;
        std::fs::write(at.join("etc/removed"), "x")?;
        HostMounts.unmount(&at)?;
        zfs.snapshot(&[Names::final_of(&name).parse()?], &Properties::new()).await?;
    }
    conformance::of_roots(storage).await;
    passed("roots");
    conformance::of_root_snapshots(storage).await;
    passed("snapshots of roots");
    conformance::of_root_content(storage, Path::new("/nonexistent")).await;
    passed("content of roots");
    of_quota(storage).await?;
    passed("quota");
    let left = std::fs::read_dir(folder.join("roots"))?.count();
    anyhow::ensure!(left == 0, "something is still shown");
    Ok(())
}

/// A limit is met while it is written to, and is gone when it is lifted.
async fn of_quota(storage: &ZfsStorage) -> anyhow::Result<()> {
    let (vm, task) = (uuid::Uuid::from_u128(1).into(), "one".parse()?);
    let limited = RootWishes { quota_bytes: Some(8 * MIB), ..RootWishes::default() };
    storage.create_root(vm, image(), &limited, &task).await?;
    let at = storage.mount_root(vm, Path::new("/nonexistent"), None).await?;
    let noise: Vec<u8> =
        (0..6_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let write = || std::fs::write(at.join("noise"), &noise).map_err(|error| error.kind());
    let met = write();
    anyhow::ensure!(met == Err(std::io::ErrorKind::QuotaExceeded), "{met:?}");
    storage.change_root(vm, &RootWishes::default()).await?;
    anyhow::ensure!(write().is_ok(), "the limit is still there");
    let refused = storage.change_root(vm, &limited).await;
    anyhow::ensure!(refused.is_err(), "it takes more already");
    storage.unmount_root(vm).await?;
    storage.destroy_root(vm, Some(&task)).await?;
    Ok(())
}

async fn install(zfs: &dyn Zfs, devices: &HostDevices, content: &Path) -> anyhow::Result<()> {
    let volume = Names::new(POOL).image(image());
    let kind = Kind::Volume { size_bytes: IMAGE_MIB * MIB, sparse: true };
    zfs.create(&volume.parse()?, kind, &Properties::new()).await?;
    let source = Source { path: content, format: "raw" };
    devices.fill(&volume, source, &CancellationToken::new()).await?;
    zfs.snapshot(&[Names::final_of(&volume).parse()?], &Properties::new()).await?;
    Ok(())
}
