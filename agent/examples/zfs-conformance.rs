//! The suites that every storage driver passes, on a pool of this host. The pool `zones` must be there
//! and have nothing in it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use muster_agent::drivers::cluster::Cluster;
use muster_agent::drivers::node::FileDocuments;
use muster_agent::drivers::storage::conformance::{self, IMAGE_MIB, image};
use muster_agent::drivers::storage::zfs::{
    Devices as _, HostDevices, Names, Owner, Source, ZfsStorage, ZfsStorageConfig,
};
use muster_agent::drivers::zfs::{CommandZfs, Kind, Properties, Zfs, ZfsConfig};
use muster_agent::host::SystemExec;
use muster_shared::units::MIB;
use tokio_util::sync::CancellationToken;

const POOL: &str = "zones";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let exec = Arc::new(SystemExec::new());
    let zfs: Arc<dyn Zfs> = Arc::new(CommandZfs::open(&ZfsConfig::default(), exec.clone()).await);
    let devices = Arc::new(HostDevices::new(exec));
    let data = tempfile::tempdir()?;
    let documents = Arc::new(FileDocuments::new(data.path().to_owned(), None));
    let config = ZfsStorageConfig {
        pool: POOL.to_owned(),
        data_dir: data.path().to_owned(),
        root: "/".into(),
        owner: Owner {
            server_uuid: uuid::Uuid::nil().into(),
            cluster: Arc::new(Cluster::open(documents).await?),
        },
    };
    let storage = ZfsStorage::open(config, zfs.clone(), devices.clone()).await?;

    let content = data.path().join("content.raw");
    std::fs::write(&content, vec![0x5a; usize::try_from(MIB)?])?;
    install(zfs.as_ref(), &devices, &content).await.context("install the image")?;
    conformance::of_disks(&storage).await;
    println!("disks: ok");
    conformance::of_snapshots(&storage).await;
    println!("snapshots: ok");
    let template = data.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672])?;
    conformance::of_variables(&storage, &template).await;
    println!("variables: ok");
    conformance::of_filling(&storage).await;
    println!("filling: ok");
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
