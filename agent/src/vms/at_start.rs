//! What a guest sees only when it starts, and what it runs with until then.

use std::collections::BTreeMap;

use muster_shared::vm::{self, Effect};
use serde_json::{Map, Value};

use super::VmRecord;

/// Whether the hypervisor reads a property that changed only when it starts.
#[must_use]
pub fn is_read_at_start(name: &str, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    match name {
        "disks" => return disks_at_start(old) != disks_at_start(new),
        "nics" => return nics_at_start(old) != nics_at_start(new),
        // A display that asks for a password can be given another one, and no other display any.
        "vnc_password" => return has_password(old) != has_password(new),
        _ => {}
    }
    // The guest has no use for the rest of it.
    let forwarded = name == "internal_metadata" && published(old) != published(new);
    forwarded || vm::property(name).is_some_and(|property| property.effect == Effect::AtStart)
}

/// The ports that a VM publishes, as it says.
#[must_use]
pub fn published(vm: &Map<String, Value>) -> Option<&Value> {
    vm.get("internal_metadata")?.get("muster:hostfwd")
}

fn has_password(vm: &Map<String, Value>) -> bool {
    vm.get("vnc_password").and_then(Value::as_str).is_some_and(|password| !password.is_empty())
}

/// The disks as far as the hypervisor reads them only when it starts.
fn disks_at_start(vm: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let at_start = |disk: &Map<String, Value>, name: &str| {
        if name == "size" {
            return !tells_its_size(disk);
        }
        let known = vm::DISK.iter().find(|property| property.name == name);
        known.is_none_or(|property| property.effect == Effect::AtStart)
    };
    let disks = vm.get("disks").and_then(Value::as_array).into_iter().flatten();
    let kept = |disk: &Map<String, Value>| {
        let members = disk.iter().filter(|(name, _)| at_start(disk, name));
        members.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    disks.filter_map(Value::as_object).map(kept).collect()
}

/// The NICs as far as the hypervisor or the guest reads them only when it starts.
fn nics_at_start(vm: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let at_start = |name: &String| {
        let known = vm::NIC.iter().find(|property| property.name == name);
        known.is_none_or(|property| property.effect == Effect::AtStart)
    };
    let nics = vm.get("nics").and_then(Value::as_array).into_iter().flatten();
    let kept = |nic: &Map<String, Value>| {
        let members = nic.iter().filter(|(name, _)| at_start(name));
        members.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    nics.filter_map(Value::as_object).map(kept).collect()
}

/// Whether the guest is told at once when a disk grows. On the other models it may read another size
/// when it looks for disks anew.
fn tells_its_size(disk: &Map<String, Value>) -> bool {
    matches!(disk.get("model").and_then(Value::as_str), None | Some("scsi" | "virtio"))
}

/// Notes what the guest runs with, before properties of its record change. What it was started with
/// stays noted, however often they change.
pub fn keep(record: &mut VmRecord, names: &[String]) {
    for name in names {
        let value = record.properties.get(name).cloned().unwrap_or_default();
        record.started_with.entry(name.as_str()).or_insert(value);
    }
}

/// The properties with which the guest runs.
#[must_use]
pub fn in_force(record: &VmRecord) -> Map<String, Value> {
    let mut properties = record.properties.clone();
    for (name, value) in &record.started_with {
        match value {
            Value::Null => drop(properties.shift_remove(name)),
            value => drop(properties.insert(name.clone(), value.clone())),
        }
    }
    properties
}

/// Notes the devices (`disks`, `nics`) that the guest has now, of which it knows this.
pub fn keep_devices(record: &mut VmRecord, name: &str, known: Vec<Value>) {
    let of = |devices: Value| Map::from_iter([(name.to_owned(), devices)]);
    let now = of(record.properties.get(name).cloned().unwrap_or_default());
    let known = of(known.into());
    match is_read_at_start(name, &known, &now) {
        true => record.started_with.extend(known),
        false => drop(record.started_with.remove(name)),
    }
}

/// What a guest that runs has of the properties that wait for its next start: numbers and switches
/// as they are, and `null` for anything else, which may be large or secret. What it has of its memory may
/// be known better than by what it was started with.
#[must_use]
pub fn running_with(record: &VmRecord, memory_mib: Option<u64>) -> BTreeMap<String, Value> {
    let waits = |name: &str, value: &Value| {
        let now = record.properties.get(name).unwrap_or(&Value::Null);
        let only = |value: &Value| Map::from_iter([(name.to_owned(), value.clone())]);
        now != value && is_read_at_start(name, &only(value), &only(now))
    };
    let waiting = record.started_with.iter().filter(|(name, value)| waits(name, value));
    let shown = |value: &Value| match value {
        Value::Number(_) | Value::Bool(_) => value.clone(),
        _ => Value::Null,
    };
    let mut waiting: BTreeMap<String, Value> =
        waiting.map(|(name, value)| (name.clone(), shown(value))).collect();
    if let Some(memory) = memory_mib {
        waiting.remove("ram");
        let differs = record.number("ram").is_some_and(|ram| ram != memory);
        waiting.extend(differs.then(|| ("ram".to_owned(), Value::from(memory))));
    }
    waiting
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vms::sim::record;

    fn changed(started_with: Value, properties: Value) -> BTreeMap<String, Value> {
        let (Value::Object(started_with), Value::Object(properties)) = (started_with, properties)
        else {
            panic!("objects are needed")
        };
        running_with(&VmRecord { started_with, properties, ..record(7) }, None)
    }

    #[test]
    fn what_waits_is_told_without_what_may_be_large_or_secret() {
        let started = json!({ "ram": 1024, "vcpus": null, "vnc_password": "x", "hostname": "a" });
        let now = json!({ "ram": 2048, "vcpus": 2, "vnc_password": "", "hostname": "a" });
        let want = json!({ "ram": 1024, "vcpus": null, "vnc_password": null });
        assert_eq!(json!(changed(started, now)), want);
    }

    #[test]
    fn of_objects_and_lists_only_what_the_guest_sees_waits() {
        let metadata = |ports: &str, other: u8| json!({ "muster:hostfwd": ports, "n": other });
        let waits = |old: Value, new: Value| !changed(old, new).is_empty();
        let of = |metadata: Value| json!({ "internal_metadata": metadata });
        assert!(!waits(of(metadata("tcp::2222-:22", 1)), of(metadata("tcp::2222-:22", 2))));
        assert!(waits(of(metadata("tcp::2222-:22", 1)), of(metadata("", 1))));
        let disk = |model: &str, max_iops: u64| json!({ "disks": [{ "model": model, "max_iops": max_iops }] });
        assert!(!waits(disk("ide", 1), disk("ide", 2)));
        assert!(waits(disk("ide", 1), disk("virtio", 1)));
        let sized = |model: &str, size: u64| json!({ "disks": [{ "model": model, "size": size }] });
        let nic = |name: &str, value: &str| json!({ "nics": [{ "mac": "a", name: value }] });
        assert!(!waits(nic("allowed_ips", "a"), nic("allowed_ips", "b")));
        assert!(waits(nic("model", "a"), nic("model", "b")));
        let password = |password: &str| json!({ "vnc_password": password });
        assert!(!waits(password("a"), password("b")) && waits(password("a"), password("")));
        assert!(waits(json!({ "vnc_password": null }), password("b")));
        for (model, at_start) in [("virtio", false), ("scsi", false), ("nvme", true), ("ide", true)]
        {
            assert_eq!(waits(sized(model, 1), sized(model, 2)), at_start, "{model}");
        }
    }

    #[test]
    fn nics_that_a_guest_was_given_while_it_runs_do_not_wait() {
        let mut record = record(7);
        let nic = |mac: &str, ips: &str| json!({ "mac": mac, "ips": [ips] });
        record.properties.insert("nics".to_owned(), json!([nic("a", "dhcp"), nic("b", "dhcp")]));
        keep_devices(&mut record, "nics", vec![nic("a", "dhcp")]);
        assert!(running_with(&record, None).contains_key("nics"));
        assert_eq!(in_force(&record)["nics"], json!([nic("a", "dhcp")]));
        keep_devices(&mut record, "nics", vec![nic("a", "dhcp"), nic("b", "dhcp")]);
        assert_eq!(running_with(&record, None), BTreeMap::new());
        keep_devices(&mut record, "nics", vec![nic("a", "10.0.0.1/24"), nic("b", "dhcp")]);
        assert!(running_with(&record, None).contains_key("nics"));
    }

    #[test]
    fn what_a_guest_gave_back_does_not_wait() {
        let mut record = record(7);
        record.properties.insert("ram".to_owned(), json!(512));
        record.started_with.insert("ram".to_owned(), json!(1024));
        let has = |memory_mib| running_with(&record, memory_mib).get("ram").cloned();
        assert_eq!(has(None), Some(json!(1024)));
        assert_eq!(has(Some(700)), Some(json!(700)), "it is on the way");
        assert_eq!(has(Some(512)), None);
        // Nobody has changed it.
        let mut plain = record.clone();
        plain.started_with.clear();
        assert_eq!(running_with(&plain, Some(400))["ram"], 400);
    }

    #[test]
    fn the_first_value_stays_noted() {
        let mut record = record(7);
        for ram in [1024, 2048, 512] {
            record.properties.insert("ram".to_owned(), json!(ram));
            keep(&mut record, &["ram".to_owned()]);
        }
        assert_eq!(running_with(&record, None)["ram"], 1024);
        record.properties.insert("ram".to_owned(), json!(1024));
        assert_eq!(running_with(&record, None), BTreeMap::new(), "it is as it was");
    }
}
