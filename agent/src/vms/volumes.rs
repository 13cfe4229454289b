//! The volumes that a VM's record names, and those that are found. Pure.

use super::{VmRecord, VolumeRecord};
use crate::drivers::storage::Disk;

/// What a record keeps of these disks. One that nobody knows by anything is not kept.
#[must_use]
pub fn of(disks: &[Disk]) -> Vec<VolumeRecord> {
    let kept = |disk: &Disk| {
        let identity = disk.identity.clone()?;
        let (index, format) = (disk.index, disk.format.clone());
        Some(VolumeRecord { index, identity, format, size_bytes: disk.size_bytes })
    };
    disks.iter().filter_map(kept).collect()
}

/// The first of a record's volumes in whose place there is another one, and that one. Where nothing
/// tells what a disk is, nothing speaks against it.
#[must_use]
pub fn other_than<'a>(
    volumes: &'a [VolumeRecord],
    disks: &'a [Disk],
) -> Option<(&'a VolumeRecord, &'a Disk)> {
    volumes.iter().find_map(|volume| {
        let disk = disks.iter().find(|disk| disk.index == volume.index)?;
        let identity = disk.identity.as_ref()?;
        (identity.uuid != volume.identity.uuid).then_some((volume, disk))
    })
}

/// Notes the sizes of these disks.
pub fn resize(record: &mut VmRecord, disks: &[Disk]) {
    for volume in record.volumes.iter_mut().flatten() {
        let disk = disks.iter().find(|disk| disk.index == volume.index);
        volume.size_bytes = disk.map_or(volume.size_bytes, |disk| disk.size_bytes);
    }
}

/// Whether the record is older than volumes, and can be told its own: nothing is under way with its
/// disks.
#[must_use]
pub fn are_unknown(record: &VmRecord) -> bool {
    record.volumes.is_none() && !record.provisioning && !record.destroying
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use uuid::Uuid;

    use super::*;
    use crate::vm_record::Identity;

    fn disk(index: u32, task: u128) -> Disk {
        let task = Uuid::from_u128(task).into();
        let identity = Identity::of_disk(Uuid::nil().into(), index, "zones", &task, None);
        Disk {
            index,
            identity: Some(identity),
            path: PathBuf::from("/vols/disk.qcow2"),
            format: "qcow2".to_owned(),
            size_bytes: 1 << 20,
            used_bytes: 0,
        }
    }

    #[test]
    fn another_disk_in_its_place_is_noticed() {
        let volumes = of(&[disk(0, 1), disk(1, 1)]);
        assert_eq!(volumes.len(), 2);
        // Its file was moved, it grew, and beside it there is one that no record names.
        let grown = Disk { path: PathBuf::from("/x"), size_bytes: 2 << 20, ..disk(1, 1) };
        assert_eq!(other_than(&volumes, &[disk(0, 1), grown, disk(2, 1)]), None);
        let foreign = disk(1, 2);
        let found =
            other_than(&volumes, &[disk(0, 1), foreign.clone()][..]).map(|(_, disk)| disk.clone());
        assert_eq!(found, Some(foreign));
        // No stamp tells what it is.
        let nameless = [Disk { identity: None, ..disk(1, 2) }];
        assert_eq!(other_than(&volumes, &nameless), None);
        assert_eq!(of(&nameless), []);
    }
}
