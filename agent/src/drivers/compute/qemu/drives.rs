//! A guest's disks as the hypervisor has them, whether it starts with them or they are plugged in later:
//! both ways paravirtual ones are the same devices in the same bays. Pure.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::drivers::storage::{self, Disk};

/// Bays for paravirtual disks, used or not, that every machine with PCI Express has beside the place of
/// disk 0. Whatever is plugged in elsewhere can't be pulled out.
pub(super) const BAYS: u32 = 4;
/// Highest number of a disk that can have a bay: each is a function of one of four devices.
const MAX_BAY: u32 = 32;
/// Functions of a device on a PCI bus.
const FUNCTIONS: u32 = 8;
/// The first of those devices. They are behind all that guests had before there were bays.
const FIRST_DEVICE: u32 = 0x1a;
/// Chassis and slots below are those of network interfaces.
const FIRST_CHASSIS: u32 = 64;
/// Of paravirtual disks.
pub(super) const DRIVER: &str = "virtio-blk-pci";
/// QEMU's limit for the serial number of a virtio disk.
const SERIAL_CHARS: usize = 20;

/// The bay of the metadata disk.
pub(super) const METADATA_BAY_ID: &str = "cidatabay";
/// The same, as the command line has it.
pub(super) const METADATA_BAY: &str =
    "pcie-root-port,id=cidatabay,chassis=97,slot=97,addr=0x1e.0x0";

/// What a disk's content goes through, among the hypervisor's nodes.
pub(super) fn node_name(number: u32) -> String {
    format!("disk{number}")
}

/// The disk with this number, among the hypervisor's devices.
pub(super) fn device_id(number: u32) -> String {
    format!("disk{number}dev")
}

/// The number of the disk that is this device.
pub(super) fn number_of(device: &str) -> Option<u32> {
    device.strip_prefix("disk")?.strip_suffix("dev")?.parse().ok()
}

/// Disk 0 stays, and needs none.
pub(super) fn has_bay(number: u32) -> bool {
    (1..=MAX_BAY).contains(&number)
}

/// The port that is the bay of the disk with this number.
pub(super) fn bay_id(number: u32) -> String {
    format!("bay{number}")
}

/// The number of the disk whose bay this device is.
pub(super) fn bay_of(device: &str) -> Option<u32> {
    device.strip_prefix("bay")?.parse().ok()
}

/// A bay, as the command line has it. A device shows its functions only if it has the first one, so
/// there must be none without those before it.
pub(super) fn bay(number: u32) -> String {
    let (id, chassis) = (bay_id(number), FIRST_CHASSIS + number);
    let place = number.saturating_sub(1);
    let (device, function) = (FIRST_DEVICE + place / FUNCTIONS, place % FUNCTIONS);
    format!(
        "pcie-root-port,id={id},chassis={chassis},slot={chassis},addr={device:#x}.{function:#x},\
         multifunction=on"
    )
}

/// What the guest knows a disk by.
pub(super) fn serial(number: u32, described: &Value) -> String {
    let serial = described["uuid"].as_str().map_or_else(|| node_name(number), str::to_owned);
    serial.chars().take(SERIAL_CHARS).collect()
}

/// The node of a disk whose file the hypervisor opens under this name.
pub(super) fn node(disk: &Disk, described: &Value, file: &Path) -> Value {
    let discard = if described["notrim"] == true { "ignore" } else { "unmap" };
    json!({
        "driver": disk.format, "node-name": node_name(disk.index), "discard": discard,
        "file": { "driver": protocol(&disk.path), "filename": file, "discard": discard },
    })
}

/// The driver with which the hypervisor opens what has this path, whatever name it gets for it.
pub(super) fn protocol(path: &Path) -> &'static str {
    if storage::is_device(path) { "host_device" } else { "file" }
}

/// The same of a disk and of what it is based on, one on another, which is only read. The first file
/// is the disk's own.
pub(super) fn node_on_bases(disk: &Disk, described: &Value, files: &[PathBuf]) -> Value {
    let Some((own, bases)) = files.split_first() else { return Value::Null };
    let mut node = node(disk, described, own);
    let base = bases.iter().rev().fold(None, |below: Option<Value>, base| {
        let mut node = json!({
            "driver": "qcow2", "read-only": true,
            "file": { "driver": "file", "filename": base, "read-only": true },
        });
        if let Some(below) = below {
            node["backing"] = below;
        }
        Some(node)
    });
    if let Some(base) = base {
        node["backing"] = base;
    }
    node
}

/// A paravirtual disk as it is plugged in; in its bay, if the machine has bays.
pub(super) fn device(number: u32, described: &Value, in_bay: bool) -> Map<String, Value> {
    let mut members = Map::new();
    let mut set = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
    set("driver", json!(DRIVER));
    set("drive", json!(node_name(number)));
    set("serial", json!(serial(number, described)));
    set("id", json!(device_id(number)));
    if in_bay {
        set("bus", json!(bay_id(number)));
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_their_names() {
        assert_eq!((number_of(&device_id(3)), bay_of(&bay_id(3))), (Some(3), Some(3)));
        for other in ["disk", "diskdev", "disk1", "cidatadev", "nic1", "bay", "cidatabay"] {
            assert_eq!((number_of(other), bay_of(other)), (None, None), "{other}");
        }
    }

    #[test]
    fn bays_fill_one_device_after_the_other() {
        assert!(bay(1).ends_with("chassis=65,slot=65,addr=0x1a.0x0,multifunction=on"));
        assert!(bay(8).contains("addr=0x1a.0x7,") && bay(9).contains("addr=0x1b.0x0,"));
        assert!(bay(32).contains("chassis=96,slot=96,addr=0x1d.0x7,"));
        assert!(!has_bay(0) && has_bay(32) && !has_bay(33));
    }

    #[test]
    fn a_disk_is_plugged_in_as_its_guest_would_start_with_it() {
        let uuid = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c09";
        let described = json!({ "uuid": uuid, "notrim": true });
        let plugged = Value::Object(device(2, &described, true));
        let wanted = json!({
            "driver": "virtio-blk-pci", "drive": "disk2", "serial": "6c1a5a44-5b5c-4d4e-9",
            "id": "disk2dev", "bus": "bay2",
        });
        assert_eq!(plugged, wanted);
        assert!(device(2, &described, false).get("bus").is_none());
        let disk = Disk {
            index: 2,
            identity: None,
            path: "/vols/disk2.qcow2".into(),
            format: "qcow2".to_owned(),
            size_bytes: 1,
            used_bytes: 0,
        };
        let device =
            Disk { path: "/dev/zvol/zones/x/disk2".into(), format: "raw".into(), ..disk.clone() };
        let opened = node(&device, &described, Path::new("/dev/fdset/4"));
        assert_eq!(
            (&opened["driver"], &opened["file"]["driver"]),
            (&json!("raw"), &json!("host_device"))
        );
        let files = ["/dev/fdset/4", "/x", "/y"].map(PathBuf::from);
        let node = node_on_bases(&disk, &described, &files);
        assert_eq!(node["backing"]["backing"]["file"]["filename"], "/y");
        assert_eq!(node["backing"]["backing"].get("backing"), None);
        assert_eq!(node_on_bases(&disk, &described, &files[..1]).get("backing"), None);
        assert_eq!(node["file"]["filename"], "/dev/fdset/4");
        assert_eq!((&node["discard"], &node["node-name"]), (&json!("ignore"), &json!("disk2")));
        assert_eq!(node["backing"]["file"]["read-only"], true);
    }
}
