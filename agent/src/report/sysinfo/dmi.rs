//! What the firmware says about the machine. Many VMs and boards say nothing, which is normal.

use serde_json::json;

use super::probe::Probe;
use super::{Group, Keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "dmi", collect: |probe| Box::pin(collect(probe)), unknown };

/// Keys, and the files under `/sys/class/dmi/id` that hold them.
const FIELDS: [(&str, &str); 6] = [
    ("Manufacturer", "sys_vendor"),
    ("Product", "product_name"),
    ("Serial Number", "product_serial"),
    ("SKU Number", "product_sku"),
    ("HW Version", "product_version"),
    ("HW Family", "product_family"),
];

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let mut found = Keys::new();
    for (key, file) in FIELDS {
        let text = probe.text(&format!("sys/class/dmi/id/{file}")).await;
        found.insert(key.to_owned(), json!(text.unwrap_or_default()));
    }
    Ok(found)
}

fn unknown(_probe: &Probe) -> Keys {
    FIELDS.iter().map(|(key, _)| ((*key).to_owned(), json!(""))).collect()
}
