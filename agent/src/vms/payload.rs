//! What a client may say about a new VM: checks, coerces and completes a create payload. Pure.

mod update;

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use crate::tasks::TaskFailure;

pub use update::update;

/// Disks or network interfaces of one VM.
const MAX_DEVICES: usize = 32;
/// Longest alias, characters.
const MAX_ALIAS_CHARS: usize = 189;
/// Least memory of a hardware VM, MiB.
const MIN_RAM_MIB: u64 = 64;
/// Least swap of a VM, MiB.
const MIN_SWAP_MIB: u64 = 256;
/// Largest size of anything counted in MiB (1 EiB): keeps sums far from overflow.
const MAX_MIB: u64 = 1 << 40;

/// Brands that run as containers, which this agent does not do yet.
const CONTAINER_BRANDS: &[&str] = &["joyent", "joyent-minimal", "builder", "lx", "docker"];

/// How a property is checked.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Uuid,
    Text,
    OneOf(&'static [&'static str]),
    Flag,
    Number {
        min: u64,
        max: u64,
    },
    Signed,
    FlatObject,
    List,
    Disks,
    Nics,
    /// Told by the agent, never to it.
    ReadOnly,
    /// Sent along by coordinators; dropped without a word.
    Hint,
    /// Not for hardware VMs, or not offered by this agent.
    Forbidden,
}

const MIB: Kind = Kind::Number { min: 0, max: MAX_MIB };
const COUNT: Kind = Kind::Number { min: 0, max: u32::MAX as u64 };

/// Every property with a rule; what is not here is dropped.
const PROPERTIES: &[(&str, Kind)] = &[
    ("alias", Kind::Text),
    ("archive_on_delete", Kind::Flag),
    ("autoboot", Kind::Flag),
    ("billing_id", Kind::Uuid),
    ("boot", Kind::Text),
    ("boot_timestamp", Kind::ReadOnly),
    ("bootrom", Kind::OneOf(&["bios"])),
    ("bhyve_extra_opts", Kind::Forbidden),
    ("brand", Kind::OneOf(&["bhyve", "kvm"])),
    ("cpu_cap", COUNT),
    ("cpu_shares", COUNT),
    ("cpu_type", Kind::Text),
    ("create_timestamp", Kind::ReadOnly),
    ("customer_metadata", Kind::FlatObject),
    ("datacenter_name", Kind::Hint),
    ("delegate_dataset", Kind::Forbidden),
    ("disk_driver", Kind::OneOf(&["ahci", "ide", "nvme", "scsi", "virtio"])),
    ("disks", Kind::Disks),
    ("do_not_inventory", Kind::Flag),
    ("docker", Kind::Forbidden),
    ("exit_status", Kind::ReadOnly),
    ("exit_timestamp", Kind::ReadOnly),
    ("filesystems", Kind::Forbidden),
    ("firewall_enabled", Kind::Flag),
    ("firewall_rules", Kind::Hint),
    ("flexible_disk_size", MIB),
    ("fs_allowed", Kind::Forbidden),
    ("hostname", Kind::Text),
    ("idempotent", Kind::Hint),
    ("image", Kind::Hint),
    ("image_uuid", Kind::Uuid),
    ("indestructible_delegated", Kind::Flag),
    ("indestructible_zoneroot", Kind::Flag),
    ("init_name", Kind::Forbidden),
    ("internal_metadata", Kind::FlatObject),
    ("internal_metadata_namespaces", Kind::List),
    ("keep_failed", Kind::Hint),
    ("kernel_version", Kind::Forbidden),
    ("last_modified", Kind::ReadOnly),
    ("limit_priv", Kind::List),
    ("maintain_resolvers", Kind::Flag),
    ("max_locked_memory", MIB),
    ("max_lwps", COUNT),
    ("max_physical_memory", MIB),
    ("max_swap", MIB),
    ("nic_driver", Kind::OneOf(&["e1000", "rtl8139", "virtio"])),
    ("nics", Kind::Nics),
    ("owner_uuid", Kind::Uuid),
    ("package_name", Kind::Text),
    ("package_version", Kind::Text),
    ("pci_devices", Kind::Forbidden),
    ("pid", Kind::ReadOnly),
    ("qemu_extra_opts", Kind::Forbidden),
    ("qemu_opts", Kind::Forbidden),
    ("quota", Kind::Number { min: 0, max: MAX_MIB / 1024 }),
    ("ram", Kind::Number { min: MIN_RAM_MIB, max: MAX_MIB }),
    ("req_id", Kind::Hint),
    ("resolvers", Kind::List),
    ("routes", Kind::FlatObject),
    ("server_uuid", Kind::Hint),
    ("snapshots", Kind::ReadOnly),
    ("spice_opts", Kind::Forbidden),
    ("spice_password", Kind::Forbidden),
    ("spice_port", Kind::Forbidden),
    ("state", Kind::ReadOnly),
    ("tags", Kind::FlatObject),
    ("task", Kind::Hint),
    ("tmpfs", Kind::Forbidden),
    ("uuid", Kind::Hint),
    ("vcpus", Kind::Number { min: 1, max: 1024 }),
    ("vga", Kind::OneOf(&["cirrus", "qxl", "std", "vmware"])),
    ("vnc_password", Kind::Text),
    ("vnc_port", Kind::Signed),
    ("zfs_io_priority", COUNT),
    ("zone_state", Kind::ReadOnly),
    ("zonename", Kind::Text),
    ("zpool", Kind::Text),
];

/// What is wrong with a payload, by property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Wrong type or out of range.
    pub bad_values: Vec<String>,
    /// Needed and absent.
    pub missing_properties: Vec<String>,
    /// Not allowed for this brand, or never in a create.
    pub bad_properties: Vec<String>,
}

impl Problems {
    fn is_empty(&self) -> bool {
        self.bad_values.is_empty()
            && self.missing_properties.is_empty()
            && self.bad_properties.is_empty()
    }

    fn bad(&mut self, name: impl Into<String>) {
        self.bad_values.push(name.into());
    }
}

impl From<Problems> for TaskFailure {
    fn from(problems: Problems) -> Self {
        let lists = [
            ("bad values", &problems.bad_values),
            ("missing", &problems.missing_properties),
            ("not allowed", &problems.bad_properties),
        ];
        let told: Vec<String> = lists
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what}: {}", names.join(", ")))
            .collect();
        let message = format!("Invalid VM payload: {}", told.join("; "));
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
    {
        let text = format!("brand {brand}: this agent runs hardware VMs only (kvm, bhyve)");
        return Err(TaskFailure::new(Code::ContainerNotSupported, text));
    }
    let mut problems = Problems::default();
    let mut vm = Map::new();
    for (name, value) in params {
        let rule = PROPERTIES.iter().find(|(known, _)| *known == name);
        match rule {
            // Unset.
            _ if value.is_null() => {}
            None => tracing::info!(property = name, "an unknown VM property was dropped"),
            Some((_, Kind::Hint)) => {}
            Some((_, Kind::ReadOnly | Kind::Forbidden)) => problems.bad_properties.push(name),
            Some((_, kind)) => match checked(*kind, &name, value, &mut problems) {
                Some(value) => drop(vm.insert(name, value)),
                None => problems.bad(name),
            },
        }
    }
    complete(&mut vm, &mut problems);
    if problems.is_empty() { Ok(vm) } else { Err(problems.into()) }
}

/// Every image the VM's disks are made from.
#[must_use]
pub fn images(vm: &Map<String, Value>) -> Vec<ImageUuid> {
    let mut images: Vec<ImageUuid> = disks(vm).iter().filter_map(image_of).collect();
    images.sort_unstable();
    images.dedup();
    images
}

/// The image of one entry of `disks`.
#[must_use]
pub fn image_of(disk: &Value) -> Option<ImageUuid> {
    disk.get("image_uuid")?.as_str()?.parse().ok()
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

fn checked(kind: Kind, name: &str, value: Value, problems: &mut Problems) -> Option<Value> {
    match kind {
        Kind::Uuid => uuid(&value),
        Kind::Text => text(name, &value),
        Kind::OneOf(words) => value.as_str().filter(|word| words.contains(word)).map(Value::from),
        Kind::Flag => lenient::flag(&value).map(Value::from),
        Kind::Number { min, max } => {
            lenient::number(&value).filter(|number| (min..=max).contains(number)).map(Value::from)
        }
        Kind::Signed => value.as_i64().filter(|port| (-1..=65_535).contains(port)).map(Value::from),
        Kind::FlatObject => flat(&value).then_some(value),
        Kind::List => lenient::words(&value).map(Value::from),
        Kind::Disks => Some(devices(name, &value, problems, disk)?),
        Kind::Nics => Some(devices(name, &value, problems, nic)?),
        Kind::ReadOnly | Kind::Hint | Kind::Forbidden => None,
    }
}

fn uuid(value: &Value) -> Option<Value> {
    let text = value.as_str()?.to_ascii_lowercase();
    let uuid: VmUuid = text.parse().ok()?;
    Some(json!(uuid))
}

fn text(name: &str, value: &Value) -> Option<Value> {
    let text = value.as_str()?;
    let fits = match name {
        "alias" => (1..=MAX_ALIAS_CHARS).contains(&text.chars().count()),
        "hostname" => is_host_name(text),
        "vnc_password" => text.len() <= 8,
        // These reach the hypervisor's command line, where a comma would start an option.
        "boot" | "cpu_type" => {
            text.len() <= 64
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.=,+".contains(&b))
                && (name == "boot" || !text.contains(','))
        }
        _ => text.len() <= 1024,
    };
    (fits && !text.contains('\0')).then(|| Value::from(text))
}

/// Labels of letters, digits and hyphens, separated by dots.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn flat(value: &Value) -> bool {
    let scalar = |value: &Value| !value.is_array() && !value.is_object() && !value.is_null();
    value.as_object().is_some_and(|object| object.values().all(scalar))
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
    const MODELS: &[&str] = &["ahci", "ide", "nvme", "scsi", "virtio"];
    let mut disk = Map::new();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let field = format!("{path}.{name}");
        let value = match name.as_str() {
            "size" => checked(Kind::Number { min: 1, max: MAX_MIB }, name, value.clone(), problems),
            "image_size" | "block_size" => checked(MIB, name, value.clone(), problems),
            "image_uuid" | "uuid" => uuid(value),
            "image_name" | "compression" | "zpool" => text(name, value),
            "boot" | "notrim" => lenient::flag(value).map(Value::from),
            "model" => checked(Kind::OneOf(MODELS), name, value.clone(), problems),
            "media" => checked(Kind::OneOf(&["disk"]), name, value.clone(), problems),
            // Files of the host are not for guests.
            "nocreate" | "path" => {
                problems.bad_properties.push(field);
                continue;
            }
            _ => continue,
        };
        match value {
            Some(value) => drop(disk.insert(name.clone(), value)),
            None => problems.bad(field),
        }
    }
    if !disk.contains_key("size") && !disk.contains_key("image_uuid") {
        problems.missing_properties.push(format!("{path}.size"));
    }
    disk
}

fn nic(path: &str, given: &Map<String, Value>, problems: &mut Problems) -> Map<String, Value> {
    const MODELS: &[&str] = &["e1000", "rtl8139", "virtio"];
    let mut nic = Map::new();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let value = match name.as_str() {
            "mac" => mac(value),
            "model" => checked(Kind::OneOf(MODELS), name, value.clone(), problems),
            "vlan_id" => checked(Kind::Number { min: 0, max: 4095 }, name, value.clone(), problems),
            "mtu" => checked(Kind::Number { min: 576, max: 9000 }, name, value.clone(), problems),
            "primary" => lenient::flag(value).map(Value::from),
            "ips" | "gateways" | "allowed_ips" => lenient::words(value).map(Value::from),
            "network_uuid" => uuid(value),
            "nic_tag" | "interface" | "ip" | "netmask" | "gateway" => text(name, value),
            _ => Some(value.clone()),
        };
        match value {
            Some(value) => drop(nic.insert(name.clone(), value)),
            None => problems.bad(format!("{path}.{name}")),
        }
    }
    if !nic.contains_key("nic_tag") {
        problems.missing_properties.push(format!("{path}.nic_tag"));
    }
    nic
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
    default("owner_uuid", json!(super::object::NO_OWNER));
    default("billing_id", json!(super::object::NO_OWNER));
    default("ram", json!(256));
    default("vcpus", json!(1));
    default("autoboot", json!(true));
    default("cpu_shares", json!(100));
    default("zfs_io_priority", json!(100));
    default("max_lwps", json!(2000));
    default("quota", json!(if bhyve { 1 } else { 10 }));
    default("zpool", json!(crate::drivers::storage::DEFAULT_POOL));
    for object in ["tags", "customer_metadata", "internal_metadata"] {
        default(object, json!({}));
    }
    default("nics", json!([]));
    if let (true, Some(image)) = (disks(vm).is_empty(), vm.get("image_uuid").cloned()) {
        vm.insert("disks".to_owned(), json!([{ "image_uuid": image }]));
    }
    vm.entry("disks").or_insert(json!([]));
    complete_memory(vm, bhyve, problems);
    complete_devices(vm, problems);
}

fn complete_memory(vm: &mut Map<String, Value>, bhyve: bool, problems: &mut Problems) {
    let ram = vm.get("ram").and_then(Value::as_u64).unwrap_or(0);
    let overhead = if bhyve { 1280 } else { 1024 };
    let memory = vm.entry("max_physical_memory").or_insert(json!(ram + overhead));
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
            disk.entry("model").or_insert_with(|| disk_model.clone());
            disk.entry("media").or_insert(json!("disk"));
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
