//! Values as clients send them: numbers also as text, switches also as the texts `true` and
//! `false`, `null` for what is not there. Used where a parameter is checked against its schema.

use muster_shared::api::log::Level;
use muster_shared::wire::logs::MAX_WAIT;
use serde_json::{Value, json};

use super::super::params::MAX_STRING_BYTES;
use super::super::rule::UUID_PATTERN;

/// Text that is a UUID, or empty, which clears a property.
const UUID_OR_NOTHING: &str =
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})?$";

/// A whole number in a range, or its text.
pub(super) fn number(least: i64, most: u64) -> Value {
    let digits = if least < 0 { "^(-?[0-9]{1,19})?$" } else { "^([0-9]{1,19})?$" };
    json!({
        "type": ["integer", "string", "null"], "minimum": least, "maximum": most,
        "pattern": digits,
    })
}

/// Text of at most so many characters.
pub(super) fn text_up_to(most: usize) -> Value {
    json!({ "type": ["string", "null"], "maxLength": most })
}

/// A UUID; empty text or `null`: none.
pub(super) fn uuid_or_nothing() -> Value {
    json!({ "type": ["string", "null"], "format": "uuid", "pattern": UUID_OR_NOTHING })
}

/// `true` or `false`, or its text.
pub(crate) fn flag() -> Value {
    json!({ "type": ["boolean", "string", "null"], "enum": [true, false, "true", "false", null] })
}

/// As [`flag`]; also an empty text, which clears a property.
pub(super) fn quiet_flag() -> Value {
    let all = json!([true, false, "true", "false", "", null]);
    json!({ "type": ["boolean", "string", "null"], "enum": all })
}

/// An array of texts, or one text with commas.
pub(super) fn words() -> Value {
    json!({
        "type": ["array", "string", "null"],
        "items": { "type": "string", "maxLength": MAX_STRING_BYTES },
    })
}

/// An array of texts.
pub(crate) fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

/// An object of strings, numbers and booleans.
pub(super) fn flat_object() -> Value {
    json!({
        "type": ["object", "null"],
        "additionalProperties": { "type": ["string", "number", "boolean"] },
    })
}

/// A UUID and nothing else.
pub(crate) fn exact_uuid() -> Value {
    json!({ "type": "string", "format": "uuid", "pattern": UUID_PATTERN })
}

/// Text, or `null` for none.
pub(crate) fn text() -> Value {
    text_up_to(1024)
}

/// Text of any length that fits into a body.
pub(crate) fn long_text() -> Value {
    json!({ "type": ["string", "null"] })
}

/// Seconds that a command in a guest may take.
pub(crate) fn exec_seconds() -> Value {
    number(1, 3600)
}

/// Seconds after which a snapshot goes, 30 days at most.
pub(crate) fn expiry_seconds() -> Value {
    number(1, 30 * 86_400)
}

/// The number of a volume.
pub(crate) fn volume_number() -> Value {
    number(0, u64::from(u32::MAX))
}

/// A place in a file, bytes.
pub(crate) fn file_offset() -> Value {
    number(0, 1 << 53)
}

/// Any array.
pub(crate) fn list_of_anything() -> Value {
    json!({ "type": "array" })
}

/// Seconds that a guest has for shutting down.
pub(crate) fn stop_seconds() -> Value {
    number(0, 86_400)
}

/// Seconds that the task that does nothing takes.
pub(crate) fn sleep_seconds() -> Value {
    json!({
        "type": ["number", "string", "null"], "minimum": 0, "maximum": 3600,
        "pattern": "^([0-9]{1,4}(\\.[0-9]{0,9})?)?$",
    })
}

/// A snapshot's name.
pub(crate) fn snapshot_name() -> Value {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9_.:%-]{1,64}$", "example": "before-upgrade" })
}

/// A log level.
pub(crate) fn log_levels() -> Value {
    json!({ "enum": [
        "trace", "debug", "info", "warn", "error", "fatal", "off", 10, 20, 30, 40, 50, 60,
    ] })
}

/// How much a line of a log matters.
pub(crate) fn levels() -> Value {
    json!({ "enum": Level::ALL.map(|(_, name)| name) })
}

/// For how long to wait for a line, seconds.
pub(crate) fn log_wait() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": MAX_WAIT.as_secs() })
}

/// A count of something.
pub(crate) fn whole_number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// The version of an image's manifest.
pub(crate) fn manifest_version() -> Value {
    json!({ "const": 2 })
}

/// The files of an image's manifest.
pub(crate) fn manifest_files() -> Value {
    json!({
        "type": "array", "maxItems": 1,
        "items": { "type": "object", "properties": { "format": {
            "enum": ["raw", "qcow2", "oci-archive", "docker-archive"],
        } } },
    })
}

/// A time as a client writes it; text that is none is compared as text.
pub(crate) fn when() -> Value {
    json!({ "type": "string", "maxLength": 256, "example": "2030-01-01T00:00:00.000Z" })
}

/// Images one on another.
pub(crate) fn depth() -> Value {
    number(1, 1000)
}

/// How a guest is made still for a snapshot.
pub(crate) fn quiesce() -> Value {
    json!({ "type": ["string", "null"], "enum": ["none", "pause", "guest", null] })
}

/// The only update that may come with a start; the handler refuses others in the reference's
/// words.
pub(crate) fn boot_update() -> Value {
    json!({
        "type": "object", "properties": { "set_internal_metadata": flat_object() },
        "example": { "set_internal_metadata": { "docker:restart": "1" } },
    })
}

/// Interfaces and their tags.
pub(crate) fn nic_tags() -> Value {
    json!({
        "type": "array",
        "items": { "type": "object", "required": ["mac"], "properties": {
            "mac": { "type": "string", "description": "Its address" },
            "nic_tags_provided": {
                "type": "array", "items": { "type": "string" },
                "description": "Its tags from now on; left out: it keeps them",
            },
        }},
        "example": [{ "mac": "02:00:00:00:00:01", "nic_tags_provided": ["admin"] }],
    })
}

/// A network with the values that VMs on it are to get.
fn network() -> Value {
    json!({
        "type": "object", "required": ["subnet", "nic_tag"],
        "properties": {
            "uuid": { "type": "string", "description": "Its uuid" },
            "subnet": {
                "type": "string", "pattern": "^[0-9.]+/[0-9]{1,2}$", "example": "10.0.0.0/24",
            },
            "netmask": { "type": ["string", "null"], "description": "IPv4, e.g. 255.255.255.0" },
            "vlan_id": { "type": ["integer", "null"], "minimum": 0, "maximum": 4095 },
            "nic_tag": { "type": "string" },
            "gateway": { "type": ["string", "null"], "description": "IPv4" },
            "resolvers": { "type": ["array", "null"], "items": { "type": "string" } },
            "routes": {
                "type": ["object", "null"], "description": "Destination to gateway",
                "additionalProperties": { "type": "string" },
            },
        },
    })
}

/// The network as it was.
pub(crate) fn original_network() -> Value {
    network()
}

/// All networks as they are now.
pub(crate) fn networks() -> Value {
    json!({ "type": "array", "maxItems": 1024, "items": network() })
}

/// One action of a migration.
pub(crate) fn migration_task() -> Value {
    json!({
        "type": "object", "required": ["action", "record"],
        "properties": {
            "action": {
                "type": "string", "example": "begin", "description": "`begin`, `sync`, `switch`, …",
            },
            "record": { "type": "object", "description": "The migration's own record" },
        },
    })
}

/// What runs in a container, as in docker's API.
pub(crate) fn docker_command() -> Value {
    let flag = json!({ "type": ["boolean", "null"] });
    json!({
        "type": "object",
        "properties": {
            "Cmd": { "type": ["array", "null"], "items": { "type": "string" } },
            "Tty": flag, "AttachStdin": flag, "AttachStdout": flag, "AttachStderr": flag,
            "AttachConsole": flag, "Detach": flag, "Logs": flag,
            "User": { "type": ["string", "null"] },
            "Env": { "type": ["array", "null"], "items": { "type": "string" } },
        },
        "example": { "Cmd": ["ls", "-l"], "Tty": false },
    })
}

/// Copying files, the old way.
pub(crate) fn copy_payload() -> Value {
    json!({
        "type": "object",
        "properties": { "path": { "type": "string" }, "mode": { "type": "string" } },
    })
}

/// What statistics are wanted of a container.
pub(crate) fn stats_payload() -> Value {
    json!({
        "type": "object",
        "properties": {
            "stream": { "type": "boolean", "description": "Go on until the client leaves" },
            "id": { "type": "string", "description": "The container" },
            "Resource": { "type": "string", "description": "Of an older kind of request" },
        },
    })
}

/// What is built in a container.
pub(crate) fn build_payload() -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "example": "build", "description": "Or `commit`" },
            "account_uuid": { "type": "string" },
            "imgapi_url": { "type": "string" },
            "scratchImageUuid": { "type": "string" },
            "fromImg": { "type": "object" },
            "allDockerImages": { "type": "array" },
        },
    })
}

/// ZFS properties and their values.
pub(crate) fn zfs_properties() -> Value {
    json!({
        "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] },
        "example": { "quota": "1G" },
    })
}

/// Words on a command line.
pub(crate) fn arguments() -> Value {
    json!({ "type": "array", "items": { "type": ["string", "number", "boolean"] } })
}

/// Variables of a process.
pub(crate) fn environment() -> Value {
    json!({
        "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] },
        "example": { "LANG": "C" },
    })
}

/// Milliseconds that a script may take.
pub(crate) fn script_milliseconds() -> Value {
    json!({ "type": ["number", "string", "boolean", "array", "null"], "minimum": 0 })
}

/// Hosts that have an image too.
pub(crate) fn peers() -> Value {
    json!({
        "type": "array", "items": { "type": "object", "properties": { "ip": { "type": "string" } } },
    })
}
