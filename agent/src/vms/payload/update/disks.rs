//! Disks that come, change and go: `add_disks`, `update_disks` and `remove_disks`, these two by path.

use std::collections::BTreeSet;

use muster_shared::lenient;
use muster_shared::vm::MAX_DEVICES;
use serde_json::{Map, Value, json};

use super::super::{Problems, devices, disk};
use super::given;
use crate::vm_record::disks::{numbered, numbers, set_number};

/// Of a disk that exists.
const MEMBERS: &[&str] =
    &["boot", "compression", "max_iops", "max_mib_per_second", "model", "notrim", "size", "uuid"];
/// The number of the disk that stays.
const BOOT_DISK: u32 = 0;

pub(super) fn change(
    new: &mut Map<String, Value>,
    params: &Map<String, Value>,
    problems: &mut Problems,
) {
    let mut disks = new.get("disks").and_then(Value::as_array).cloned().unwrap_or_default();
    // A new disk has none of these, also of one that goes: its file may still be there.
    let taken: BTreeSet<u32> = numbers(&disks).into_iter().collect();
    if let Some(gone) = given(params, "remove_disks") {
        remove(&mut disks, gone, problems);
    }
    if let Some(changes) = given(params, "update_disks") {
        update(&mut disks, changes, problems);
    }
    if let Some(added) = given(params, "add_disks") {
        add(&mut disks, taken, added, problems);
    }
    new.insert("disks".to_owned(), Value::Array(disks));
}

/// One that is not there is gone already: requests are repeated.
fn remove(disks: &mut Vec<Value>, gone: &Value, problems: &mut Problems) {
    let Some(paths) = lenient::words(gone) else { return problems.bad("remove_disks") };
    let goes = |disk: &Value| {
        disk["path"].as_str().is_some_and(|path| paths.iter().any(|gone| gone == path))
    };
    if numbered(disks).any(|(number, disk)| number == BOOT_DISK && goes(disk)) {
        let why = "a VM keeps its first disk, which it was made with; reprovision replaces it";
        return problems.bad_because("remove_disks", why);
    }
    disks.retain(|disk| !goes(disk));
}

/// A disk only grows.
fn update(disks: &mut [Value], changes: &Value, problems: &mut Problems) {
    let Some(changes) = changes.as_array() else { return problems.bad("update_disks") };
    for (index, change) in changes.iter().enumerate() {
        let path = change.get("path").filter(|path| path.is_string());
        let known = disks.iter_mut().find(|disk| path.is_some_and(|path| disk["path"] == *path));
        let (Some(Value::Object(known)), Some(change)) = (known, change.as_object()) else {
            let path = format!("update_disks.{index}.path");
            problems.bad_because(path, "no disk of the VM has this path");
            continue;
        };
        merge(known, index, change, problems);
    }
}

fn merge(
    known: &mut Map<String, Value>,
    index: usize,
    change: &Map<String, Value>,
    problems: &mut Problems,
) {
    let old_size = known.get("size").and_then(Value::as_u64).unwrap_or(0);
    for (name, value) in change.iter().filter(|(name, _)| *name != "path") {
        let field = format!("update_disks.{index}.{name}");
        if !MEMBERS.contains(&name.as_str()) {
            problems.refuse(field, "an existing disk keeps it");
            continue;
        }
        let alone = Map::from_iter([
            (name.clone(), value.clone()),
            ("size".to_owned(), if name == "size" { value.clone() } else { json!(old_size) }),
        ]);
        let mut found = Problems::default();
        let checked = disk("disk", &alone, &mut found);
        let shrinks =
            name == "size" && checked.get("size").and_then(Value::as_u64) < Some(old_size);
        match checked.get(name) {
            Some(value) if found.is_empty() && !shrinks => {
                known.insert(name.clone(), value.clone());
            }
            _ if shrinks => problems.bad_because(field, "disks never shrink"),
            _ => problems.bad(field),
        }
    }
}

fn add(disks: &mut Vec<Value>, mut taken: BTreeSet<u32>, added: &Value, problems: &mut Problems) {
    let Some(Value::Array(added)) = devices("add_disks", added, problems, disk) else {
        return problems.bad("add_disks");
    };
    for mut new in added {
        // The same disk again is no second one: requests are repeated.
        let uuid = new.get("uuid");
        if uuid.is_some() && disks.iter().any(|disk| disk.get("uuid") == uuid) {
            continue;
        }
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
        taken.insert(number);
        if let Some(new) = new.as_object_mut() {
            set_number(new, number);
        }
        disks.push(new);
    }
    if disks.len() > MAX_DEVICES {
        problems.bad_because("add_disks", "a VM has at most 32 disks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c09";

    fn vm(numbers: &[u32]) -> Map<String, Value> {
        let disk =
            |number: &u32| json!({ "path": format!("/vols/disk{number}.qcow2"), "size": 100 });
        Map::from_iter([("disks".to_owned(), numbers.iter().map(disk).collect())])
    }

    fn changed(numbers: &[u32], params: Value) -> Result<Vec<Value>, Problems> {
        let Value::Object(params) = params else { panic!("an object is needed") };
        let (mut new, mut problems) = (vm(numbers), Problems::default());
        change(&mut new, &params, &mut problems);
        let disks = new["disks"].as_array().unwrap().clone();
        if problems.is_empty() { Ok(disks) } else { Err(problems) }
    }

    fn numbers_of(disks: &[Value]) -> Vec<u32> {
        numbers(disks)
    }

    #[test]
    fn disks_come_with_the_lowest_free_number_and_go_by_path() {
        let add = json!({ "add_disks": [{ "size": 8 }, { "size": "9" }] });
        let disks = changed(&[0, 2], add).unwrap();
        assert_eq!((numbers_of(&disks), &disks[3]["size"]), (vec![0, 2, 1, 3], &json!(9)));
        for gone in [json!(["/vols/disk1.qcow2"]), json!("/vols/disk1.qcow2,/vols/disk7.qcow2")] {
            let disks = changed(&[0, 1, 2], json!({ "remove_disks": gone })).unwrap();
            assert_eq!(numbers_of(&disks), [0, 2]);
        }
        // The file of one that goes is still there when the other one comes.
        let both = json!({ "remove_disks": ["/vols/disk1.qcow2"], "add_disks": [{ "size": 8 }] });
        assert_eq!(numbers_of(&changed(&[0, 1], both).unwrap()), [0, 2]);
        assert_eq!(
            numbers_of(&changed(&[], json!({ "add_disks": [{ "size": 8 }] })).unwrap()),
            [0]
        );
    }

    #[test]
    fn a_disk_that_is_known_by_its_uuid_is_no_second_one() {
        let add = json!({ "add_disks": [
            { "size": 8, "uuid": UUID }, { "size": 8, "uuid": UUID }, { "size": 8 },
        ] });
        assert_eq!(numbers_of(&changed(&[0], add).unwrap()), [0, 1, 2]);
    }

    #[test]
    fn what_can_not_be_is_named() {
        let bad = |numbers: &[u32], params: Value| {
            let problems = changed(numbers, params).unwrap_err();
            [problems.bad_values, problems.missing_properties, problems.bad_properties].concat()
        };
        assert_eq!(bad(&[0], json!({ "remove_disks": ["/vols/disk0.qcow2"] })), ["remove_disks"]);
        assert_eq!(bad(&[0], json!({ "remove_disks": 5 })), ["remove_disks"]);
        assert_eq!(bad(&[0], json!({ "add_disks": [{}] })), ["add_disks.0.size"]);
        assert_eq!(
            bad(&[0], json!({ "add_disks": [{ "size": 0 }] })),
            ["add_disks.0.size", "add_disks.0.size"]
        );
        assert_eq!(bad(&[0], json!({ "add_disks": "x" })), ["add_disks"]);
        let path = json!({ "add_disks": [{ "size": 1, "path": "/etc/passwd" }] });
        assert_eq!(bad(&[0], path), ["add_disks.0.path"]);
        let all: Vec<u32> = (0..32).collect();
        assert_eq!(bad(&all, json!({ "add_disks": [{ "size": 1 }] })), ["add_disks"]);
    }
}
