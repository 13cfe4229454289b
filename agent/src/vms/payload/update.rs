//! What a client may change of a VM: from its properties and an update payload to its new
//! properties. Pure.

mod disks;

use muster_shared::vm::{
    self, Effect, INITIAL, Kind, MAX_DEVICES, NETWORK_RECORD, NIC, Property, TOLD, is_flat,
    json_bytes,
};
use serde_json::{Map, Value, json};

use super::{
    BY_AGENT, Problems, addresses, bound, checked, complete, devices, is_container, mac, nic,
};
use crate::failure::TaskFailure;
use crate::vm_record::routes;

/// Objects that are changed member by member.
const OBJECTS: &[&str] = &["tags", "customer_metadata", "internal_metadata", "routes"];
/// Random addresses that are drawn before one is free; two are the same once in 10^12.
const MAC_DRAWS: usize = 16;

/// The new properties. `fresh_mac` gives addresses to NICs that come without one.
///
/// # Errors
/// `InvalidVmPayload` with all that is wrong.
pub fn update(
    old: &Map<String, Value>,
    params: &Map<String, Value>,
    mut fresh_mac: impl FnMut() -> String,
) -> Result<Map<String, Value>, TaskFailure> {
    let mut new = old.clone();
    let mut problems = Problems::default();
    let is_container = is_container(old);
    let effect = |change: &Property| change.effect_on(is_container);
    for (name, value) in params {
        if let Some(Effect::Refused(why)) = vm::change(name).map(effect) {
            problems.refuse_unless_nothing(name.clone(), value, why);
        } else if TOLD.contains(&name.as_str()) {
            problems.refuse(name.clone(), BY_AGENT);
        } else if let Some(known) = vm::property(name) {
            set_property(&mut new, known, value, &mut problems);
        }
    }
    for object in OBJECTS {
        members(&mut new, object, params, &mut problems);
    }
    nics(&mut new, params, &mut fresh_mac, &mut problems);
    disks::change(&mut new, params, &mut problems);
    memory(old, params, &mut new);
    complete(&mut new, &mut problems);
    let number = |name: &str| new.get(name).and_then(Value::as_u64).unwrap_or(0);
    if number("max_locked_memory") > number("max_physical_memory") {
        problems.bad("max_locked_memory");
    }
    bound(&new, json_bytes(old), &mut problems);
    if problems.is_empty() { Ok(new) } else { Err(problems.into()) }
}

/// `internal_metadata` with new values, the only update that comes with a start.
///
/// # Errors
/// `InvalidVmPayload`: it becomes too large.
pub fn internal_metadata(
    old: &Map<String, Value>,
    set: &Map<String, Value>,
) -> Result<Value, TaskFailure> {
    let mut new = old.clone();
    let mut problems = Problems::default();
    let change = Map::from_iter([("set_internal_metadata".to_owned(), Value::Object(set.clone()))]);
    members(&mut new, "internal_metadata", &change, &mut problems);
    bound(&new, json_bytes(old), &mut problems);
    let metadata = new.shift_remove("internal_metadata").unwrap_or_default();
    if problems.is_empty() { Ok(metadata) } else { Err(problems.into()) }
}

fn set_property(
    new: &mut Map<String, Value>,
    property: &Property,
    value: &Value,
    problems: &mut Problems,
) {
    let name = property.name;
    match property.effect_on(is_container(new)) {
        Effect::Dropped | Effect::Ignored(_) => return,
        Effect::Refused(why) => {
            return problems.refuse_unless_nothing(name.to_owned(), value, why);
        }
        Effect::Live | Effect::AtStart | Effect::Kept(_) => {}
    }
    // Fixed for a VM's life, or changed only through members of their own (`set_tags`,
    // `add_nics`).
    if INITIAL.contains(property) {
        return problems.refuse(name, "it is not changed as a whole, or never");
    }
    let zero = property.zero_clears() && *value == json!(0);
    if zero || value.is_null() || *value == json!("") {
        new.shift_remove(name);
        return;
    }
    match checked(property, value, problems) {
        Some(value) => drop(new.insert(name.to_owned(), value)),
        None => problems.bad(name),
    }
}

/// `set_<object>` and `remove_<object>`.
fn members(
    new: &mut Map<String, Value>,
    object: &str,
    params: &Map<String, Value>,
    problems: &mut Problems,
) {
    let (set, remove) = (format!("set_{object}"), format!("remove_{object}"));
    let mut target = new.get(object).and_then(Value::as_object).cloned().unwrap_or_default();
    match params.get(&remove) {
        None | Some(Value::Null) => {}
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            target.retain(|name, _| !names.iter().any(|gone| gone == name));
        }
        Some(_) => problems.bad(remove),
    }
    match params.get(&set) {
        None | Some(Value::Null) => {}
        Some(value @ Value::Object(_)) if object == "routes" && !routes::are_usable(value) => {
            problems.bad_because(set.as_str(), routes::FORM);
        }
        Some(value @ Value::Object(members)) if is_flat(value) => target.extend(members.clone()),
        Some(_) => problems.bad(set.as_str()),
    }
    let before_bytes = new.get(object).map_or(0, json_bytes);
    let bytes = json_bytes(&target);
    let Some(Kind::FlatObject(most)) = vm::property(object).map(|known| known.kind) else { return };
    if bytes > most && bytes > before_bytes {
        problems.bad(set);
    }
    if new.contains_key(object) || !target.is_empty() {
        new.insert(object.to_owned(), Value::Object(target));
    }
}

fn nics(
    new: &mut Map<String, Value>,
    params: &Map<String, Value>,
    fresh_mac: &mut impl FnMut() -> String,
    problems: &mut Problems,
) {
    let mut nics = new.get("nics").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(gone) = given(params, "remove_nics") {
        match gone.as_array().map(|macs| macs.iter().map(mac).collect::<Option<Vec<_>>>()) {
            Some(Some(macs)) => nics.retain(|nic| !macs.contains(&nic["mac"])),
            _ => problems.bad("remove_nics"),
        }
    }
    if let Some(changes) = given(params, "update_nics") {
        for (index, change) in changes.as_array().into_iter().flatten().enumerate() {
            let wanted = change.get("mac").and_then(mac);
            match nics.iter_mut().find(|nic| wanted.as_ref() == Some(&nic["mac"])) {
                Some(Value::Object(known)) => merge_nic(known, change, index, problems),
                _ => problems.bad(format!("update_nics.{index}.mac")),
            }
        }
        if !changes.is_array() {
            problems.bad("update_nics");
        }
    }
    if let Some(added) = given(params, "add_nics") {
        match devices("add_nics", added, problems, nic) {
            Some(Value::Array(added)) => {
                for mut nic in added {
                    if nic.get("mac").is_none() {
                        let taken = |mac: &Value| nics.iter().any(|nic| nic["mac"] == *mac);
                        let mut fresh = (0..MAC_DRAWS).map(|_| json!(fresh_mac()));
                        nic["mac"] = fresh.find(|mac| !taken(mac)).unwrap_or_default();
                    }
                    // The same NIC again is no second one: requests are repeated.
                    let known = nics.iter().position(|known| known["mac"] == nic["mac"]);
                    if nic.get("interface").is_none() {
                        let own = known.and_then(|at| nics[at].get("interface").cloned());
                        nic["interface"] = own.unwrap_or_else(|| json!(free_interface(&nics)));
                    }
                    match known {
                        Some(at) => nics[at] = nic,
                        None => nics.push(nic),
                    }
                }
            }
            _ => problems.bad("add_nics"),
        }
    }
    if nics.len() > MAX_DEVICES {
        problems.bad("add_nics");
    }
    new.insert("nics".to_owned(), Value::Array(nics));
}

fn merge_nic(
    known: &mut Map<String, Value>,
    change: &Value,
    index: usize,
    problems: &mut Problems,
) {
    let Some(change) = change.as_object() else { return };
    known.retain(|name, _| !change.get(name).is_some_and(Value::is_null));
    // The rest is as it was recorded, by whichever rules.
    let path = format!("update_nics.{index}");
    known.extend(super::members(NIC, NETWORK_RECORD, &path, change, problems));
    addresses::sync(known, change);
    if !known.contains_key("nic_tag") {
        problems.missing_properties.push(format!("{path}.nic_tag"));
    }
}

fn free_interface(nics: &[Value]) -> String {
    let taken = |name: &String| nics.iter().any(|nic| nic["interface"] == name.as_str());
    let mut names = (0..).map(|number| format!("net{number}"));
    names.find(|name| !taken(name)).unwrap_or_default()
}

/// What follows from another size keeps its distance.
fn memory(old: &Map<String, Value>, params: &Map<String, Value>, new: &mut Map<String, Value>) {
    let number = |map: &Map<String, Value>, name: &str| map.get(name).and_then(Value::as_u64);
    let mut follow = |name: &str, leader: &str| {
        let is_given = given(params, name).is_some();
        let (Some(own), Some(before)) = (number(old, name), number(old, leader)) else { return };
        let Some(after) = number(new, leader).filter(|after| !is_given && *after != before) else {
            return;
        };
        let moved = i128::from(own) - i128::from(before) + i128::from(after);
        new.insert(name.to_owned(), json!(u64::try_from(moved).unwrap_or(0)));
    };
    follow("max_physical_memory", "ram");
    follow("max_locked_memory", "max_physical_memory");
    follow("max_swap", "max_physical_memory");
}

fn given<'a>(params: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    params.get(name).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("an object is needed") };
        object
    }

    fn vm() -> Map<String, Value> {
        let params = json!({
            "brand": "kvm", "ram": 256, "alias": "one", "tags": { "a": 1, "b": 2 },
            "disks": [{ "size": 100 }], "cpu_cap": 100,
            "nics": [{ "nic_tag": "admin", "mac": "02:00:00:00:00:01" }],
        });
        let mut vm = super::super::create(&object(params)).unwrap();
        vm["disks"][0]["path"] = json!("/vols/disk0");
        vm
    }

    fn updated(params: Value) -> Map<String, Value> {
        update(&vm(), &object(params), || "02:00:00:00:00:ff".to_owned()).unwrap()
    }

    #[track_caller]
    fn refused(params: Value, list: &str, name: &str) {
        let failure = update(&vm(), &object(params), String::new).unwrap_err();
        assert_eq!(failure.code, "InvalidVmPayload");
        let details = failure.details.unwrap();
        assert!(details[list].as_array().unwrap().contains(&json!(name)), "{details}");
    }

    #[test]
    fn nothing_changes_nothing() {
        assert_eq!(updated(json!({ "uuid": "x", "unknown": 1, "server_uuid": "y" })), vm());
    }

    #[test]
    fn properties_are_set_cleared_and_kept() {
        let new = updated(json!({
            "alias": "two", "ram": "512", "cpu_cap": 0, "set_tags": { "c": true },
            "remove_tags": ["a"], "set_customer_metadata": { "k": "v" }, "resolvers": "1.1.1.1",
        }));
        assert_eq!(new["alias"], "two");
        assert_eq!((&new["ram"], &new["max_physical_memory"]), (&json!(512), &json!(512 + 1024)));
        assert_eq!(new["max_locked_memory"], 512 + 1024);
        assert!(!new.contains_key("cpu_cap"));
        assert_eq!(new["tags"], json!({ "b": 2, "c": true }));
        assert_eq!(new["customer_metadata"], json!({ "k": "v" }));
        assert_eq!(new["resolvers"], json!(["1.1.1.1"]));
        assert!(!updated(json!({ "alias": null })).contains_key("alias"));
    }

    #[test]
    fn nics_come_change_and_go() {
        let new = updated(json!({ "add_nics": [{ "nic_tag": "external" }] }));
        assert_eq!(new["nics"][1]["mac"], "02:00:00:00:00:ff");
        assert_eq!(new["nics"][1]["interface"], "net1");
        assert_eq!(new["nics"][1]["model"], "virtio");
        let again = json!({ "nic_tag": "external", "mac": "02:00:00:00:00:01" });
        let new = updated(json!({ "add_nics": [again] }));
        assert_eq!((&new["nics"][0]["interface"], &new["nics"][1]), (&json!("net0"), &Value::Null));
        let change = json!({ "mac": "02:00:00:00:00:01", "mtu": 1400, "model": null });
        let new = updated(json!({ "update_nics": [change] }));
        assert_eq!(new["nics"][0]["mtu"], 1400);
        let change = json!({ "mac": "02:00:00:00:00:01", "ips": ["10.0.0.5/24"] });
        let new = updated(json!({ "update_nics": [change] }));
        assert_eq!(new["nics"][0]["ip"], "10.0.0.5");
        assert_eq!(new["nics"][0]["netmask"], "255.255.255.0");
        let new = updated(json!({ "remove_nics": ["02:00:00:00:00:01"] }));
        assert_eq!(new["nics"], json!([]));
        refused(
            json!({ "update_nics": [{ "mac": "02:00:00:00:00:09" }] }),
            "bad_values",
            "update_nics.0.mac",
        );
    }

    #[test]
    fn a_disk_grows_and_never_shrinks() {
        let change =
            |size: u64| json!({ "update_disks": [{ "path": "/vols/disk0", "size": size }] });
        assert_eq!(updated(change(200))["disks"][0]["size"], 200);
        refused(change(50), "bad_values", "update_disks.0.size");
        let other = json!({ "update_disks": [{ "path": "/etc", "size": 200 }] });
        refused(other.clone(), "bad_values", "update_disks.0.path");
        for (change, why) in [(change(50), "disks never shrink"), (other, "has this path")] {
            let Value::Object(change) = change else { panic!("an object is needed") };
            let failure = update(&vm(), &change, String::new).unwrap_err();
            assert!(failure.message.contains(why), "{}", failure.message);
        }
    }

    #[test]
    fn what_is_fixed_or_missing_is_named() {
        refused(json!({ "brand": "bhyve" }), "bad_properties", "brand");
        refused(json!({ "tags": {} }), "bad_properties", "tags");
        refused(json!({ "add_disks": [{}] }), "missing_properties", "add_disks.0.size");
        refused(json!({ "qemu_opts": "-x" }), "bad_properties", "qemu_opts");
        refused(json!({ "vnc_password": "123456789" }), "bad_values", "vnc_password");
        let nic = json!({ "mac": "02:00:00:00:00:01", "speed": 1, "vlan_id": "x" });
        refused(json!({ "update_nics": [nic] }), "bad_properties", "update_nics.0.speed");
        refused(json!({ "update_nics": [nic] }), "bad_values", "update_nics.0.vlan_id");
        assert_eq!(updated(json!({ "add_disks": [], "docker": false })), vm());
        refused(json!({ "state": "running" }), "bad_properties", "state");
        refused(json!({ "ram": 1 }), "bad_values", "ram");
        refused(json!({ "set_tags": { "a": [] } }), "bad_values", "set_tags");
        refused(json!({ "max_physical_memory": 100 }), "bad_values", "max_physical_memory");
    }

    #[test]
    fn what_becomes_too_large_is_named() {
        let large = json!({ "b": "x".repeat(vm::MAX_TAGS_BYTES) });
        refused(json!({ "set_tags": large }), "bad_values", "set_tags");
        let long = "x".repeat(vm::MAX_METADATA_BYTES - 100);
        let set = |name: &str| Map::from_iter([(name.to_owned(), json!(long))]);
        refused(
            json!({ "set_customer_metadata": { "a": long, "b": long } }),
            "bad_values",
            "set_customer_metadata",
        );
        let mut one = vm();
        one["internal_metadata"] = internal_metadata(&one, &set("a")).unwrap();
        let failure = internal_metadata(&one, &set("b")).unwrap_err();
        assert_eq!(failure.code, "InvalidVmPayload");
        assert!(failure.message.contains("set_internal_metadata"), "{failure}");
        // What was made too large before the limit can be changed and made smaller.
        one["tags"] = json!({ "a": 1, "b": "x".repeat(vm::MAX_TAGS_BYTES) });
        for change in [json!({ "alias": "two" }), json!({ "remove_tags": ["a"] })] {
            update(&one, &object(change), String::new).unwrap();
        }
        one["nics"][0]["allowed_ips"] = json!(["1".repeat(vm::MAX_VM_BYTES)]);
        refused(json!({ "update_nics": one["nics"] }), "bad_values", "nics");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z0-9:]{0,17}".prop_map(Value::from),
            Just(json!([{ "mac": "02:00:00:00:00:01", "nic_tag": "admin" }])),
            Just(json!([{ "path": "/vols/disk0", "size": 300 }])),
            Just(json!({ "a": 1 })),
            Just(json!(["a", "02:00:00:00:00:01"])),
        ]
    }

    proptest! {
        /// The same update again changes nothing more.
        #[test]
        fn an_update_is_absolute(
            names in prop::collection::vec(prop::sample::select(vec![
                "alias", "ram", "vcpus", "quota", "cpu_cap", "set_tags", "remove_tags",
                "add_nics", "update_nics", "remove_nics", "update_disks", "remove_disks",
                "max_physical_memory",
                "max_swap", "hostname", "autoboot", "resolvers", "vnc_port",
            ]), 0..5),
            values in prop::collection::vec(any_value(), 5),
        ) {
            let params: Map<String, Value> =
                names.iter().map(|name| (*name).to_owned()).zip(values).collect();
            let mac = || "02:00:00:00:00:ee".to_owned();
            if let Ok(once) = update(&vm(), &params, mac)
                && !params.contains_key("add_nics")
                && let Ok(twice) = update(&once, &params, mac)
            {
                prop_assert_eq!(twice, once);
            }
        }
    }
}
