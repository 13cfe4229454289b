//! A VM: what a client may say of one, and what an agent tells of it, from the shared table of
//! properties. Types, units and bounds are those of all brands; what one agent or brand does not
//! offer it refuses itself.

use muster_shared::vm::{
    self, CHANGES, FACTS, INITIAL, Kind, LASTING, MAX_COUNT, MAX_DEVICES, MAX_MIB, MAX_VCPUS,
    Property, Reboot,
};
use serde_json::{Map, Value, json};

use super::values::{
    flat_object, long_text, number, quiet_flag, text_up_to, uuid_or_nothing, words,
};
use super::{any, iso, list, reference, uuid};

/// What a client may give.
fn given(kind: Kind) -> Value {
    match kind {
        Kind::Uuid => uuid_or_nothing(),
        Kind::Text(most) => text_up_to(most),
        Kind::Flag => quiet_flag(),
        Kind::Mib => number(0, MAX_MIB),
        Kind::Gib => number(0, MAX_MIB / 1024),
        Kind::Count => number(0, MAX_COUNT),
        Kind::Range(least, most) => number(least, most),
        Kind::FlatObject(_) => flat_object(),
        Kind::Words => words(),
        Kind::List(of) => json!({
            "type": ["array", "null"], "maxItems": MAX_DEVICES, "items": reference(of.name()),
        }),
        Kind::Any => any(),
    }
}

/// As [`given`], but nothing that only clients are allowed.
fn in_answers(kind: Kind) -> Value {
    let whole = |least: i64| json!({ "type": ["integer", "null"], "minimum": least });
    match kind {
        Kind::Uuid => uuid_or_nothing(),
        Kind::Text(_) => json!({ "type": ["string", "null"] }),
        Kind::Flag => json!({ "type": ["boolean", "null"] }),
        Kind::Mib | Kind::Gib | Kind::Count => whole(0),
        Kind::Range(least, _) => whole(least),
        Kind::FlatObject(_) | Kind::Words | Kind::Any | Kind::List(_) => given(kind),
    }
}

fn properties(tables: &[&[Property]], schema: fn(Kind) -> Value) -> Map<String, Value> {
    let described = |property: &Property| {
        let mut schema = schema(property.kind);
        schema["description"] = json!(property.doc);
        (property.name.to_owned(), schema)
    };
    tables.iter().flat_map(|table| table.iter()).map(described).collect()
}

/// Parameters of a create, beside the VM's properties.
pub(super) fn create() -> Value {
    let mut all = properties(&[LASTING, INITIAL], given);
    all.insert(
        "image".to_owned(),
        json!({
            "type": "object", "description": "Manifest of the image; with `files`",
            "properties": {
                "files": { "type": "array", "items": { "type": "object" } },
                "origin": { "type": ["string", "null"], "description": "Image that it builds on" },
            },
        }),
    );
    all.insert(
        "package".to_owned(),
        json!({
            "type": ["string", "object", "null"],
            "description": "Name or uuid of a kept package, for sizes that are not given",
        }),
    );
    let mut keep = quiet_flag();
    keep["description"] = json!("Keeps what was created if the create fails, for inspection");
    all.insert("keep_failed".to_owned(), keep);
    json!({
        "type": "object", "properties": all,
        "description": "A new VM; unknown members are passed on to the agent",
        "example": {
            "brand": "kvm", "ram": 1024, "vcpus": 1, "cpu_cap": 100, "quota": 10,
            "disks": [{
                "boot": true, "model": "virtio",
                "image_uuid": "11111111-1111-4111-8111-111111111111",
            }],
            "nics": [{ "nic_tag": "admin", "model": "virtio", "ips": ["dhcp"], "primary": true }],
            "image": { "files": [{ "compression": "gzip" }] },
        },
    })
}

/// Parameters of a create with a server to be chosen.
pub(super) fn place() -> Value {
    let mut all = properties(&[LASTING, INITIAL], given);
    let described = |mut schema: Value, doc: &str| {
        schema["description"] = json!(doc);
        schema
    };
    for (name, schema) in [
        ("uuid", described(uuid_or_nothing(), "Its uuid; chosen if there is none")),
        ("memory", described(number(0, MAX_MIB), "Another name of `ram`, MiB")),
        (
            "disk",
            described(
                number(1, MAX_MIB),
                "Size of its disk, MiB; else `quota`, or the image's if that is larger",
            ),
        ),
        ("vcpus", described(number(1, MAX_VCPUS), "Virtual CPUs")),
        ("cpu_cap", described(number(1, MAX_COUNT), "CPU limit, percent of one core")),
        ("metadata", described(flat_object(), "Added to `customer_metadata`")),
        (
            "image",
            json!({
                "description": "The image's uuid or manifest; or `image_uuid`",
                "anyOf": [
                    uuid(),
                    { "type": "object", "properties": { "uuid": uuid() } },
                ],
            }),
        ),
        (
            "package",
            json!({
                "type": ["object", "string"], "description": "Sizes that are not given otherwise: \
                    a kept package's name or uuid, or members as PAPI has them",
                "properties": {
                    "name": { "type": "string" }, "uuid": { "type": "string" },
                    "version": { "type": "string" },
                    "max_physical_memory": described(number(0, MAX_MIB), "MiB"),
                    "vcpus": number(0, MAX_VCPUS),
                    "cpu_cap": described(number(0, MAX_COUNT), "Percent of a CPU"),
                    "quota": described(number(0, MAX_MIB), "MiB"),
                },
            }),
        ),
        (
            "networks",
            json!({
                "type": "array", "maxItems": MAX_DEVICES,
                "description": "Tags, or interfaces with `nic_tag`; one each",
                "items": { "anyOf": [{ "type": "string" }, reference("Nic")] },
            }),
        ),
    ] {
        all.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object", "properties": all,
        "description": "A new VM; `ram` and an image are needed",
        "example": {
            "image": "11111111-1111-4111-8111-111111111111", "ram": 1024, "vcpus": 1,
            "networks": ["admin"],
        },
    })
}

/// Parameters of an update.
pub(super) fn update() -> Value {
    let mut all = properties(&[LASTING, CHANGES], given);
    let words = Reboot::WORDS.iter().map(|word| json!(word)).chain([Value::Null]);
    all.insert(
        "reboot".to_owned(),
        json!({
            "type": ["string", "null"], "enum": words.collect::<Vec<_>>(),
            "description": "Whether the guest is restarted for what needs it",
        }),
    );
    json!({
        "type": "object", "properties": all,
        "description": "Changes of a VM; 0, `null` or an empty text takes a property away",
        "example": { "ram": 2048, "set_tags": { "role": "web" }, "remove_nics": [] },
    })
}

/// The object of `VmLoad` and of results.
pub(super) fn object() -> Value {
    let mut all = properties(&[LASTING, INITIAL, FACTS], in_answers);
    let text = |doc: &str| json!({ "type": "string", "description": doc });
    for (name, schema) in [
        ("uuid", uuid()),
        ("state", text("`running`, `stopped`, `stopping`, `provisioning`, `failed`, …")),
        ("zone_state", text("`running`, `installed`, `configured`, …")),
        ("type", text("`KVM`, `BHYVE`, `LX` or `OS`")),
        ("hvm", json!({ "type": "boolean", "description": "A hardware VM" })),
        ("server_uuid", uuid()),
        ("last_modified", text("ISO time")),
        ("boot_timestamp", text("ISO time of its last start")),
        ("create_timestamp", text("ISO time")),
        ("exit_timestamp", text("ISO time of its last end")),
        ("exit_status", json!({ "description": "Of its last end: a code, or 128 and a signal" })),
        ("snapshots", list("VmSnapshot")),
    ] {
        all.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object", "properties": all, "required": ["uuid", "state"],
        "description": "A VM with all its properties, as its agent tells it",
        "example": {
            "uuid": "22222222-2222-4222-8222-222222222222", "brand": "kvm", "state": "running",
            "zone_state": "running", "ram": 1024, "max_physical_memory": 2048, "quota": 10,
        },
    })
}

pub(super) fn snapshot() -> Value {
    json!({
        "type": "object", "required": ["name"], "description": "A snapshot of a VM's disks",
        "properties": {
            "name": { "type": "string" },
            "size": { "type": "number", "minimum": 0, "description": "MiB" },
            "created_at": iso(),
        },
    })
}

/// A disk: given or told.
pub(super) fn disk() -> Value {
    let mut all = properties(&[vm::DISK], given);
    narrow(&mut all, "refreservation", json!({ "type": ["integer", "string", "null"] }));
    json!({
        "type": "object", "description": "A disk of a hardware VM", "properties": all,
        "example": { "size": 10240, "model": "virtio" },
    })
}

/// A network interface: given or told.
pub(super) fn nic() -> Value {
    let mut all = properties(&[vm::NIC], given);
    let ports = json!({
        "type": ["array", "string", "null"], "items": { "type": ["integer", "string"] },
    });
    narrow(&mut all, "blocked_outgoing_ports", ports);
    json!({
        "type": "object", "description": "A network interface of a VM", "properties": all,
        "example": { "nic_tag": "admin", "ips": ["10.0.0.5/24"], "gateways": ["10.0.0.1"] },
    })
}

/// Adds to a property's schema what its kind does not say.
fn narrow(all: &mut Map<String, Value>, name: &str, more: Value) {
    if let (Some(Value::Object(schema)), Value::Object(more)) = (all.get_mut(name), more) {
        schema.extend(more);
    }
}

/// A directory of the server in a container.
pub(super) fn filesystem() -> Value {
    json!({
        "type": "object", "description": "A directory of the server in a container",
        "properties": {
            "type": long_text(), "source": long_text(), "target": long_text(), "raw": long_text(),
            "options": words(),
        },
    })
}

/// A device of the server in a VM.
pub(super) fn pci_device() -> Value {
    json!({
        "type": "object", "description": "A device of the server in a bhyve VM",
        "properties": { "path": long_text(), "pci_slot": long_text() },
    })
}

/// A firewall rule, as FWAPI has it.
pub(super) fn firewall_rule() -> Value {
    json!({
        "type": "object", "description": "A firewall rule, as FWAPI has it",
        "properties": { "rule": long_text(), "enabled": quiet_flag() },
    })
}
