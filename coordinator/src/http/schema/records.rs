//! The records themselves. Closed (`additionalProperties: false`) where this coordinator makes
//! every member, so that the table's tests find a member that nobody documented.

use serde_json::{Map, Value, json};

use super::{any, iso, list, reference, uuid};

/// An object with exactly these members.
fn closed(description: &str, required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object", "description": description, "additionalProperties": false,
        "required": required, "properties": properties,
    })
}

fn bytes(description: &str) -> Value {
    json!({ "type": "integer", "description": description })
}

fn described(kind: &str, description: &str) -> Value {
    json!({ "type": kind, "description": description })
}

fn text(description: &str) -> Value {
    described("string", description)
}

fn flag(description: &str) -> Value {
    described("boolean", description)
}

fn members(of: Value) -> Map<String, Value> {
    match of {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The server's record: stored members, those of the extras, computed ones. Which are there
/// depends on `extras` and `fields`; a server that never reported has no memory or disk figures.
pub(super) fn server() -> Value {
    let mut all = members(stored());
    all.extend(members(computed()));
    for name in crate::app::figures::DISK_FIGURES {
        all.insert(format!("disk_{name}"), json!({ "type": "integer" }));
    }
    closed("A compute node", &[], &Value::Object(all))
}

fn stored() -> Value {
    let object = |description: &str| described("object", description);
    json!({
        "uuid": { "anyOf": [uuid(), { "const": "default" }] },
        "created": iso(),
        "hostname": text("Of the node, or given at setup"),
        "datacenter": text("Where it is"),
        "agents": {
            "type": "array", "description": "Agents installed, each with `name` and `version`",
            "example": [{ "name": "cn-agent", "version": "2.14.0" }],
        },
        "boot_params": object("Kernel arguments of the next boot"),
        "boot_platform": text("Platform of the next boot"),
        "boot_modules": list("BootModule"),
        "kernel_flags": object("Kernel flags of the next boot"),
        "default_console": text("Console of the next boot"),
        "serial": text("Serial device of the next boot"),
        "comments": text("For people"),
        "rack_identifier": text("Where it is"),
        "reservation_ratio": described("number", "Share of memory kept free"),
        "reserved": flag("Gets no VMs"),
        "reservoir": flag("Gets VMs last"),
        "traits": object("For the allocator"),
        "next_reboot": text("ISO time, or empty"),
        "transitional_status": text("`rebooting` until it is back"),
        "setting_up": flag("A setup is under way"),
        "setup": flag("Set up"),
        "current_platform": text("Platform that it runs"),
        "headnode": flag("A headnode"),
        "system_type": text("`Linux` or `SunOS`"),
        "last_boot": iso(),
        "ram": described("integer", "MiB"),
    })
}

fn computed() -> Value {
    json!({
        "status": { "enum": ["running", "unknown", "rebooting"] },
        "last_heartbeat": { "anyOf": [iso(), { "type": "null" }] },
        "memory_available_bytes": bytes("Free memory"),
        "memory_arc_bytes": bytes("Memory of the ZFS cache"),
        "memory_total_bytes": bytes("All memory"),
        "memory_provisionable_bytes": bytes("Memory for VMs; may be negative"),
        "overprovision_ratios": {
            "type": "object", "description": "Of cpu, ram and disk",
            "properties": {
                "cpu": { "type": ["number", "null"] },
                "ram": { "type": ["number", "null"] },
                "disk": { "type": ["number", "null"] },
            },
        },
        "unreserved_cpu": described("number", "Percent of a core; may be negative"),
        "unreserved_ram": described("number", "MiB; may be negative"),
        "unreserved_disk": described("number", "MiB; may be negative"),
        "score": described("number", "Of the allocator"),
        "vms": {
            "type": "object", "additionalProperties": reference("Vm"),
            "description": "VMs by uuid",
        },
        "sysinfo": reference("Sysinfo"),
    })
}

/// SmartOS's key names; only those that are read.
pub(super) fn sysinfo() -> Value {
    json!({
        "type": "object", "description": "What a node says of itself, in SmartOS's key names",
        "properties": {
            "UUID": uuid(), "Hostname": any(), "Live Image": any(), "System Type": any(),
            "Boot Time": any(), "Setup": any(), "MiB of Memory": any(), "SDC Version": any(),
            "CPU Total Cores": any(), "CPU Online Count": any(), "Boot Parameters": any(),
            "SDC Agents": any(), "Network Interfaces": any(),
        },
    })
}

pub(super) fn task() -> Value {
    let required = ["id", "req_id", "task", "server_uuid", "status", "timestamp"];
    let entry = json!({
        "type": "object", "required": ["name", "timestamp", "event"],
        "additionalProperties": false,
        "properties": {
            "name": { "enum": ["finish", "error"] },
            "timestamp": iso(),
            "event": reference("TaskEvent"),
        },
    });
    closed(
        "A task of a server's agent",
        &required,
        &json!({
            "id": { "type": "string" },
            "req_id": described("string", "The request that made it"),
            "task": described("string", "Its kind"),
            "server_uuid": uuid(),
            "status": { "enum": ["active", "complete", "failure"] },
            "timestamp": iso(),
            "history": {
                "type": "array", "minItems": 1, "maxItems": 2, "items": entry,
                "description": "Only when it ended: `finish`, or `error` and `finish`",
            },
            "finished_at": iso(),
            "vm_uuid": uuid(),
            "ticket_uuid": uuid(),
            "error": { "type": "object", "description": "Why it failed, for programs" },
            "result": { "description": "What a failed task returned all the same" },
            "refusals": {
                "type": "array", "items": { "type": "object" },
                "description": "Servers that refused the VM",
            },
            "progress": { "type": "integer", "minimum": 0, "maximum": 100 },
            "events": {
                "type": "array", "items": { "type": "object" },
                "description": "What the agent said on the way",
            },
            "waiting_for": described("string", "In plain words; only while it is active"),
        }),
    )
}

/// The nine members that a server's `vms` has of each VM.
fn vm_members() -> Map<String, Value> {
    members(json!({
        "uuid": uuid(),
        "owner_uuid": { "type": "string" },
        "brand": described("string", "`kvm`, `bhyve`, `joyent-minimal`, …"),
        "cpu_cap": described("integer", "Percent of one core; absent: uncapped"),
        "quota": described("integer", "GiB"),
        "max_physical_memory": described("integer", "MiB"),
        "state": { "type": "string" },
        "zone_state": { "type": "string" },
        "last_modified": { "type": "string" },
    }))
}

/// Agents that POST their reports may leave out the rest.
const VM_REQUIRED: [&str; 1] = ["uuid"];

pub(super) fn vm() -> Value {
    closed("A VM as its server reported it", &VM_REQUIRED, &Value::Object(vm_members()))
}

pub(super) fn fleet_vm() -> Value {
    let mut all = vm_members();
    all.extend(members(json!({
        "alias": { "type": "string" },
        "tags": { "type": "object" },
        "vcpus": { "type": "integer" },
        "docker_id": { "type": "string" },
        "flexible_disk_size": described("integer", "MiB"),
        "image_uuid": described("string", "The image of its boot disk"),
        "server_uuid": uuid(),
        "server_status": { "enum": ["running", "unknown"] },
    })));
    let required: Vec<_> =
        VM_REQUIRED.into_iter().chain(["server_uuid", "server_status"]).collect();
    closed("A VM, also while its server is away", &required, &Value::Object(all))
}

pub(super) fn image() -> Value {
    json!({
        "type": "object", "description": "An image's manifest, as IMGAPI has it",
        "required": ["v", "uuid", "name", "version", "type", "os", "state"],
        "properties": {
            "v": { "const": 2 }, "uuid": uuid(), "name": { "type": "string" },
            "version": { "type": "string" }, "type": { "type": "string" },
            "os": { "type": "string" }, "owner": { "type": "string" },
            "state": { "enum": ["unactivated", "active"] },
            "public": { "type": "boolean" }, "disabled": { "type": "boolean" },
            "published_at": { "type": "string" },
            "files": { "type": "array", "items": { "type": "object" } },
        },
    })
}

pub(super) fn boot_module() -> Value {
    closed(
        "A file that is loaded with the platform",
        &["path", "content"],
        &json!({
            "path": { "type": "string", "minLength": 1 },
            "content": described("string", "Base64 of at most 4096 bytes"),
            "type": { "const": "base64" },
        }),
    )
}

pub(super) fn boot_params() -> Value {
    closed(
        "What a node boots with",
        &["kernel_args", "kernel_flags"],
        &json!({
            "platform": { "type": "string" },
            "kernel_args": { "type": "object" },
            "kernel_flags": { "type": "object" },
            "boot_modules": list("BootModule"),
            "default_console": { "type": "string" },
            "serial": { "type": "string" },
        }),
    )
}

/// An element of a task history; the agent makes it.
pub(super) fn history_entry() -> Value {
    json!({
        "type": "object", "description": "A task as its agent remembers it",
        "required": ["task", "status"],
        "properties": {
            "task": { "type": "string" },
            "status": { "enum": ["active", "finished", "failed"] },
            "started_at": any(),
            "finished_at": any(),
            "pid": any(),
            "params": { "type": ["object", "null"] },
            "errorCount": { "type": ["integer", "null"] },
            "messages": { "type": ["array", "null"] },
            "log": { "type": ["array", "null"] },
        },
    })
}
