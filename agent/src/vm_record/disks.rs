//! The numbers of a VM's disks, which they keep when others come or go: their files, and their devices
//! in the guest, are named by them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The number in the name of a disk's file: `disk<N>`, whatever stands behind a dot.
fn number_in(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next()?;
    name.split('.').next()?.strip_prefix("disk")?.parse().ok()
}

/// The numbers of a VM's disks, in their order: that of its file, or the lowest that is free.
#[must_use]
pub fn numbers(disks: &[Value]) -> Vec<u32> {
    let mut taken = BTreeSet::new();
    let own = |disk: &Value| {
        let number = number_in(disk.get("path")?.as_str()?)?;
        taken.insert(number).then_some(number)
    };
    let own: Vec<Option<u32>> = disks.iter().map(own).collect();
    let mut free = (0..).filter(|number| !taken.contains(number));
    own.into_iter().map(|own| own.or_else(|| free.next()).unwrap_or_default()).collect()
}

/// A VM's disks with their numbers.
pub fn numbered(disks: &[Value]) -> impl Iterator<Item = (u32, &Value)> {
    numbers(disks).into_iter().zip(disks)
}

/// The disk with this number.
#[must_use]
pub fn with_number(disks: &[Value], number: u32) -> Option<&Value> {
    numbered(disks).find_map(|(own, disk)| (own == number).then_some(disk))
}

/// Has a disk that has no file yet get this number.
pub fn set_number(disk: &mut Map<String, Value>, number: u32) {
    disk.insert("path".to_owned(), json!(format!("disk{number}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str) -> Value {
        json!({ "path": path })
    }

    #[test]
    fn a_disk_keeps_its_number_when_others_go() {
        let disks = [disk("/vols/x/disk0.qcow2"), disk("/vols/x/disk2.qcow2"), disk("disk1")];
        assert_eq!(numbers(&disks), [0, 2, 1]);
        assert_eq!(with_number(&disks, 2), Some(&disks[1]));
        assert_eq!(with_number(&disks, 3), None);
        let mut new = Map::new();
        set_number(&mut new, 7);
        assert_eq!(numbers(&[Value::Object(new)]), [7]);
    }

    #[test]
    fn disks_without_files_are_numbered_by_their_order() {
        assert_eq!(numbers(&[json!({}), json!({}), disk("/dev/sda")]), [0, 1, 2]);
        assert_eq!(numbers(&[json!({}), disk("/dev/zvol/zones/x/disk0")]), [1, 0]);
        assert_eq!(numbers(&[disk("disk1"), disk("disk1")]), [1, 0], "none is there twice");
    }
}
