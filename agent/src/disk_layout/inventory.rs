//! The disks of a host as `lsblk` tells them, and the names by which they are found again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Disk;

/// Devices that lie on other devices, or in memory.
const NOT_DISKS: [&str; 7] = ["loop", "zd", "zram", "ram", "nbd", "dm-", "drbd"];
/// Folders of links to devices, the best names first.
pub const LINKS: [&str; 2] = ["/dev/disk/by-id", "/dev/disk/by-path"];

/// A disk of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub disk: Disk,
    /// The name by which it is found again whatever the kernel calls it; `None`: it has none.
    pub path: Option<String>,
    /// What is written on it: kinds of file systems, partition tables and the like.
    pub signatures: BTreeSet<String>,
}

/// The disks in what `lsblk -J -b -o NAME,SIZE,TYPE,ROTA,RM,MODEL,VENDOR,TRAN,MOUNTPOINTS` printed, in
/// the order of their names; `links` are the links in [`LINKS`], each with the device that it leads to.
#[must_use]
pub fn read(listed: &Value, links: &[(String, String)]) -> Vec<Found> {
    let devices = listed.get("blockdevices").and_then(Value::as_array);
    let named = devices.into_iter().flatten().filter_map(disk);
    let sorted: BTreeMap<String, Disk> = named.map(|disk| (disk.name.clone(), disk)).collect();
    let found =
        |disk: Disk| Found { path: path(&disk.name, links), disk, signatures: BTreeSet::new() };
    sorted.into_values().map(found).collect()
}

/// The signatures in what `wipefs -n -J` printed, which is nothing where there is none.
///
/// # Errors
/// It is no JSON.
pub fn signatures(printed: &[u8]) -> Result<BTreeSet<String>, serde_json::Error> {
    if printed.trim_ascii().is_empty() {
        return Ok(BTreeSet::new());
    }
    let listed: Value = serde_json::from_slice(printed)?;
    let signatures = listed.get("signatures").and_then(Value::as_array).into_iter().flatten();
    let kind = |signature: &Value| signature.get("type")?.as_str().map(str::to_owned);
    Ok(signatures.filter_map(kind).collect())
}

fn disk(device: &Value) -> Option<Disk> {
    let text = |name: &str| {
        device.get(name).and_then(Value::as_str).map(str::trim).unwrap_or_default().to_owned()
    };
    let name = text("name");
    if name.is_empty() || text("type") != "disk" || NOT_DISKS.iter().any(|it| name.starts_with(it))
    {
        return None;
    }
    Some(Disk {
        vendor: text("vendor"),
        product: text("model"),
        kind: text("tran"),
        bytes: device.get("size").and_then(number).unwrap_or(0),
        solid_state: !switch(device.get("rota")),
        removable: switch(device.get("rm")),
        mounted: is_used(device),
        name,
    })
}

/// Something is mounted, or swapped to, or lies on it.
fn is_used(device: &Value) -> bool {
    let list = |name: &str| device.get(name).and_then(Value::as_array).into_iter().flatten();
    let is_mounted = list("mountpoints").any(|place| !place.is_null());
    let is_mounted = is_mounted || device.get("mountpoint").is_some_and(|place| !place.is_null());
    let is_part = |child: &Value| child.get("type").is_some_and(|kind| kind == "part");
    is_mounted || list("children").any(|child| !is_part(child) || is_used(child))
}

/// A World Wide Name is the disk's own, a serial number as well; a place can be another disk's later.
fn path(name: &str, links: &[(String, String)]) -> Option<String> {
    let rank = |link: &str| {
        let [by_id, _] = LINKS;
        match link.strip_prefix(by_id).map(|name| name.trim_start_matches('/')) {
            Some(name) if name.starts_with("wwn-") || name.starts_with("nvme-eui.") => 0,
            Some(_) => 1,
            None => 2,
        }
    };
    let own = links.iter().filter(|(_, device)| device == name);
    own.map(|(link, _)| link).min_by_key(|link| (rank(link), link.as_str())).cloned()
}

/// Older versions of lsblk print numbers and switches as strings.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn switch(value: Option<&Value>) -> bool {
    value.is_some_and(|value| value == true || value == "1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn links() -> Vec<(String, String)> {
        let link = |link: &str, device: &str| (link.to_owned(), device.to_owned());
        vec![
            link("/dev/disk/by-id/ata-ACME_1", "sda"),
            link("/dev/disk/by-id/wwn-0x5", "sda"),
            link("/dev/disk/by-id/wwn-0x5-part1", "sda1"),
            link("/dev/disk/by-id/virtio-S1", "vda"),
            link("/dev/disk/by-path/pci-0000:00:05.0", "vda"),
            link("/dev/disk/by-path/pci-0000:00:06.0", "vdb"),
        ]
    }

    #[test]
    fn disks_are_read_with_what_uses_them_and_their_best_names() {
        let listed = json!({ "blockdevices": [
            { "name": "vdc", "size": "5", "type": "disk", "rota": "1", "rm": "1" },
            { "name": "vdb", "size": 7, "type": "disk", "rota": true, "rm": false, "mountpoints": [null],
              "children": [{ "name": "vdb1", "type": "part", "mountpoints": [null, "[SWAP]"] }] },
            { "name": "vda", "size": 6, "type": "disk", "rota": true, "rm": false, "mountpoints": [null],
              "children": [{ "name": "vda1", "type": "part", "mountpoints": [null],
                             "children": [{ "name": "md0", "type": "raid1", "mountpoints": [null] }] }] },
            { "name": "sda", "size": 8, "type": "disk", "rota": false, "rm": false, "tran": "sata",
              "vendor": "ACME  ", "model": "Fast", "mountpoints": [null],
              "children": [{ "name": "sda1", "type": "part", "mountpoints": [null] }] },
            { "name": "sr0", "size": 9, "type": "rom" },
            { "name": "zd0", "size": 9, "type": "disk" },
            { "size": 9, "type": "disk" },
        ] });
        let found = read(&listed, &links());
        let shown: Vec<_> = found
            .iter()
            .map(|it| (it.disk.name.as_str(), it.disk.bytes, it.disk.mounted, it.path.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                ("sda", 8, false, Some("/dev/disk/by-id/wwn-0x5")),
                ("vda", 6, true, Some("/dev/disk/by-id/virtio-S1")),
                ("vdb", 7, true, Some("/dev/disk/by-path/pci-0000:00:06.0")),
                ("vdc", 5, false, None),
            ]
        );
        let sda = &found[0].disk;
        assert_eq!(
            (sda.vendor.as_str(), sda.product.as_str(), sda.kind.as_str()),
            ("ACME", "Fast", "sata")
        );
        assert!(sda.solid_state && !sda.removable && found[3].disk.removable);
        assert!(read(&json!([]), &[]).is_empty());
    }

    #[test]
    fn what_is_written_on_a_disk_is_named() {
        let printed = br#"{"signatures": [
            {"device":"vdb", "offset":"0x1fe", "type":"dos"},
            {"device":"vdb", "offset":"0x438", "type":"ext4", "uuid":"x", "label":null},
            {"device":"vdb", "offset":"0x3fe", "type":"dos"}
        ]}"#;
        let kinds = signatures(printed).unwrap();
        assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), ["dos", "ext4"]);
        assert!(signatures(b"\n").unwrap().is_empty());
        assert!(
            signatures(b"wipefs: error").is_err(),
            "nothing is taken for empty that can't be read"
        );
    }
}
