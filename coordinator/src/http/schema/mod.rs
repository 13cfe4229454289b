//! JSON schemas of the records that the API shows. A route refers to one by its type:
//! `.returns_schema(schema::of::<Server>)`; the record itself stands once under `components`.

mod check;
mod derived;
mod package;
mod records;
mod requests;
mod results;
mod values;
mod vm;

use std::sync::LazyLock;

use muster_shared::api;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::route::{Route, SchemaFn, ServerRule};
use super::rule::UUID_PATTERN;

#[cfg(test)]
pub(crate) use check::Checker;
pub(crate) use check::{Checkers, Fault};
pub(crate) use requests::{
    allocation_image, allocation_package, allocation_vm, diskinfo, explain_detail, lists_of_texts,
    meminfo, planned_vm, policy, reported_vms, seed, server_uuids, step_detail, vm_count, vm_index,
    what_if,
};
pub(crate) use results::{
    datasets, executed, installed_image, platforms, pools, processes, properties, session, vm_info,
    why,
};
pub(crate) use values::{
    arguments, boot_update, build_payload, copy_payload, depth, docker_command, environment,
    exact_uuid, exec_seconds, expiry_seconds, file_offset, flag, levels, list_of_anything,
    log_levels, log_wait, long_text, manifest_files, manifest_version, migration_task, networks,
    nic_tags, original_network, peers, quiesce, script_milliseconds, sleep_seconds, snapshot_name,
    stats_payload, stop_seconds, text, texts, volume_number, when, whole_number, zfs_properties,
};

/// Every component: its name and its schema.
const COMPONENTS: &[(&str, SchemaFn)] = &[
    ("Error", error),
    ("TaskId", derived::of::<api::task::TaskStarted>),
    ("JobId", derived::of::<api::job::JobStarted>),
    ("Server", derived::of::<api::server::Server>),
    ("Sysinfo", derived::of::<api::server::Sysinfo>),
    ("Task", derived::of::<api::task::Task>),
    ("Vm", derived::of::<api::vm::Vm>),
    ("FleetVm", derived::of::<api::vm::FleetVm>),
    ("FleetVmUsage", derived::of::<api::usage::FleetVmUsage>),
    ("LogPage", derived::of::<api::log::LogPage>),
    ("LogLine", derived::of::<api::log::LogLine>),
    ("Image", derived::of::<api::image::Manifest>),
    ("Ticket", derived::of::<api::ticket::Ticket>),
    ("BootParams", derived::of::<api::boot::BootParams>),
    ("BootModule", derived::of::<api::boot::BootModule>),
    ("Job", derived::of::<api::job::Job>),
    ("HistoryEntry", records::history_entry),
    ("Package", derived::of::<api::package::Package>),
    ("PackageCreate", package::create),
    ("PackageUpdate", package::update),
    ("VmCreate", vm::create),
    ("VmUpdate", vm::update),
    ("VmPlace", vm::place),
    ("VmObject", vm::object),
    ("VmSnapshot", vm::snapshot),
    ("Disk", vm::disk),
    ("Nic", vm::nic),
    ("Filesystem", vm::filesystem),
    ("PciDevice", vm::pci_device),
    ("FirewallRule", vm::firewall_rule),
    ("VmInfo", results::info),
    ("Psinfo", results::psinfo),
    ("Session", results::session_record),
    ("Blob", derived::of::<api::task::Blob>),
    ("TaskEvent", results::task_event),
    ("AllocationStep", derived::of::<api::allocation::AllocationStep>),
];

/// `components.schemas` of the document.
pub(super) fn components() -> Map<String, Value> {
    COMPONENTS.iter().map(|(name, schema)| ((*name).to_owned(), schema())).collect()
}

/// What a schema's references are looked up in when a value is checked.
pub(crate) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> =
        LazyLock::new(|| json!({ "components": { "schemas": components() } }));
    &DOCUMENT
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An array of a component.
fn list(name: &str) -> Value {
    json!({ "type": "array", "items": reference(name) })
}

/// Any JSON object.
pub(crate) fn object_schema() -> Value {
    json!({ "type": "object" })
}

/// The schema of a type of the API, see `muster_shared::api`; by name if it is a component.
pub(crate) fn of<T: ToSchema>() -> Value {
    let name = T::name();
    if derived::is_component(&name) { reference(&name) } else { derived::of::<T>() }
}

/// As [`of`], of an array.
pub(crate) fn array_of<T: ToSchema>() -> Value {
    json!({ "type": "array", "items": of::<T>() })
}

/// Any JSON value: what an agent returns is its own business.
pub(crate) fn any() -> Value {
    json!({})
}

/// An agent's recent tasks.
pub(crate) fn history() -> Value {
    list("HistoryEntry")
}

/// The members of a new package.
pub(crate) fn package_create() -> Value {
    reference("PackageCreate")
}

/// The members of a package's change.
pub(crate) fn package_update() -> Value {
    reference("PackageUpdate")
}

/// The parameters of a VM's create.
pub(crate) fn vm_create() -> Value {
    reference("VmCreate")
}

/// The parameters of a VM's update.
pub(crate) fn vm_update() -> Value {
    reference("VmUpdate")
}

/// The parameters of a VM for which a server is chosen.
pub(crate) fn vm_place() -> Value {
    reference("VmPlace")
}

/// A VM with all its properties.
pub(crate) fn vm_object() -> Value {
    reference("VmObject")
}

/// A UUID in either case.
pub(crate) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid", "pattern": UUID_PATTERN })
}

/// The size of a page.
pub(crate) fn limit() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": 1000 })
}

/// The start of a page.
pub(crate) fn offset() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 1_000_000_000 })
}

/// Seconds to wait.
pub(crate) fn seconds() -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": 3600 })
}

/// A time as CNAPI writes it.
pub(crate) fn iso() -> Value {
    json!({ "type": "string", "pattern": "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z$" })
}

/// What a path's parameter looks like.
pub(super) fn path_parameter(route: &Route, name: &str) -> Value {
    match name {
        "server_uuid" if route.server == ServerRule::ExistsOrDefault => {
            json!({ "anyOf": [uuid(), { "const": "default" }] })
        }
        "server_uuid" | "uuid" | "ticket_uuid" | "job_uuid" | "taskid" | "id" => uuid(),
        "dataset" => json!({
            "type": "string", "minLength": 1, "maxLength": 256, "example": "zones",
        }),
        _ => json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
    }
}

/// What a path's parameter names.
pub(super) fn path_parameter_doc(route: &Route, name: &str) -> &'static str {
    match name {
        "server_uuid" if route.server == ServerRule::ExistsOrDefault => "The server, or `default`",
        "server_uuid" => "The server",
        "uuid" if route.pattern.contains("/images/") => "The image",
        "uuid" => "The VM",
        "ticket_uuid" => "The ticket",
        "job_uuid" => "The job",
        "taskid" => "The task",
        "dataset" => "The dataset, as one percent-encoded segment: `zones%2Fx`",
        "snapshot_name" => "The snapshot",
        "kind" => "`task`, `server`, `vm` or `ticket`",
        _ => "Which one",
    }
}

fn error() -> Value {
    json!({
        "type": "object", "required": ["code", "message"],
        "description": "Why a request was refused",
        "properties": {
            "code": { "type": "string", "minLength": 1 },
            "message": { "type": "string", "minLength": 1 },
            "errors": { "type": "array", "items": {
                "type": "object", "required": ["field", "code", "message"],
                "properties": {
                    "field": { "type": "string" },
                    "code": { "type": "string" },
                    "message": { "type": "string" },
                },
            }},
            "id": { "type": "string", "description": "Of a decision that found no server" },
            "least_changes": { "type": "array", "description": "Any one of them would have made it fit" },
            "least_changes_cut": { "type": "boolean", "description": "The search ran out of time" },
            "steps": { "type": "array", "description": "Of an allocation that found no server" },
        },
    })
}
