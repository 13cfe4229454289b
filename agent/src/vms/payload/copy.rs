//! The payload that makes a VM like one that there is, with blank disks. Pure.

use muster_shared::export::{Role, Volume};
use muster_shared::units::MIB;
use muster_shared::vm::{DISK, Effect, NIC, Property, TOLD, property};
use serde_json::{Map, Value, json};

use super::is_container;

/// Said of a VM on its server, and decided anew elsewhere.
const OF_THE_SERVER: &[&str] = &["image_uuid", "zpool", "zonename"];
/// Of a container it says how that is run, wherever that is.
const IMAGE: &str = "image_uuid";

/// The payload of a VM of these properties whose volumes are these. Disks stand in the order of
/// the record; each has the size of its volume. CDs keep their images, and have no volume.
#[must_use]
pub fn copy(properties: &Map<String, Value>, volumes: &[Volume]) -> Map<String, Value> {
    let zonename = properties.get("zonename");
    let mut vm = Map::new();
    for (name, value) in properties {
        let of_the_server = OF_THE_SERVER.contains(&name.as_str());
        let keeps_image = name == IMAGE && is_container(properties);
        let is_told = TOLD.contains(&name.as_str()) || (of_the_server && !keeps_image);
        // Where nobody gave it a name, it is its uuid.
        let is_default = name == "hostname" && Some(value) == zonename;
        let is_kept = keeps_image || property(name).is_some_and(is_kept);
        if !is_told && !is_default && is_kept {
            vm.insert(name.clone(), value.clone());
        }
    }
    each(&mut vm, "disks", |index, disk| {
        retain(disk, DISK);
        disk.shift_remove("zpool");
        if is_cdrom(disk) {
            return;
        }
        disk.shift_remove("image_uuid");
        let volume = volumes.iter().find(|volume| usize_of(volume.role) == Some(index));
        let size_mib = volume.map(|volume| volume.size_bytes.div_ceil(MIB));
        if let Some(size_mib) = size_mib {
            disk.insert("size".to_owned(), json!(size_mib));
        }
    });
    each(&mut vm, "nics", |_, nic| retain(nic, NIC));
    vm
}

/// Whether a disk is a CD: then it is what its image is.
#[must_use]
pub fn is_cdrom(disk: &Map<String, Value>) -> bool {
    disk.get("media").is_some_and(|media| media == "cdrom")
}

fn is_kept(property: &Property) -> bool {
    matches!(property.effect, Effect::Live | Effect::AtStart | Effect::Kept(_))
}

fn retain(members: &mut Map<String, Value>, table: &[Property]) {
    let kept = |name: &str| table.iter().find(|known| known.name == name).is_some_and(is_kept);
    members.retain(|name, _| kept(name));
}

fn each(
    vm: &mut Map<String, Value>,
    list: &str,
    mut change: impl FnMut(usize, &mut Map<String, Value>),
) {
    let devices = vm.get_mut(list).and_then(Value::as_array_mut);
    for (index, device) in devices.into_iter().flatten().enumerate() {
        if let Some(device) = device.as_object_mut() {
            change(index, device);
        }
    }
}

fn usize_of(role: Role) -> Option<usize> {
    match role {
        Role::Firmware | Role::Root => None,
        Role::Disk(index) => usize::try_from(index).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::create;
    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_copy_is_a_payload_that_makes_the_same_vm() {
        const UUID: &str = "11111111-1111-4111-8111-111111111111";
        let params = object(&json!({
            "uuid": UUID, "brand": "kvm", "alias": "web", "ram": 512, "vcpus": 2, "bootrom": "uefi",
            "image_uuid": UUID, "tags": { "role": "web" }, "customer_metadata": { "a": "b" },
            "disks": [
                { "image_uuid": UUID, "boot": true, "model": "virtio", "max_iops": 5 },
                { "image_uuid": UUID, "media": "cdrom" },
                { "size": 10 },
            ],
            "nics": [{ "nic_tag": "admin", "ips": ["dhcp"], "mac": "02:00:00:00:00:01" }],
        }));
        let mut properties = create(&params).unwrap();
        // What an agent writes beside.
        for (name, value) in [
            ("zonename", json!(UUID)),
            ("hostname", json!(UUID)),
            ("create_timestamp", json!("2026-01-01T00:00:00.000Z")),
        ] {
            properties.insert(name.to_owned(), value);
        }
        for disk in properties["disks"].as_array_mut().unwrap() {
            disk["path"] = json!("/vols/x/disk0.qcow2");
            disk["zpool"] = json!("fast");
        }
        let volumes = [
            Volume { role: Role::Firmware, size_bytes: 540_672, number: 0 },
            Volume { role: Role::Disk(0), size_bytes: 40 * MIB + 1, number: 0 },
            Volume { role: Role::Disk(2), size_bytes: 10 * MIB, number: 3 },
        ];
        let copied = copy(&properties, &volumes);
        assert_eq!(copied["disks"][0]["size"], 41);
        assert_eq!(copied["disks"][0].get("image_uuid"), None);
        assert_eq!(copied["disks"][1]["image_uuid"], UUID);
        assert_eq!(copied["disks"][2]["size"], 10);
        assert_eq!((copied.get("hostname"), copied.get("image_uuid")), (None, None));
        let made = create(&copied).unwrap();
        for name in ["alias", "ram", "vcpus", "bootrom", "tags", "customer_metadata", "nics"] {
            assert_eq!(made[name], properties[name], "{name}");
        }
        assert_eq!(made["disks"][0]["max_iops"], 5);
        // A copy of the copy is the same.
        let mut again = made.clone();
        again.shift_remove("zpool");
        assert_eq!(copy(&made, &volumes), again);
    }
}
