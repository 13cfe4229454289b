//! What the allocator is asked. It checks its parameters itself, in the reference's order and
//! words; these schemas tell what it wants.

use serde_json::{Value, json};

use super::uuid;
use crate::alloc::MAX_AMOUNT;

fn text() -> Value {
    json!({ "type": "string" })
}

fn number(doc: &str) -> Value {
    json!({ "type": "number", "minimum": 0, "description": doc })
}

/// What is asked for of something.
fn amount(doc: &str) -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": MAX_AMOUNT, "description": doc })
}

fn traits() -> Value {
    json!({
        "type": "object", "description": "What a server must have",
        "additionalProperties": { "type": ["boolean", "string", "array"] },
    })
}

/// Dates of platforms by version of SDC.
fn platform(doc: &str) -> Value {
    json!({
        "type": "object", "description": doc, "additionalProperties": { "type": "string" },
        "example": { "7.0": "20180101T000000Z" },
    })
}

/// The VM that wants a place.
pub(crate) fn allocation_vm() -> Value {
    let near = json!({
        "anyOf": [uuid(), { "type": "array", "items": uuid(), "maxItems": 1024 }],
    });
    let affinity = json!({
        "type": "object",
        "properties": {
            "key": { "type": "string", "maxLength": 1024 },
            "operator": { "enum": ["==", "!="] },
            "value": { "type": "string", "maxLength": 1024 },
            "valueType": { "enum": ["exact", "glob", "re"] }, "isSoft": { "type": "boolean" },
        },
    });
    json!({
        "type": "object", "required": ["vm_uuid", "owner_uuid", "ram"],
        "properties": {
            "vm_uuid": uuid(), "owner_uuid": uuid(), "ram": amount("MiB"),
            "quota": amount("GiB"), "cpu_cap": amount("Percent of a CPU"), "vcpus": amount("CPUs"),
            "brand": text(),
            "traits": traits(),
            "affinity": {
                "type": "array", "items": affinity, "maxItems": 64,
                "description": "By other VMs' tags and names; at most 16 by `glob` or `re`",
            },
            "locality": {
                "type": "object", "description": "Near to or far from other VMs",
                "properties": { "near": near, "far": near, "strict": { "type": "boolean" } },
            },
            "nic_tags": { "type": "array", "items": text(), "maxItems": 1024 },
            "internal_metadata": { "type": "object" },
        },
        "example": {
            "vm_uuid": "22222222-2222-4222-8222-222222222222",
            "owner_uuid": "33333333-3333-4333-8333-333333333333", "ram": 1024, "cpu_cap": 100,
        },
    })
}

/// A VM of which as many as possible are wanted; what is not said is as small as can be.
pub(crate) fn planned_vm() -> Value {
    let mut vm = allocation_vm();
    if let Some(keywords) = vm.as_object_mut() {
        keywords.shift_remove("required");
    }
    vm
}

/// Its image's manifest, as far as it matters.
pub(crate) fn allocation_image() -> Value {
    json!({
        "type": "object",
        "properties": {
            "image_size": amount("MiB"), "traits": traits(),
            "requirements": {
                "type": "object",
                "properties": {
                    "min_ram": number("MiB"), "max_ram": number("MiB"), "brand": text(),
                    "min_platform": platform("At least"), "max_platform": platform("At most"),
                },
            },
        },
    })
}

/// Its package, as far as it matters, or the name of one.
pub(crate) fn allocation_package() -> Value {
    let own = json!({
        "type": "object",
        "properties": {
            "overprovision_cpu": number("Ratio"), "overprovision_memory": number("Ratio"),
            "overprovision_storage": number("Ratio"), "overprovision_network": number("Ratio"),
            "overprovision_io": number("Ratio"),
            "alloc_server_spread": { "enum": ["min-ram", "max-ram", "random", "min-owner"] },
            "min_platform": { "anyOf": [platform("At least"), text()] },
            "max_platform": { "anyOf": [platform("At most"), text()] },
            "traits": { "anyOf": [traits(), text()] },
        },
    });
    json!({ "anyOf": [own, text()] })
}

/// VMs as a server's agent reports them.
pub(crate) fn reported_vms() -> Value {
    json!({ "type": "object", "additionalProperties": super::reference("Vm") })
}

/// Memory of a server.
pub(crate) fn meminfo() -> Value {
    let bytes = json!({ "type": "integer", "description": "Bytes" });
    json!({
        "type": "object",
        "properties": {
            "availrmem_bytes": bytes, "arcsize_bytes": bytes, "total_bytes": bytes,
        },
    })
}

/// Disk use of a server.
pub(crate) fn diskinfo() -> Value {
    let bytes = json!({ "type": "integer", "description": "Bytes" });
    let names = crate::app::fleet::disk_figures();
    let all: serde_json::Map<String, Value> =
        names.map(|name| (name.to_owned(), bytes.clone())).collect();
    json!({ "type": "object", "properties": all })
}

/// What Muster's agents add of each VM.
pub(crate) fn vm_index() -> Value {
    let one = json!({
        "type": "object",
        "properties": {
            "alias": text(), "tags": { "type": "object" }, "docker_id": text(),
            "vcpus": { "type": "integer" }, "image_uuid": text(), "package_name": text(),
            "flexible_disk_size": { "type": "integer", "description": "MiB" },
        },
    });
    json!({ "type": "object", "additionalProperties": one })
}

/// Lists of NIC tags.
pub(crate) fn lists_of_texts() -> Value {
    json!({ "type": "array", "items": { "type": "array", "items": text() } })
}

/// Servers, perhaps one level deeper.
pub(crate) fn server_uuids() -> Value {
    json!({
        "type": "array",
        "items": { "anyOf": [uuid(), { "type": "array", "items": uuid() }] },
    })
}

/// How much of the steps is told.
pub(crate) fn step_detail() -> Value {
    json!({ "enum": ["none", "counts", "full"] })
}

/// How much is explained.
pub(crate) fn explain_detail() -> Value {
    json!({ "enum": ["none", "full"] })
}

/// A seed, or its text.
pub(crate) fn seed() -> Value {
    json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]{1,20}$" })
}

/// How many VMs.
pub(crate) fn vm_count() -> Value {
    json!({ "type": ["integer", "string"], "minimum": 1, "maximum": 45, "pattern": "^[0-9]{1,2}$" })
}

/// A policy in place of the configured one.
pub(crate) fn policy() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "allocationDescription": { "description": "The expression of algorithms" },
            "changeDefaults": { "type": "object", "description": "Settings by name" },
        },
    })
}

/// A fleet to imagine.
pub(crate) fn what_if() -> Value {
    let list = json!({ "type": "array" });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "add_servers": list, "remove_servers": list, "add_vms": list, "remove_vms": list,
            "allocationDescription": { "description": "The expression of algorithms" },
            "changeDefaults": { "type": "object", "description": "Settings by name" },
        },
    })
}
