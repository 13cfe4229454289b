//! Metrics of ZFS: how the pools are, and which way operations went.

use muster_shared::exposition::{Exposition, Kind};

use super::metrics::number;
use crate::drivers::zfs::{Calls, Leaf, PoolHealth, ScanState};

/// States that a pool can be in; each has a sample, so that an alert finds one that has ended.
const STATES: [&str; 7] =
    ["ONLINE", "DEGRADED", "FAULTED", "OFFLINE", "REMOVED", "UNAVAIL", "SUSPENDED"];

/// A figure of a device.
type Count = fn(&Leaf) -> u64;

/// All of it; without samples on a host without ZFS.
pub(super) fn describe(page: &mut Exposition, pools: &[PoolHealth], calls: &Calls) {
    let samples: Vec<_> = calls
        .iter()
        .map(|((operation, way), count)| {
            ([("operation", *operation), ("way", way.as_str())], number(*count))
        })
        .collect();
    page.family(
        "muster_agent_zfs_operations_total",
        Kind::Counter,
        "Changes made by ZFS since the agent started, by operation and way: libzfs_core or command.",
        samples.iter().map(|(labels, count)| (&labels[..], *count)),
    );
    let states: Vec<_> = pools
        .iter()
        .flat_map(|pool| {
            STATES.map(|state| {
                let is = u8::from(pool.health == state);
                ([("pool", pool.name.as_str()), ("state", state)], f64::from(is))
            })
        })
        .collect();
    page.family(
        "muster_agent_zpool_state",
        Kind::Gauge,
        "1 for the state that a ZFS pool is in.",
        states.iter().map(|(labels, is)| (&labels[..], *is)),
    );
    of_each(
        page,
        "muster_agent_zpool_well",
        "1 if all of a ZFS pool is as it should be.",
        pools,
        |pool| Some(u64::from(pool.is_well())),
    );
    of_each(
        page,
        "muster_agent_zpool_data_errors",
        "Files or blocks that are lost.",
        pools,
        |pool| Some(pool.data_errors),
    );
    let help = "Space of a ZFS pool in use, percent.";
    of_each(page, "muster_agent_zpool_capacity_percent", help, pools, |pool| Some(pool.capacity));
    let help = "How scattered the free space of a ZFS pool is, percent.";
    of_each(page, "muster_agent_zpool_fragmentation_percent", help, pools, |pool| {
        pool.fragmentation
    });
    let help = "When the last scrub of a ZFS pool ended, Unix time.";
    of_each(page, "muster_agent_zpool_scrub_timestamp_seconds", help, pools, |pool| {
        let scrub = pool.scan.as_ref().filter(|scan| scan.kind == "scrub")?;
        let at = scrub.at.filter(|_| scrub.state == ScanState::Finished)?;
        u64::try_from(at.as_second()).ok()
    });
    let help = "What the last scan of a ZFS pool could not repair.";
    of_each(page, "muster_agent_zpool_scan_errors", help, pools, |pool| {
        pool.scan.as_ref().and_then(|scan| scan.errors)
    });
    describe_errors(page, pools);
}

fn of_each(
    page: &mut Exposition,
    name: &str,
    help: &str,
    pools: &[PoolHealth],
    value: fn(&PoolHealth) -> Option<u64>,
) {
    let samples: Vec<_> = pools
        .iter()
        .filter_map(|pool| Some(([("pool", pool.name.as_str())], number(value(pool)?))))
        .collect();
    let samples = samples.iter().map(|(labels, value)| (&labels[..], *value));
    page.family(name, Kind::Gauge, help, samples);
}

fn describe_errors(page: &mut Exposition, pools: &[PoolHealth]) {
    let kinds: [(&str, Count); 3] = [
        ("read", |leaf| leaf.read_errors),
        ("write", |leaf| leaf.write_errors),
        ("checksum", |leaf| leaf.checksum_errors),
    ];
    let errors: Vec<_> = pools
        .iter()
        .flat_map(|pool| {
            kinds.map(|(kind, count)| {
                let sum: u64 = pool.leaves.iter().map(count).sum();
                ([("pool", pool.name.as_str()), ("kind", kind)], number(sum))
            })
        })
        .collect();
    page.family(
        "muster_agent_zpool_device_errors",
        Kind::Gauge,
        "Errors of the devices of a ZFS pool since they were last cleared.",
        errors.iter().map(|(labels, count)| (&labels[..], *count)),
    );
}
