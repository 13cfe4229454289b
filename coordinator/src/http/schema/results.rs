//! What agents answer with, and what the coordinator tells about itself and its choices. Open
//! (other members are allowed) where an agent makes the answer: there are several kinds of agents.

use muster_shared::api::boot::ShownPlatform;
use muster_shared::api::task::Executed;
use serde_json::{Value, json};

use super::values::texts;
use super::{of, reference, uuid};

/// An object with members; others are allowed.
pub(super) fn open(description: &str, required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object", "description": description, "required": required,
        "properties": properties,
    })
}

pub(super) fn word(doc: &str) -> Value {
    json!({ "type": "string", "description": doc })
}

pub(super) fn count(doc: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": doc })
}

/// Values of an object by any name.
pub(super) fn map_of(values: &Value) -> Value {
    json!({ "type": "object", "additionalProperties": values })
}

/// What `machine_info` returns; the reference's agent sends it as JSON text.
pub(crate) fn vm_info() -> Value {
    json!({ "anyOf": [reference("VmInfo"), { "type": "string" }] })
}

pub(super) fn info() -> Value {
    let raw = json!({ "description": "As the hypervisor answers" });
    open(
        "What the hypervisor says of a VM; only the types that were asked for",
        &[],
        &json!({
            "block": raw, "blockstats": raw, "chardev": raw, "cpus": raw, "pci": raw,
            "version": raw,
            "kvm": { "type": "object", "description": "Whether it is accelerated" },
            "status": { "type": "object", "description": "Whether it runs" },
            "spice": { "type": "object", "description": "Its SPICE display" },
            "vnc": open("Its display", &[], &json!({
                "host": { "type": ["string", "null"] },
                "port": { "type": ["integer", "null"] },
                "display": { "type": ["integer", "string", "null"] },
                "password": { "type": ["string", "null"] },
            })),
        }),
    )
}

/// The processes of a VM.
pub(crate) fn processes() -> Value {
    let one = json!({
        "type": "object", "required": ["psinfo"], "properties": { "psinfo": reference("Psinfo") },
    });
    let mut all = map_of(&one);
    all["description"] = json!("Processes by pid; of a hardware VM there is one");
    all["example"] = json!({ "4711": { "psinfo": { "pr_pid": 4711, "pr_fname": "qemu" } } });
    all
}

pub(super) fn psinfo() -> Value {
    let time = open("A time", &[], &json!({ "tv_sec": count("s"), "tv_nsec": count("ns") }));
    open(
        "A process, in the names of /proc of SmartOS",
        &["pr_pid"],
        &json!({
            "pr_pid": count("Its id"), "pr_ppid": count("Its parent's id"),
            "pr_uid": count("User"), "pr_euid": count("Effective user"),
            "pr_gid": count("Group"), "pr_egid": count("Effective group"),
            "pr_fname": word("Program"), "pr_psargs": word("Command line"),
            "pr_size": count("Address space, KiB"), "pr_rssize": count("Memory in use, KiB"),
            "pr_nlwp": count("Threads"), "pr_start": time, "pr_time": time,
            "pr_pctcpu": { "type": "number" }, "pr_pctmem": { "type": "number" },
            "pr_wstat": { "type": "integer" },
        }),
    )
}

/// A session with a container; without members when the client wanted none.
pub(crate) fn session() -> Value {
    reference("Session")
}

pub(super) fn session_record() -> Value {
    open(
        "A TCP port that takes one client; without members when the client wanted no session",
        &[],
        &json!({
            "host": word("Address"),
            "port": { "type": "integer", "minimum": 1, "maximum": 65_535 },
            "token": word("To be sent as the first line, `{\"token\":…}`"),
            "containerPathStat": open("What is copied", &[], &json!({
                "name": word("Its name"), "size": count("Bytes"), "mtime": word("ISO time"),
                "linkTarget": word("Where a link leads to"), "mode": count("Type and permissions"),
            })),
        }),
    )
}

/// An image that a server has installed: its manifest, whoever made it.
pub(crate) fn installed_image() -> Value {
    open(
        "The manifest of an installed image, as IMGAPI has it",
        &["uuid"],
        &json!({
            "v": { "type": "integer" }, "uuid": uuid(), "name": { "type": "string" },
            "version": { "type": "string" }, "type": { "type": "string" },
            "os": { "type": "string" }, "owner": { "type": "string" },
            "state": { "type": "string" }, "disabled": { "type": "boolean" },
            "public": { "type": "boolean" }, "published_at": { "type": "string" },
            "origin": { "type": "string" }, "image_size": count("MiB"),
            "files": { "type": "array", "items": { "type": "object" } },
            "requirements": { "type": "object" },
        }),
    )
}

/// Figures of datasets as `zfs list` prints them.
pub(crate) fn datasets() -> Value {
    let all = json!({
        "name": word("Its name"), "used": word("E.g. `1.2G`"), "avail": word("E.g. `1.2G`, or `-`"),
        "refer": word("E.g. `1.2G`"), "type": word("`filesystem`, `volume` or `snapshot`"),
        "mountpoint": word("Path, or `-`"),
    });
    json!({ "type": "array", "items": open("A dataset", &["name"], &all) })
}

/// Figures of pools as `zpool list` prints them.
pub(crate) fn pools() -> Value {
    let all = json!({
        "name": word("Its name"), "size": word("E.g. `1.2T`"), "allocated": word("E.g. `1.2T`"),
        "free": word("E.g. `1.2T`"), "cap": word("E.g. `12%`"), "health": word("E.g. `ONLINE`"),
        "altroot": word("Path, or `-`"),
    });
    json!({ "type": "array", "items": open("A pool", &["name"], &all) })
}

/// Values of properties by dataset and name.
pub(crate) fn properties() -> Value {
    let mut all = map_of(&map_of(&json!({ "type": "string" })));
    all["example"] = json!({ "zones": { "quota": "0" } });
    all
}

/// A script's output as text; with `json` an object.
pub(crate) fn executed() -> Value {
    json!({ "oneOf": [{ "type": "string" }, of::<Executed>()] })
}

/// The `event` of a task's history: an agent's result, or why it failed.
pub(super) fn task_event() -> Value {
    let names = texts();
    let mut result = open(
        "What a task returned; which members depends on its kind. A member over 256 KiB is cut, and \
         the whole of `x` is at `x_blob`",
        &[],
        &json!({
            "vm": { "anyOf": [reference("VmObject"), { "type": "null" }] },
            "sysinfo": reference("Sysinfo"),
            "setup_state": { "description": "State of a setup or reset" },
            "pending_reboot": {
                "description": "Properties that an update changes at the next start",
                "anyOf": [names, { "type": "null" }],
            },
            "lost_snapshots": { "anyOf": [names, { "type": "null" }] },
            "updated": { "type": "array", "items": { "type": "string" } },
            "unchanged": { "type": "array", "items": { "type": "string" } },
            "failed": { "type": "array", "items": { "type": "object" } },
            "exitCode": { "type": ["integer", "null"] },
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "stdout_blob": reference("Blob"),
            "stderr_blob": reference("Blob"),
            "error": {
                "description": "In the entry `error`: why it failed",
                "anyOf": [{ "type": "string" }, open("Why", &["message"], &json!({
                    "message": { "type": "string" },
                }))],
            },
        }),
    );
    result["example"] = json!({ "error": { "message": "VM is not running" } });
    result
}

/// Platforms by name.
pub(crate) fn platforms() -> Value {
    let mut all = map_of(&of::<ShownPlatform>());
    all["example"] = json!({ "20260101T000000Z": { "latest": true } });
    all
}

/// What something waits for.
pub(crate) fn why() -> Value {
    open(
        "What something waits for",
        &["kind", "text"],
        &json!({
            "kind": { "enum": ["task", "server", "vm", "ticket", "store"] },
            "id": word("Which one"),
            "text": word("In plain words"),
            "waiting_for": { "type": ["string", "null"], "description": "null: nothing" },
        }),
    )
}
