//! The pool of the agent's disks, if it is one of ZFS: `Zpool` and what goes with it. All keys are
//! absent where it is not, as on a SmartOS node without a pool.

use std::path::Path;

use muster_shared::units::GIB;
use serde_json::{Value, json};

use super::probe::Probe;
use super::{Group, Keys, keys};
use crate::drivers::DriverError;
use crate::drivers::zfs::{Dataset, PoolHealth, Properties, Scan, ScanState, Wanted};

pub(super) const GROUP: Group =
    Group { name: "zpool", collect: |probe| Box::pin(collect(probe)), unknown: |_| Keys::new() };

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let zfs = probe.zpools.zfs();
    let Ok(dataset) = probe.config.pool.parse::<Dataset>() else { return Ok(Keys::new()) };
    if !zfs.availability().works() {
        return Ok(Keys::new());
    }
    if probe.zpools.latest().is_empty() {
        // The agent has just started: nobody has asked yet.
        probe.zpools.ask().await;
    }
    let pools = probe.zpools.latest();
    let Some(pool) = pools.iter().find(|pool| pool.name == probe.config.pool) else {
        return Ok(Keys::new());
    };
    let wanted = ["creation", "encryption", "used", "available"];
    let found = zfs.get(&Wanted::of(&dataset, &wanted)).await?;
    let of = found.get(dataset.as_str()).cloned().unwrap_or_default();
    Ok(document(pool, &of, &disks(probe, pool).await))
}

fn document(pool: &PoolHealth, of: &Properties, disks: &[String]) -> Keys {
    let number = |name: &str| of.get(name).and_then(|value| value.parse::<u64>().ok());
    let encryption = of.get("encryption").map_or("off", String::as_str);
    let mut document = keys(json!({
        "Zpool": pool.name,
        "Zpool Encrypted": !matches!(encryption, "off" | "-"),
        "Zpool Disks": disks.join(","),
        "Zpool Profile": pool.profile,
    }));
    if let Some(creation) = number("creation") {
        document.insert("Zpool Creation".to_owned(), json!(creation));
    }
    if let (Some(used), Some(available)) = (number("used"), number("available")) {
        let size = used.saturating_add(available) / GIB;
        document.insert("Zpool Size in GiB".to_owned(), json!(size));
    }
    document
}

/// The whole disks that the pool's devices are on, sorted.
async fn disks(probe: &Probe, pool: &PoolHealth) -> Vec<String> {
    let mut names = Vec::new();
    for leaf in pool.leaves.iter().filter(|leaf| leaf.name.starts_with('/')) {
        // A name of udev's making leads to the kernel's; one that is gone leads nowhere.
        let path = Path::new(&leaf.name);
        let device = tokio::fs::canonicalize(path).await.unwrap_or_else(|_| path.to_owned());
        let Some(device) = device.file_name().and_then(|name| name.to_str()) else { continue };
        names.push(whole(probe, device).await);
    }
    names.sort();
    names.dedup();
    names
}

/// The disk that a partition is on; of a disk, itself.
async fn whole(probe: &Probe, device: &str) -> String {
    let folder = format!("sys/class/block/{device}");
    if !probe.exists(&format!("{folder}/partition")).await {
        return device.to_owned();
    }
    let path = tokio::fs::canonicalize(probe.config.root.join(&folder)).await;
    let disk = path.ok().and_then(|path| Some(path.parent()?.file_name()?.to_str()?.to_owned()));
    disk.unwrap_or_else(|| device.to_owned())
}

/// What `Muster` says of all pools of the host. Without what changes all the time: each change of
/// sysinfo is sent.
pub(super) fn pools(pools: &[PoolHealth]) -> Value {
    let pool = |pool: &PoolHealth| {
        let scan = pool.scan.as_ref().map(|scan: &Scan| {
            let at = scan.at.filter(|_| scan.state != ScanState::Running).map(|at| at.to_string());
            json!({ "kind": scan.kind, "state": scan.state, "at": at, "errors": scan.errors })
        });
        let leaves = pool.leaves.iter().map(|leaf| {
            json!({
                "name": leaf.name, "state": leaf.state, "role": leaf.role,
                "errors": [leaf.read_errors, leaf.write_errors, leaf.checksum_errors],
            })
        });
        let document = json!({
            "health": pool.health,
            "trouble": pool.trouble,
            "capacity": pool.capacity,
            "fragmentation": pool.fragmentation,
            "data_errors": pool.data_errors,
            "scan": scan,
            "devices": leaves.collect::<Vec<_>>(),
        });
        (pool.name.clone(), document)
    };
    Value::Object(pools.iter().map(pool).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::zfs::Leaf;

    #[test]
    fn the_pool_has_the_keys_and_types_of_smartos() {
        let pool =
            PoolHealth { name: "zones".to_owned(), profile: "raidz2", ..PoolHealth::default() };
        let of = [
            ("creation", "1714540000"),
            ("encryption", "aes-256-gcm"),
            ("used", "1073741824"),
            ("available", "3221225472"),
        ];
        let of = of.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let document = document(&pool, &of, &["vdb".to_owned(), "vdc".to_owned()]);
        let expected = json!({
            "Zpool": "zones", "Zpool Encrypted": true, "Zpool Disks": "vdb,vdc",
            "Zpool Profile": "raidz2", "Zpool Creation": 1_714_540_000, "Zpool Size in GiB": 4,
        });
        assert_eq!(Value::Object(document), expected);
    }

    #[test]
    fn a_running_scan_does_not_change_the_document_all_the_time() {
        let scan = |percent| {
            let state = ScanState::Running;
            Scan { kind: "scrub", state, at: None, percent: Some(percent), errors: None }
        };
        let pool = |percent| PoolHealth {
            name: "zones".to_owned(),
            scan: Some(scan(percent)),
            leaves: vec![Leaf::default()],
            ..PoolHealth::default()
        };
        assert_eq!(pools(&[pool(1)]), pools(&[pool(2)]));
        assert_eq!(pools(&[pool(1)])["zones"]["scan"]["state"], "running");
    }
}
