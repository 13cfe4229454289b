//! A package: what a client may say of one. Sizes come from the shared table of properties.

use muster_shared::vm::{MAX_ALIAS_CHARS, PACKAGE};
use serde_json::{Map, Value, json};

use super::uuid;
use super::values::{number, text};

/// As [`muster_shared::vm::is_alias`] says it.
const NAME: &str = "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$";
/// What may be thought of as a ratio, or its text.
const RATIO: &str = "^([0-9]{1,4}([.][0-9]{0,9})?)?$";

fn described(mut schema: Value, doc: &str) -> Value {
    schema["description"] = json!(doc);
    schema
}

/// What may change.
fn changing() -> Map<String, Value> {
    let sizes = PACKAGE.iter().map(|size| {
        let (least, most) = size.limits().unwrap_or_default();
        let least = i64::try_from(least).unwrap_or_default();
        (size.name.to_owned(), described(number(least, most), size.doc))
    });
    let mut all: Map<String, Value> = sizes.collect();
    let ratio = json!({
        "type": ["number", "string", "null"], "exclusiveMinimum": 0, "maximum": 1000,
        "pattern": RATIO,
    });
    let spreads = json!(["min-ram", "max-ram", "random", "min-owner", "", null]);
    let object = json!({ "type": ["object", "null"] });
    for (name, schema, doc) in [
        ("version", text(), "Version, for people"),
        ("description", text(), "What it is for"),
        (
            "alloc_server_spread",
            json!({ "type": ["string", "null"], "enum": spreads }),
            "How the allocator spreads its VMs",
        ),
        ("overprovision_cpu", ratio.clone(), "CPU overcommit ratio"),
        ("overprovision_memory", ratio.clone(), "Of memory"),
        ("overprovision_storage", ratio.clone(), "Of disks"),
        ("overprovision_network", ratio.clone(), "Of the network"),
        ("overprovision_io", ratio, "Of what disks do in a second"),
        ("min_platform", object.clone(), "Oldest platform of servers, by version of SDC"),
        ("traits", object, "Traits of the servers for its VMs: exactly these"),
    ] {
        all.insert(name.to_owned(), described(schema, doc));
    }
    all
}

/// Members of a new package.
pub(super) fn create() -> Value {
    let mut all = changing();
    let name = json!({ "type": "string", "pattern": NAME, "maxLength": MAX_ALIAS_CHARS });
    all.insert("name".to_owned(), described(name, "Its name; no uuid"));
    all.insert("uuid".to_owned(), described(uuid(), "Its uuid; chosen if there is none"));
    json!({
        "type": "object", "properties": all, "required": ["name", "max_physical_memory"],
        "description": "A new package; other members are refused",
        "example": { "name": "small", "max_physical_memory": 1024, "vcpus": 1, "quota": 10240 },
    })
}

/// Members of a change.
pub(super) fn update() -> Value {
    json!({
        "type": "object", "properties": changing(),
        "description": "Changes of a package; other members are refused",
        "example": { "max_physical_memory": 2048, "cpu_cap": null },
    })
}
