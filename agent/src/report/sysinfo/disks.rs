//! The host's disks.

use serde_json::{Value, json};

use super::probe::Probe;
use super::{Group, Keys, keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "disks", collect: |probe| Box::pin(collect(probe)), unknown };

const COLUMNS: &str = "NAME,SIZE,TYPE,ROTA,RM,MODEL,SERIAL,WWN,TRAN,VENDOR,MAJ:MIN";
/// Devices that lie on other devices, or in memory.
const NOT_DISKS: [&str; 6] = ["loop", "zd", "zram", "nbd", "dm-", "drbd"];
const BYTES_PER_GB: u64 = 1_000_000_000;

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let listed = probe.json(&["lsblk", "-J", "-b", "-d", "-o", COLUMNS]).await?;
    Ok(keys(json!({ "Disks": from_lsblk(&listed) })))
}

fn unknown(_probe: &Probe) -> Keys {
    keys(json!({ "Disks": {} }))
}

fn from_lsblk(listed: &Value) -> Keys {
    let devices = listed.get("blockdevices").and_then(Value::as_array);
    devices.into_iter().flatten().filter_map(disk).collect()
}

fn disk(device: &Value) -> Option<(String, Value)> {
    let name = device.get("name")?.as_str()?;
    let is_disk = device.get("type")?.as_str()? == "disk";
    let size_bytes = number(device.get("size")?).filter(|size| *size > 0)?;
    if !is_disk || NOT_DISKS.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let mut disk = keys(json!({
        "Size in GB": size_bytes / BYTES_PER_GB,
        "Rotational": switch(device.get("rota")),
        "Removable": switch(device.get("rm")),
    }));
    let texts = [("Model", "model"), ("Serial", "serial"), ("WWN", "wwn"), ("Transport", "tran")];
    for (key, column) in texts {
        let text = device.get(column).and_then(Value::as_str).map(str::trim);
        let text = text.filter(|text| !text.is_empty());
        disk.extend(text.map(|text| (key.to_owned(), json!(text))));
    }
    Some((name.to_owned(), Value::Object(disk)))
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
    use super::*;

    #[test]
    fn disks_are_told_from_what_lies_on_them() {
        let listed = json!({ "blockdevices": [
            {"name": "zram0", "size": 0, "type": "disk"},
            {"name": "loop0", "size": 5, "type": "loop"},
            {"name": "dm-0", "size": 5_000_000_000_u64, "type": "disk"},
            {"name": "sr0", "size": 5_000_000_000_u64, "type": "rom"},
            {"name": "vda", "size": 274_877_906_944_u64, "type": "disk", "rota": true, "rm": false,
             "model": null, "serial": null, "wwn": null, "tran": null},
            {"name": "sda", "size": "999999999999", "type": "disk", "rota": "0", "rm": "1",
             "model": "Disk  ", "serial": "S1", "wwn": "0x5", "tran": "sata"},
        ] });
        let expected = json!({
            "vda": {"Size in GB": 274, "Rotational": true, "Removable": false},
            "sda": {"Size in GB": 999, "Rotational": false, "Removable": true,
                    "Model": "Disk", "Serial": "S1", "WWN": "0x5", "Transport": "sata"},
        });
        assert_eq!(Value::Object(from_lsblk(&listed)), expected);
        assert!(from_lsblk(&json!([])).is_empty());
    }
}
