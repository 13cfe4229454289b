//! What a client may say about a new VM: checks, coerces and completes a create payload. Pure.

mod addresses;
mod copy;
mod update;

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::vm::{
    CONTAINER_BRANDS, CONTEXT, DEFAULT_QUOTA_GIB, DEFAULT_RAM_MIB, DISK, Effect, Form, Item, Kind,
    MAX_DEVICES, MAX_VM_BYTES, MIN_SWAP_MIB, NETWORK_RECORD, NIC, NOBODY, Property, TOLD,
    asks_nothing, json_bytes, overhead_mib, property,
};
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::restart::{self, Policy};
use crate::failure::TaskFailure;
use crate::vm_record::boot::{self, BootOrder};
pub use crate::vm_record::image_of;
use crate::vm_record::routes;

pub use copy::{copy, is_cdrom};
pub use update::{internal_metadata, update};

/// The brands that run.
fn brands() -> &'static [&'static str] {
    match property("brand").map(|brand| brand.form) {
        Some(Form::OneOf(brands)) => brands,
        _ => &[],
    }
}

/// Why nobody else may say it.
const BY_AGENT: &str = "told by the agent, which knows";
/// Quota of a VM of brand bhyve that names none, GiB.
const BHYVE_QUOTA_GIB: u64 = 1;

/// What is wrong with a payload, by property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Wrong type or out of range.
    pub bad_values: Vec<String>,
    /// Needed and absent.
    pub missing_properties: Vec<String>,
    /// Not allowed for this brand, or never in a create.
    pub bad_properties: Vec<String>,
    /// Why those are not, or those are wrong, each reason once, in their order.
    pub reasons: Vec<&'static str>,
}

impl Problems {
    fn is_empty(&self) -> bool {
        self.bad_values.is_empty()
            && self.missing_properties.is_empty()
            && self.bad_properties.is_empty()
    }

    fn refuse(&mut self, name: impl Into<String>, why: &'static str) {
        self.bad_properties.push(name.into());
        self.because(why);
    }

    fn because(&mut self, why: &'static str) {
        if !self.reasons.contains(&why) {
            self.reasons.push(why);
        }
    }

    fn refuse_unless_nothing(&mut self, name: String, value: &Value, why: &'static str) {
        if !asks_nothing(value) {
            self.refuse(name, why);
        }
    }

    fn bad(&mut self, name: impl Into<String>) {
        self.bad_values.push(name.into());
    }

    fn bad_because(&mut self, name: impl Into<String>, why: &'static str) {
        self.bad(name);
        self.because(why);
    }
}

impl From<Problems> for TaskFailure {
    fn from(problems: Problems) -> Self {
        let lists = [
            ("bad values", &problems.bad_values),
            ("missing", &problems.missing_properties),
            ("not allowed", &problems.bad_properties),
        ];
        let faults: Vec<String> = lists
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what}: {}", names.join(", ")))
            .collect();
        let reasons = problems.reasons.join("; ");
        let reasons = if reasons.is_empty() { reasons } else { format!(" ({reasons})") };
        let message = format!("Invalid VM payload: {}{reasons}", faults.join("; "));
        TaskFailure::new(Code::InvalidVmPayload, message).with_details(json!({
            "bad_values": problems.bad_values,
            "missing_properties": problems.missing_properties,
            "bad_properties": problems.bad_properties,
        }))
    }
}

/// The VM's uuid in a task's parameters.
///
/// # Errors
/// `InvalidParameters`.
pub fn vm_uuid(params: &Map<String, Value>) -> Result<VmUuid, TaskFailure> {
    let text = params.get("uuid").ok_or_else(|| TaskFailure::bad_param("uuid", "is missing"))?;
    let text = text.as_str().unwrap_or_default().to_ascii_lowercase();
    text.parse().map_err(|problem| TaskFailure::bad_param("uuid", problem))
}

/// The properties of a new VM, complete with defaults, from the parameters of `machine_create`.
///
/// # Errors
/// `InvalidVmPayload` with all that is wrong; `ContainerNotSupported`.
pub fn create(params: &Map<String, Value>) -> Result<Map<String, Value>, TaskFailure> {
    let mut params = params.clone();
    rename_aliases(&mut params);
    if let Some(brand) = params.get("brand").and_then(Value::as_str)
        && CONTAINER_BRANDS.contains(&brand)
        && !brands().contains(&brand)
    {
        let text = format!("brand {brand}: this agent runs {} only", brands().join(", "));
        return Err(TaskFailure::new(Code::ContainerNotSupported, text));
    }
    let is_container = is_container(&params);
    let mut problems = Problems::default();
    let mut vm = Map::new();
    for (name, value) in params {
        // Unset, or for somebody else.
        if value.is_null() || CONTEXT.contains(&name.as_str()) {
            continue;
        }
        match property(&name).map(|property| (property, property.effect_on(is_container))) {
            _ if TOLD.contains(&name.as_str()) => problems.refuse(name, BY_AGENT),
            None => tracing::info!(property = name, "an unknown VM property was dropped"),
            Some((_, Effect::Ignored(why))) => {
                tracing::info!(property = name, why, "a VM property was dropped");
            }
            Some((_, Effect::Dropped)) => {}
            Some((_, Effect::Refused(why))) => problems.refuse_unless_nothing(name, &value, why),
            Some((property, Effect::Live | Effect::AtStart | Effect::Kept(_))) => {
                match checked(property, &value, &mut problems) {
                    Some(value) => drop(vm.insert(name, value)),
                    None => problems.bad(name),
                }
            }
        }
    }
    complete(&mut vm, &mut problems);
    bound(&vm, 0, &mut problems);
    if problems.is_empty() { Ok(vm) } else { Err(problems.into()) }
}

/// Whether a VM of these properties is a container.
#[must_use]
pub fn is_container(vm: &Map<String, Value>) -> bool {
    let brand = vm.get("brand").and_then(Value::as_str);
    brand.is_some_and(|brand| CONTAINER_BRANDS.contains(&brand))
}

/// Every image that the VM's disks, or its root, are made from.
#[must_use]
pub fn images(vm: &Map<String, Value>) -> Vec<ImageUuid> {
    let own = vm.get("image_uuid").filter(|_| is_container(vm));
    let own = own.and_then(|image| image.as_str()?.parse().ok());
    let mut images: Vec<ImageUuid> = disks(vm).iter().filter_map(image_of).chain(own).collect();
    images.sort_unstable();
    images.dedup();
    images
}

/// The VM's quota, MiB; `None` when it has none.
#[must_use]
pub fn quota_mib(vm: &Map<String, Value>) -> Option<u64> {
    let gib = vm.get("quota")?.as_u64().filter(|gib| *gib > 0)?;
    Some(gib.saturating_mul(1024))
}

fn disks(vm: &Map<String, Value>) -> &[Value] {
    vm.get("disks").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn rename_aliases(params: &mut Map<String, Value>) {
    if let Some(pool) = params.shift_remove("zfs_storage_pool_name") {
        params.entry("zpool").or_insert(pool);
    }
}

fn checked(property: &Property, value: &Value, problems: &mut Problems) -> Option<Value> {
    match property.kind {
        Kind::List(Item::Disk) => devices(property.name, value, problems, disk),
        Kind::List(Item::Nic) => devices(property.name, value, problems, nic),
        _ if property.name == "boot" => boot_order(property.read(value)?, problems),
        _ if property.name == "routes" => routes(property.read(value)?, problems),
        _ => property.read(value),
    }
}

/// Letters that no device has would be passed over without a word.
fn boot_order(value: Value, problems: &mut Problems) -> Option<Value> {
    if value.as_str().is_some_and(|text| BootOrder::parse(text).is_none()) {
        problems.refuse("boot", boot::FORM);
    }
    Some(value)
}

/// A guest could not follow what is of another form.
fn routes(value: Value, problems: &mut Problems) -> Option<Value> {
    if !routes::are_usable(&value) {
        problems.bad_because("routes", routes::FORM);
    }
    Some(value)
}

type DeviceRule = fn(&str, &Map<String, Value>, &mut Problems) -> Map<String, Value>;

fn devices(name: &str, value: &Value, problems: &mut Problems, rule: DeviceRule) -> Option<Value> {
    let devices = value.as_array().filter(|devices| devices.len() <= MAX_DEVICES)?;
    let mut checked = Vec::with_capacity(devices.len());
    for (index, device) in devices.iter().enumerate() {
        let path = format!("{name}.{index}");
        checked.push(Value::Object(rule(&path, device.as_object()?, problems)));
    }
    Some(Value::Array(checked))
}

fn disk(path: &str, given: &Map<String, Value>, problems: &mut Problems) -> Map<String, Value> {
    let disk = members(DISK, &[], path, given, problems);
    if disk.get("media").is_some_and(|media| media == "cdrom") {
        cdrom(path, &disk, problems);
    } else if !disk.contains_key("size") && !disk.contains_key("image_uuid") {
        problems.missing_properties.push(format!("{path}.size"));
    }
    disk
}

/// A CD is its image, and its drive is none of paravirtual disks.
fn cdrom(path: &str, disk: &Map<String, Value>, problems: &mut Problems) {
    if !disk.contains_key("image_uuid") {
        problems.missing_properties.push(format!("{path}.image_uuid"));
    }
    if disk.contains_key("size") {
        problems.refuse(format!("{path}.size"), "a CD is as large as its image");
    }
    if disk.get("model").is_some_and(|model| model == "virtio" || model == "nvme") {
        problems.bad(format!("{path}.model"));
    }
}

fn nic(path: &str, given: &Map<String, Value>, problems: &mut Problems) -> Map<String, Value> {
    let mut nic = members(NIC, NETWORK_RECORD, path, given, problems);
    addresses::sync(&mut nic, given);
    if !nic.contains_key("nic_tag") {
        problems.missing_properties.push(format!("{path}.nic_tag"));
    }
    nic
}

/// What is recorded of a disk or a NIC. A name that no table has is refused: what it asks for would
/// not come.
fn members(
    table: &[Property],
    dropped: &[&str],
    path: &str,
    given: &Map<String, Value>,
    problems: &mut Problems,
) -> Map<String, Value> {
    let mut members = Map::new();
    for (name, value) in given {
        // Unset, or for somebody else.
        if value.is_null() || dropped.contains(&name.as_str()) {
            continue;
        }
        let field = format!("{path}.{name}");
        let Some(property) = table.iter().find(|property| property.name == name) else {
            problems.refuse(field, "nothing has this name");
            continue;
        };
        match property.effect {
            Effect::Refused(why) => problems.refuse_unless_nothing(field, value, why),
            Effect::Dropped | Effect::Ignored(_) => {}
            Effect::Live | Effect::AtStart | Effect::Kept(_) => {
                let read = if name == "mac" { mac(value) } else { property.read(value) };
                match read {
                    Some(value) => drop(members.insert(name.clone(), value)),
                    None => problems.bad(field),
                }
            }
        }
    }
    members
}

fn mac(value: &Value) -> Option<Value> {
    let text = value.as_str()?.to_ascii_lowercase();
    let octets: Vec<u8> = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok().filter(|_| octet.len() == 2))
        .collect::<Option<_>>()?;
    // The lowest bit of the first octet marks a group address.
    (octets.len() == 6 && octets[0] & 1 == 0).then(|| Value::from(text))
}

fn complete(vm: &mut Map<String, Value>, problems: &mut Problems) {
    if !vm.contains_key("brand") && !problems.bad_values.iter().any(|name| name == "brand") {
        match disks(vm) {
            [] => problems.missing_properties.push("brand".to_owned()),
            _ => drop(vm.insert("brand".to_owned(), json!("bhyve"))),
        }
    }
    let bhyve = vm.get("brand").is_some_and(|brand| brand == "bhyve");
    let mut default = |name: &str, value: Value| {
        vm.entry(name).or_insert(value);
    };
    default("owner_uuid", json!(NOBODY));
    default("billing_id", json!(NOBODY));
    default("ram", json!(DEFAULT_RAM_MIB));
    default("vcpus", json!(1));
    default("autoboot", json!(true));
    default("cpu_shares", json!(100));
    default("zfs_io_priority", json!(100));
    default("max_lwps", json!(2000));
    default("quota", json!(if bhyve { BHYVE_QUOTA_GIB } else { DEFAULT_QUOTA_GIB }));
    default("zpool", json!(crate::drivers::storage::DEFAULT_POOL));
    for object in ["tags", "customer_metadata", "internal_metadata"] {
        default(object, json!({}));
    }
    default("nics", json!([]));
    let image = vm.get("image_uuid").cloned();
    match (is_container(vm), image) {
        (true, None) => problems.missing_properties.push("image_uuid".to_owned()),
        (false, Some(image)) if disks(vm).is_empty() => {
            vm.insert("disks".to_owned(), json!([{ "image_uuid": image }]));
        }
        _ => {}
    }
    vm.entry("disks").or_insert(json!([]));
    complete_memory(vm, problems);
    complete_devices(vm, problems);
}

/// Refuses a restart policy that is none, and names the largest property of a VM that is too large
/// as a whole. One that was so before may
/// stay as it is, or become smaller.
fn bound(vm: &Map<String, Value>, before_bytes: usize, problems: &mut Problems) {
    let policy = vm.get("internal_metadata").and_then(|metadata| metadata.get(restart::POLICY_KEY));
    if policy
        .is_some_and(|policy| policy.as_str().is_none_or(|text| text.parse::<Policy>().is_err()))
    {
        let name = format!("internal_metadata.{}", restart::POLICY_KEY);
        problems.refuse(name, restart::POLICY_FORM);
    }
    let bytes = json_bytes(vm);
    if bytes > MAX_VM_BYTES && bytes > before_bytes {
        let largest = vm.iter().max_by_key(|(_, value)| json_bytes(*value));
        problems.bad(largest.map_or("", |(name, _)| name.as_str()));
    }
}

fn complete_memory(vm: &mut Map<String, Value>, problems: &mut Problems) {
    let ram = vm.get("ram").and_then(Value::as_u64).unwrap_or(0);
    let brand = vm.get("brand").and_then(Value::as_str).unwrap_or_default();
    let with_overhead = ram + u64::from(overhead_mib(brand));
    let memory = vm.entry("max_physical_memory").or_insert(json!(with_overhead));
    let memory = memory.as_u64().unwrap_or(0);
    if memory < ram {
        problems.bad("max_physical_memory");
    }
    vm.entry("max_locked_memory").or_insert(json!(memory));
    // Packages give a figure that does not know the hypervisor's overhead: it is raised.
    let swap = vm.get("max_swap").and_then(Value::as_u64).unwrap_or(0);
    vm.insert("max_swap".to_owned(), json!(swap.max(memory).max(MIN_SWAP_MIB)));
}

fn complete_devices(vm: &mut Map<String, Value>, problems: &mut Problems) {
    let disk_model = vm.get("disk_driver").cloned().unwrap_or(json!("virtio"));
    if let Some(Value::Array(disks)) = vm.get_mut("disks") {
        only_one(disks, "boot", || problems.bad("disks"));
        for disk in disks.iter_mut().filter_map(Value::as_object_mut) {
            let cdrom = disk.get("media").is_some_and(|media| media == "cdrom");
            disk.entry("media").or_insert(json!("disk"));
            let model = || if cdrom { json!("ide") } else { disk_model.clone() };
            disk.entry("model").or_insert_with(model);
        }
    }
    let nic_model = vm.get("nic_driver").cloned().unwrap_or(json!("virtio"));
    if let Some(Value::Array(nics)) = vm.get_mut("nics") {
        only_one(nics, "primary", || problems.bad("nics"));
        for (index, nic) in nics.iter_mut().enumerate() {
            let Some(nic) = nic.as_object_mut() else { continue };
            nic.entry("model").or_insert_with(|| nic_model.clone());
            nic.entry("interface").or_insert_with(|| json!(format!("net{index}")));
        }
    }
}

/// Lets exactly one device, the first unless another says so, carry the mark.
fn only_one(devices: &mut [Value], mark: &str, too_many: impl FnOnce()) {
    let marked = devices.iter().filter(|device| device[mark] == true).count();
    for device in devices.iter_mut().filter_map(Value::as_object_mut) {
        if device.get(mark).is_some_and(|value| *value == false) {
            device.shift_remove(mark);
        }
    }
    match (marked, devices.first_mut()) {
        (0, Some(Value::Object(first))) => drop(first.insert(mark.to_owned(), json!(true))),
        (0 | 1, _) => {}
        _ => too_many(),
    }
}

#[cfg(test)]
mod tests;
