//! The key `Muster`: what only this agent says.

use serde_json::{Value, json};

use super::probe::Probe;
use super::{keys, zpool};
use crate::drivers::host::reset::Reset;
use crate::drivers::node::Document;
use crate::drivers::settings;
use crate::drivers::zfs::Availability;

/// The block.
pub(super) async fn block(probe: &Probe, degraded: &[String]) -> Value {
    let abilities = probe.compute.abilities();
    let count = async |folder: &str, prefix: &str| {
        let names = probe.names(folder).await;
        names.iter().filter(|name| name.starts_with(prefix)).count()
    };
    let mut block = keys(json!({
        "agent_version": env!("CARGO_PKG_VERSION"),
        "agent_instance_id": probe.config.agent_instance_id,
        "kernel_version": probe.text("proc/sys/kernel/osrelease").await.unwrap_or_default(),
        "boot_id": probe.text("proc/sys/kernel/random/boot_id").await.unwrap_or_default(),
        "storage": probe.config.storage,
        "cgroup": cgroup(probe).await,
        "secure_boot": secure_boot(probe).await,
        "tpm": count("sys/class/tpm", "tpm").await > 0,
        "iommu_groups": count("sys/kernel/iommu_groups", "").await,
        "numa_nodes": count("sys/devices/system/node", "node").await.max(1),
        "degraded": degraded,
    }));
    block.extend(abilities.version.map(|version| ("qemu_version".to_owned(), json!(version))));
    block.extend(abilities.containers.map(|runtime| ("oci_runtime".to_owned(), json!(runtime))));
    block.extend(abilities.accel.map(|accel| ("accel".to_owned(), json!(accel))));
    if let Availability::Works { version, atomic } = probe.zpools.zfs().availability() {
        block.extend(version.map(|version| ("zfs_version".to_owned(), json!(version))));
        block.insert("libzfs_core".to_owned(), json!(atomic));
        block.insert("zpools".to_owned(), zpool::pools(&probe.zpools.latest()));
    }
    if reset_pending(probe).await {
        block.insert("pending_factory_reset".to_owned(), json!(true));
    }
    let conf = probe.text_of(&probe.config.data_dir.join(settings::NODE_CONF)).await;
    let ratio = conf.and_then(|conf| settings::option(&conf, settings::OVERPROVISION_RATIO));
    block.extend(ratio.map(|ratio| ("overprovision_ratio".to_owned(), json!(ratio))));
    Value::Object(block)
}

/// Whether the node is wiped at its next boot.
async fn reset_pending(probe: &Probe) -> bool {
    let path = probe.config.data_dir.join(Document::FactoryReset.file_name());
    let noted = probe.text_of(&path).await.unwrap_or_default();
    serde_json::from_str::<Reset>(&noted).is_ok_and(|reset| !reset.done)
}

async fn cgroup(probe: &Probe) -> &'static str {
    if probe.exists("sys/fs/cgroup/cgroup.controllers").await {
        "v2"
    } else if probe.exists("sys/fs/cgroup/unified").await {
        "hybrid"
    } else {
        "v1"
    }
}

/// The variable holds four bytes of attributes and one of state.
async fn secure_boot(probe: &Probe) -> bool {
    const VARIABLE: &str =
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    let content = tokio::fs::read(probe.config.root.join(VARIABLE)).await.unwrap_or_default();
    content.get(4) == Some(&1)
}
