//! What becomes of the disks of a guest that runs when its record changes. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::VmRecord;
use crate::drivers::compute::GuestDisks;
use crate::vm_record::disks::{numbered, numbers, with_number};

/// The disks that the guest runs with, as far as they are described.
#[must_use]
pub fn running(record: &VmRecord) -> &[Value] {
    match record.started_with.get("disks") {
        Some(Value::Array(disks)) => disks,
        Some(_) => &[],
        None => record.list("disks"),
    }
}

/// Whether a disk is of a model that comes and goes while the guest runs.
#[must_use]
pub fn is_pluggable(disk: &Value) -> bool {
    let is = |name: &str, wanted: &str| {
        disk.get(name).and_then(Value::as_str).is_none_or(|value| value == wanted)
    };
    is("model", "virtio") && is("media", "disk")
}

/// Numbers that only the first of these lists has.
#[must_use]
pub fn only_in(disks: &[Value], others: &[Value]) -> Vec<u32> {
    let others: BTreeSet<u32> = numbers(others).into_iter().collect();
    numbers(disks).into_iter().filter(|number| !others.contains(number)).collect()
}

/// Those of these new disks that the guest can be given while it runs.
#[must_use]
pub fn can_come(present: &GuestDisks, wanted: &[Value], new: &[u32]) -> BTreeSet<u32> {
    let can = |number: &&u32| {
        present.free.contains(number) && with_number(wanted, **number).is_some_and(is_pluggable)
    };
    new.iter().filter(can).copied().collect()
}

/// The first of these disks that the guest has and can't give up while it runs.
#[must_use]
pub fn stuck(present: &GuestDisks, running: &[Value], gone: &[u32]) -> Option<u32> {
    let has = |number: u32| present.present.iter().find(|disk| disk.number == number);
    let is_stuck = |number: &u32| {
        has(*number).is_some_and(|disk| {
            !disk.removable || !with_number(running, *number).is_some_and(is_pluggable)
        })
    };
    gone.iter().copied().find(is_stuck)
}

/// The disks that the guest is to have: of those that are wanted the ones that it runs with, as it does,
/// and the ones that come while it runs.
#[must_use]
pub fn live(running: &[Value], wanted: &[Value], hot: &BTreeSet<u32>) -> Vec<Value> {
    let of = |(number, disk): (u32, &Value)| match with_number(running, number) {
        Some(has) => Some(has.clone()),
        None => hot.contains(&number).then(|| disk.clone()),
    };
    numbered(wanted).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::drivers::compute::GuestDisk;

    fn disk(number: u32, model: &str) -> Value {
        json!({ "path": format!("/vols/disk{number}.qcow2"), "model": model, "media": "disk" })
    }

    fn guest(removable: &[u32], fixed: &[u32], free: &[u32]) -> GuestDisks {
        let disk = |removable| move |number: &u32| GuestDisk { number: *number, removable };
        let present = removable.iter().map(disk(true)).chain(fixed.iter().map(disk(false)));
        GuestDisks { present: present.collect(), free: free.iter().copied().collect() }
    }

    #[test]
    fn disks_come_where_the_guest_has_slots() {
        let wanted = [disk(0, "virtio"), disk(1, "virtio"), disk(2, "ide"), disk(5, "virtio")];
        assert_eq!(only_in(&wanted, &wanted[..1]), [1, 2, 5]);
        let can = can_come(&guest(&[], &[0], &[1, 2]), &wanted, &[1, 2, 5]);
        assert_eq!(can, BTreeSet::from([1]));
        let cd = json!({ "media": "cdrom", "model": "virtio" });
        assert!(!is_pluggable(&cd) && is_pluggable(&json!({})));
    }

    #[test]
    fn what_can_not_go_is_told() {
        let running = [disk(0, "virtio"), disk(1, "virtio"), disk(2, "scsi")];
        let guest = guest(&[1, 2], &[0], &[]);
        assert_eq!(stuck(&guest, &running, &[1]), None);
        assert_eq!(stuck(&guest, &running, &[1, 2]), Some(2), "another model");
        assert_eq!(stuck(&guest, &running, &[0]), Some(0), "in no slot");
        assert_eq!(stuck(&guest, &running, &[7]), None, "it does not have it yet");
    }

    #[test]
    fn what_waits_is_no_part_of_the_guest() {
        let running = [disk(0, "virtio"), disk(1, "virtio")];
        let mut other = disk(0, "nvme");
        other["size"] = json!(5);
        let wanted = [other, disk(2, "virtio"), disk(3, "ide")];
        let live = live(&running, &wanted, &BTreeSet::from([2]));
        assert_eq!(live, [running[0].clone(), wanted[1].clone()]);
    }
}
