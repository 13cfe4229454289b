//! One status sample: all VMs and the figures beside them.

use std::collections::BTreeMap;

use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::wire::status::{Diskinfo, PoolStatus, Report, VmReport};
use serde_json::{Map, Value, json};

use super::Figures;
use crate::drivers::storage::Usage;
use crate::drivers::zfs::{Leaf, PoolHealth};
use crate::report::feed::Sample;

/// Puts a sample together.
pub(super) fn sample(
    vms: BTreeMap<VmUuid, VmReport>,
    mut host: Figures,
    usages: &[Usage],
    health: &[PoolHealth],
    degraded: Vec<String>,
    now: jiff::Timestamp,
) -> Sample {
    let pool = |usage: &Usage| {
        let status = PoolStatus {
            bytes_available: usage.size_bytes.saturating_sub(usage.alloc_bytes),
            bytes_used: usage.alloc_bytes,
        };
        (usage.pool.clone(), status)
    };
    let mut zpools: Map<String, Value> =
        usages.iter().map(|usage| (usage.pool.clone(), zpool(usage))).collect();
    zpools.extend(health.iter().map(|pool| (pool.name.clone(), of_zfs(pool))));
    host.extra.insert("zpools".to_owned(), Value::Object(zpools));
    let figures = Report {
        zpool_status: usages.iter().map(pool).collect(),
        meminfo: Some(host.meminfo),
        diskinfo: usages.first().map(diskinfo),
        boot_time: iso(host.boot_time),
        timestamp: iso(now),
        // The link adds what the task engine does.
        muster: Value::Object(host.extra),
        ..Report::default()
    };
    Sample { vms, figures, degraded }
}

/// What is told of a pool beside its bytes.
fn zpool(usage: &Usage) -> Value {
    let used = u128::from(usage.alloc_bytes) * 100;
    let capacity = used.checked_div(usage.size_bytes.into()).unwrap_or(0);
    json!({ "capacity": u64::try_from(capacity).unwrap_or(u64::MAX) })
}

/// What is told of a ZFS pool beside its bytes.
fn of_zfs(pool: &PoolHealth) -> Value {
    let count = |errors: fn(&Leaf) -> u64| pool.leaves.iter().map(errors).sum::<u64>();
    json!({
        "health": pool.health,
        "capacity": pool.capacity,
        "fragmentation": pool.fragmentation,
        "scan": pool.scan,
        "errors": {
            "read": count(|leaf| leaf.read_errors),
            "write": count(|leaf| leaf.write_errors),
            "checksum": count(|leaf| leaf.checksum_errors),
            "data": pool.data_errors,
        },
    })
}

/// CNAPI's disk figures, which are of the first pool: where disks go that name none, and all that
/// clients and placement know. All VMs are hardware VMs, whose disks count as zvols; there are no
/// container datasets with a quota yet.
fn diskinfo(usage: &Usage) -> Diskinfo {
    let known_bytes = usage.disks_used_bytes.saturating_add(usage.images_bytes);
    Diskinfo {
        kvm_zvol_used_bytes: usage.disks_used_bytes,
        kvm_zvol_volsize_bytes: usage.disks_virtual_bytes,
        installed_images_used_bytes: usage.images_bytes,
        pool_size_bytes: usage.size_bytes,
        pool_alloc_bytes: usage.alloc_bytes,
        system_used_bytes: usage.alloc_bytes.saturating_sub(known_bytes),
        ..Diskinfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neither_disks_nor_images_use_is_the_systems() {
        let usage = Usage {
            pool: "zones".to_owned(),
            size_bytes: 100,
            alloc_bytes: 60,
            images_bytes: 10,
            disks_used_bytes: 20,
            disks_virtual_bytes: 500,
        };
        let info = diskinfo(&usage);
        assert_eq!(info.system_used_bytes, 30);
        assert_eq!(info.kvm_zvol_volsize_bytes, 500);
        // Sparse files may seem to use more than the file system says.
        assert_eq!(diskinfo(&Usage { images_bytes: 90, ..usage }).system_used_bytes, 0);
    }
}
