//! Metrics of the fleet and of the store: read when somebody asks, not counted along.

use std::path::Path;

use muster_shared::exposition::{Exposition, Kind};
use muster_shared::units::MIB;

use crate::app::FleetCounts;

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

/// Adds how the fleet is.
pub(super) fn describe(page: &mut Exposition, counts: &FleetCounts) {
    let version = env!("CARGO_PKG_VERSION");
    page.family(
        "muster_coordinator_build_info",
        Kind::Gauge,
        "The coordinator's version; always 1.",
        [(&[("version", version)][..], 1.0)],
    );
    let servers: Vec<_> = counts.servers.iter().map(|(it, n)| ([("status", *it)], *n)).collect();
    page.family(
        "muster_servers",
        Kind::Gauge,
        "Registered servers by status.",
        servers.iter().map(|(labels, n)| (&labels[..], number(*n))),
    );
    let vms: Vec<_> = counts.vms.iter().map(|(it, n)| ([("state", *it)], *n)).collect();
    page.family(
        "muster_vms",
        Kind::Gauge,
        "VMs by state; unknown are those of servers that are not heard.",
        vms.iter().map(|(labels, n)| (&labels[..], number(*n))),
    );
    let tasks: Vec<_> = counts.open_tasks.iter().map(|(it, n)| ([("task", &**it)], *n)).collect();
    page.family(
        "muster_tasks_open",
        Kind::Gauge,
        "Accepted tasks that have not ended, by kind.",
        tasks.iter().map(|(labels, n)| (&labels[..], number(*n))),
    );
    let mib = number(MIB);
    for (name, help, value) in [
        ("muster_room_cpu_cores", "CPU", counts.room.cpu / 100.0),
        ("muster_room_memory_bytes", "Memory", counts.room.ram * mib),
        ("muster_room_disk_bytes", "Disk", counts.room.disk * mib),
    ] {
        let help = format!("{help} that new VMs can get on servers that take any.");
        page.one(name, Kind::Gauge, &help, value);
    }
}

/// Adds how large the embedded store is, and how much it may grow. What can't be read has no
/// sample.
pub(super) fn describe_store(page: &mut Exposition, folder: &Path) {
    let size = folder_bytes(folder).ok();
    let free = nix::sys::statvfs::statvfs(folder).ok();
    let free =
        free.map(|found| u128::from(found.blocks_available()) * u128::from(found.fragment_size()));
    let free = free.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
    for (name, help, value) in [
        ("muster_store_size_bytes", "Size of the embedded store's files.", size),
        ("muster_store_free_bytes", "Free space of the store's file system.", free),
    ] {
        page.family(name, Kind::Gauge, help, value.map(|bytes| (&[][..], number(bytes))));
    }
}

/// The files of one folder; engines use no more.
fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes: u64 = 0;
    for entry in std::fs::read_dir(folder)? {
        // A file may go while the others are looked at.
        let size = entry?.metadata().map(|found| if found.is_file() { found.len() } else { 0 });
        bytes = bytes.saturating_add(size.unwrap_or(0));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::alloc::Unreserved;

    #[test]
    fn figures_are_in_base_units() {
        let counts = FleetCounts {
            servers: BTreeMap::from([("running", 2)]),
            vms: BTreeMap::from([("stopped", 3)]),
            open_tasks: BTreeMap::from([("machine_create".to_owned(), 1)]),
            room: Unreserved { cpu: 250.0, ram: 2.0, disk: 3.0 },
        };
        let mut page = Exposition::new("dc=\"a\"");
        describe(&mut page, &counts);
        let text = page.into_text();
        for line in [
            "muster_servers{dc=\"a\",status=\"running\"} 2",
            "muster_vms{dc=\"a\",state=\"stopped\"} 3",
            "muster_tasks_open{dc=\"a\",task=\"machine_create\"} 1",
            "muster_room_cpu_cores{dc=\"a\"} 2.5",
            "muster_room_memory_bytes{dc=\"a\"} 2097152",
            "muster_room_disk_bytes{dc=\"a\"} 3145728",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_store_elsewhere_has_no_samples() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("records"), [0; 100]).unwrap();
        let mut page = Exposition::default();
        describe_store(&mut page, folder.path());
        let text = page.into_text();
        assert!(text.contains("\nmuster_store_size_bytes 100\n"), "{text}");
        assert!(text.contains("\nmuster_store_free_bytes "), "{text}");
        let mut page = Exposition::default();
        describe_store(&mut page, &folder.path().join("nowhere"));
        assert!(page.into_text().lines().all(|line| line.starts_with('#')));
    }
}
