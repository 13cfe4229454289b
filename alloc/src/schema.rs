//! Whether a server's record is usable, and the first fault if it isn't
//! (sdc-designation `hard-filter-invalid-servers`).

use serde_json::{Map, Value};

use crate::validate::{is_uuid, wrong_type};

type Check = Result<(), String>;

const UUID_PATTERN: &str = "/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/";
const IPV4_PATTERN: &str = r"/^(?:[0-9]{1,3}\.){3}[0-9]{1,3}$/";

/// The sizes that a server must have, in the order in which they are checked, each with its least
/// value.
pub(crate) const FIGURES: [(&str, f64); 10] = [
    ("memory_available_bytes", 0.0),
    ("memory_total_bytes", 1.0),
    ("disk_pool_size_bytes", 1.0),
    ("disk_pool_alloc_bytes", 0.0),
    ("disk_system_used_bytes", 0.0),
    ("disk_installed_images_used_bytes", 0.0),
    ("disk_cores_quota_used_bytes", 0.0),
    ("disk_zone_quota_bytes", 0.0),
    ("disk_kvm_quota_bytes", 0.0),
    ("disk_kvm_zvol_volsize_bytes", 0.0),
];

fn missing(path: &str) -> String {
    format!("property \"{path}\": is missing and it is required")
}

fn integer(path: &str, value: &Value, least: f64) -> Check {
    match value.as_f64() {
        Some(x) if x.fract() == 0.0 => minimum(path, x, least),
        _ => Err(wrong_type(path, value, "integer")),
    }
}

fn minimum(path: &str, x: f64, least: f64) -> Check {
    if x < least {
        return Err(format!("property \"{path}\": must have a minimum value of {least}"));
    }
    Ok(())
}

fn boolean(path: &str, value: &Value) -> Check {
    if value.is_boolean() { Ok(()) } else { Err(wrong_type(path, value, "boolean")) }
}

fn required<'a>(map: &'a Map<String, Value>, path: &str, key: &str) -> Result<&'a Value, String> {
    map.get(key).ok_or_else(|| missing(path))
}

fn pattern(path: &str, matches: bool, pattern: &str) -> Check {
    if matches {
        return Ok(());
    }
    Err(format!("property \"{path}\": does not match the regex pattern {pattern}"))
}

fn filled(path: &str, value: &Value) -> Check {
    match value.as_str() {
        Some("") => Err(format!("property \"{path}\": must be at least 1 characters long")),
        Some(_) => Ok(()),
        None => Err(wrong_type(path, value, "string")),
    }
}

/// The uuid, which is checked before the sizes.
pub(crate) fn check_uuid(record: &Map<String, Value>) -> Check {
    let value = required(record, "uuid", "uuid")?;
    let text = value.as_str().ok_or_else(|| wrong_type("uuid", value, "string"))?;
    pattern("uuid", is_uuid(text), UUID_PATTERN)
}

/// One of [`FIGURES`].
pub(crate) fn check_figure(name: &str, value: Option<&Value>, least: f64) -> Check {
    integer(name, value.ok_or_else(|| missing(name))?, least)
}

/// All that is checked after the sizes, VMs excepted.
pub(crate) fn check_rest(record: &Map<String, Value>) -> Check {
    boolean("reserved", required(record, "reserved", "reserved")?)?;
    boolean("setup", required(record, "setup", "setup")?)?;
    let ratio = required(record, "reservation_ratio", "reservation_ratio")?;
    number_between("reservation_ratio", ratio, 1.0)?;
    if let Some(ratios) = record.get("overprovision_ratios") {
        check_ratios(ratios)?;
    }
    let sysinfo = required(record, "sysinfo", "sysinfo")?;
    let Value::Object(sysinfo) = sysinfo else {
        return Err(wrong_type("sysinfo", sysinfo, "object"));
    };
    check_sysinfo(sysinfo)?;
    match record.get("traits") {
        // The reference's own records hold null here for "none".
        None | Some(Value::Null | Value::Object(_) | Value::Array(_)) => Ok(()),
        Some(other) => Err(wrong_type("traits", other, "object")),
    }
}

fn number_between(path: &str, value: &Value, most: f64) -> Check {
    let x = value.as_f64().ok_or_else(|| wrong_type(path, value, "number"))?;
    minimum(path, x, 0.0)?;
    if x > most {
        return Err(format!("property \"{path}\": must have a maximum value of {most}"));
    }
    Ok(())
}

fn check_ratios(ratios: &Value) -> Check {
    let Value::Object(map) = ratios else {
        return Err(wrong_type("overprovision_ratios", ratios, "object"));
    };
    for name in ["ram", "disk", "cpu", "io", "net"] {
        if let Some(value) = map.get(name) {
            number_between(&format!("overprovision_ratios.{name}"), value, f64::INFINITY)?;
        }
    }
    let known = |key: &String| ["ram", "disk", "cpu", "io", "net"].contains(&key.as_str());
    match map.keys().find(|key| !known(key)) {
        None => Ok(()),
        Some(key) => Err(format!("property \"overprovision_ratios.{key}\": unsupported property")),
    }
}

fn check_sysinfo(sysinfo: &Map<String, Value>) -> Check {
    let path = |key: &str| format!("sysinfo.{key}");
    let optional = |key: &str, check: &dyn Fn(&str, &Value) -> Check| match sysinfo.get(key) {
        None => Ok(()),
        Some(value) => check(&path(key), value),
    };
    optional("Bhyve Capable", &boolean)?;
    optional("Bhyve Max Vcpus", &|path, value| integer(path, value, 0.0))?;
    for key in
        ["CPU Total Cores", "CPU Socket Count", "CPU Core Count", "CPU Online Count", "CPU Count"]
    {
        optional(key, &|path, value| integer(path, value, 1.0))?;
    }
    optional("Admin NIC Tag", &|path, value| match value {
        Value::String(_) => Ok(()),
        other => Err(wrong_type(path, other, "string")),
    })?;
    optional("Admin IP", &|path, value| {
        let ip = value.as_str().ok_or_else(|| wrong_type(path, value, "string"))?;
        // What agents say of a node that has none. The reference's nodes always have one.
        if ip.is_empty() {
            return Ok(());
        }
        let quad = ip.split('.').count() == 4
            && ip.split('.').all(|part| {
                (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
            });
        pattern(path, quad, IPV4_PATTERN)
    })?;
    optional("HVM API", &boolean)?;
    check_interfaces(required(sysinfo, &path("Network Interfaces"), "Network Interfaces")?)?;
    filled(&path("Live Image"), required(sysinfo, &path("Live Image"), "Live Image")?)?;
    optional("SDC Version", &filled)
}

fn check_interfaces(value: &Value) -> Check {
    const PATH: &str = "sysinfo.Network Interfaces";
    let Value::Object(interfaces) = value else { return Err(wrong_type(PATH, value, "object")) };
    for (name, interface) in interfaces {
        let path = format!("{PATH}.{name}");
        let Value::Object(interface) = interface else {
            return Err(wrong_type(&path, interface, "object"));
        };
        let status_path = format!("{path}.Link Status");
        let status = required(interface, &status_path, "Link Status")?;
        if !matches!(status.as_str(), Some("up" | "down" | "unknown")) {
            return Err(format!(
                "property \"{status_path}\": does not have a value in the enumeration up, down, \
                 unknown"
            ));
        }
        let tags_path = format!("{path}.NIC Names");
        let tags = required(interface, &tags_path, "NIC Names")?;
        let Value::Array(tags) = tags else { return Err(wrong_type(&tags_path, tags, "array")) };
        for (i, tag) in tags.iter().enumerate() {
            filled(&format!("{tags_path}[{i}]"), tag)?;
        }
    }
    Ok(())
}

/// One VM of a server; VMs are there only after `load-server-vms`.
pub(crate) fn check_vm(uuid: &str, vm: &Map<String, Value>) -> Check {
    let path = |key: &str| format!("vms.{uuid}.{key}");
    let owner = required(vm, &path("owner_uuid"), "owner_uuid")?;
    let is_owner = is_uuid(owner.as_str().unwrap_or_default());
    pattern(&path("owner_uuid"), is_owner, UUID_PATTERN)?;
    let memory = required(vm, &path("max_physical_memory"), "max_physical_memory")?;
    integer(&path("max_physical_memory"), memory, 1.0)?;
    if let Some(quota) = vm.get("quota") {
        number_between(&path("quota"), quota, f64::INFINITY)?;
    }
    if let Some(cap) = vm.get("cpu_cap") {
        integer(&path("cpu_cap"), cap, 1.0)?;
    }
    filled(&path("state"), required(vm, &path("state"), "state")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> Value {
        json!({
            "uuid": "be3c70b8-9752-4e8d-ab59-b7c0fb1e032c", "reserved": false, "setup": true,
            "reservation_ratio": 0.15, "traits": {},
            "sysinfo": {"Live Image": "20230101T000105Z",
                        "Network Interfaces": {"net0": {"Link Status": "up", "NIC Names": ["a"]}}},
        })
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Value), want: &str) {
        let mut record = record();
        change(&mut record);
        let map = record.as_object().expect("an object");
        let error = check_uuid(map).and_then(|()| check_rest(map)).expect_err("it is bad");
        assert!(error.starts_with(&format!("property \"{want}\": ")), "{error}");
    }

    #[test]
    fn a_good_record_passes() {
        let record = record();
        let map = record.as_object().expect("an object");
        assert_eq!(check_uuid(map), Ok(()));
        assert_eq!(check_rest(map), Ok(()));
    }

    #[test]
    fn a_node_without_an_admin_ip_is_none_the_worse() {
        let mut record = record();
        record["sysinfo"]["Admin IP"] = json!("");
        assert_eq!(check_rest(record.as_object().expect("an object")), Ok(()));
        check(|r| r["sysinfo"]["Admin IP"] = json!("10.0.0"), "sysinfo.Admin IP");
    }

    #[test]
    fn faults_name_their_path() {
        check(|r| r["uuid"] = json!("X"), "uuid");
        check(|r| r["reserved"] = json!("false"), "reserved");
        check(|r| r["reservation_ratio"] = json!(1.5), "reservation_ratio");
        check(|r| r["overprovision_ratios"] = json!({"gpu": 1}), "overprovision_ratios.gpu");
        check(|r| r["sysinfo"]["CPU Total Cores"] = json!("8"), "sysinfo.CPU Total Cores");
        check(
            |r| r["sysinfo"]["Network Interfaces"]["net0"]["Link Status"] = json!("sideways"),
            "sysinfo.Network Interfaces.net0.Link Status",
        );
        check(
            |r| r["sysinfo"]["Network Interfaces"]["net0"]["NIC Names"] = json!(["a", 5]),
            "sysinfo.Network Interfaces.net0.NIC Names[1]",
        );
        check(|r| r["sysinfo"]["Live Image"] = json!(""), "sysinfo.Live Image");
        check(|r| r["traits"] = json!("ssd"), "traits");
    }
}
