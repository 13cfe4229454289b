//! The parsed and checked body of an allocation or capacity request.

pub use muster_shared::api::FieldError;
use muster_shared::ids::{BadId, ServerUuid};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::num::{display, nonzero, num, some_truthy, truthy};
use crate::promises::Extra;
use crate::ratios::Ratios;
use crate::recent::PlacedVm;
use crate::settings::SPREADS;
use crate::validate::{self, Affinity, Locality, ensure, is_uuid, optional_num, optional_number};
use crate::vm::Brand;

/// Refuses members that mean nothing: what a misspelt one asks for would be left out unnoticed.
///
/// # Errors
/// The first such member, and which one may be meant.
pub fn known_members(
    field: &str,
    members: &Map<String, Value>,
    known: &[&str],
) -> Result<(), FieldError> {
    let Some(stranger) = members.keys().find(|name| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    let meant = muster_shared::config::nearest(stranger, known.iter().copied());
    let hint = meant.map(|meant| format!(", did you mean {meant}?")).unwrap_or_default();
    Err(FieldError::new(format!("{field}.{stranger}"), format!("unknown member{hint}")))
}

/// The VM to place.
#[derive(Clone, Debug)]
pub(crate) struct VmRequest {
    pub(crate) uuid: Option<String>,
    pub(crate) vm_uuid: String,
    pub(crate) owner_uuid: String,
    pub(crate) owner: Uuid,
    pub(crate) brand: String,
    /// MiB.
    pub(crate) ram: f64,
    /// GiB.
    pub(crate) quota: Option<f64>,
    /// Percent of one core.
    pub(crate) cpu_cap: Option<f64>,
    pub(crate) vcpus: Option<f64>,
    pub(crate) docker: bool,
    pub(crate) has_metadata: bool,
    pub(crate) volumes: bool,
    pub(crate) flexible_disk: bool,
    pub(crate) force_failure: bool,
    pub(crate) encrypted: bool,
    pub(crate) nfs_v2: bool,
    pub(crate) exclude_virtual: bool,
    pub(crate) override_recent: bool,
    pub(crate) volumes_from: Vec<String>,
    pub(crate) traits: Option<Map<String, Value>>,
    pub(crate) affinity: Option<Vec<Affinity>>,
    pub(crate) locality: Option<Locality>,
    /// Groups of which each needs one tag; `None` if the request says nothing.
    pub(crate) nic_groups: Option<Vec<Vec<String>>>,
}

impl VmRequest {
    /// Whether its memory is never overprovisioned.
    pub(crate) fn is_hvm(&self) -> bool {
        Brand::of(&self.brand).is_hvm()
    }
}

/// The image to make it from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) kind: String,
    /// MiB.
    pub(crate) image_size: f64,
    pub(crate) files_bytes: f64,
    pub(crate) traits: Option<Map<String, Value>>,
    pub(crate) min_platform: Option<Map<String, Value>>,
    pub(crate) max_platform: Option<Map<String, Value>>,
    pub(crate) min_ram: Option<f64>,
    pub(crate) max_ram: Option<f64>,
}

/// The package, massaged as the reference's `_massagePackage` does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) ratios: Ratios,
    /// MiB.
    pub(crate) max_physical_memory: Option<f64>,
    pub(crate) cpu_cap: Option<f64>,
    /// MiB.
    pub(crate) quota: Option<f64>,
    pub(crate) spread: Option<String>,
    pub(crate) min_platform: Option<Map<String, Value>>,
    pub(crate) traits: Option<Map<String, Value>>,
}

/// A checked allocation request.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) vm: VmRequest,
    pub(crate) image: Image,
    pub(crate) package: Option<Package>,
    pub(crate) servers: Option<Vec<ServerUuid>>,
}

impl Request {
    /// Checks the body of `POST /allocate`: members `vm`, `image`, `package?`, `nic_tags`,
    /// `nic_tag_requirements?`, `servers?`; others are ignored.
    ///
    /// # Errors
    /// Every member of the wrong type together; or else the first other fault.
    pub fn parse(body: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let errors = type_errors(body);
        if !errors.is_empty() {
            return Err(errors);
        }
        Self::parse_members(body).map_err(|error| vec![error])
    }

    fn parse_members(body: &Map<String, Value>) -> Result<Self, FieldError> {
        let field = |name: &'static str| move |message: String| FieldError::new(name, message);
        let image = parse_image(body.get("image")).map_err(field("image"))?;
        let package =
            body.get("package").map(parse_package).transpose().map_err(field("package"))?;
        let vm_value = body.get("vm").unwrap_or(&Value::Null);
        let mut vm = parse_vm(vm_value).map_err(field("vm"))?;
        check_ram(&vm, &image).map_err(field("vm"))?;
        let servers = parse_servers(body.get("servers")).map_err(field("servers"))?;
        let requirements = match body.get("nic_tag_requirements") {
            Some(Value::Array(items)) => {
                Some(validate::nic_tag_requirements(items).map_err(field("nic_tag_requirements"))?)
            }
            _ => None,
        };
        let tags = match body.get("nic_tags") {
            Some(Value::Array(items)) => {
                validate::ensure_few_tags(items.len()).map_err(field("nic_tags"))?;
                items
                    .iter()
                    .map(|tag| tag.as_str().map(|tag| vec![tag.to_owned()]))
                    .collect::<Option<Vec<_>>>()
                    .ok_or_else(|| FieldError::new("nic_tags", "invalid nic_tag"))?
            }
            _ => Vec::new(),
        };
        vm.nic_groups = Some(requirements.unwrap_or(tags));
        Ok(Self { vm, image, package, servers })
    }

    /// A request that asks for nothing; capacity looks only at servers: these, or all.
    pub(crate) fn for_capacity(servers: Option<&[ServerUuid]>) -> Self {
        let vm = VmRequest {
            uuid: None,
            vm_uuid: String::new(),
            owner_uuid: String::new(),
            owner: Uuid::nil(),
            brand: String::new(),
            ram: 0.0,
            quota: None,
            cpu_cap: None,
            vcpus: None,
            docker: false,
            has_metadata: false,
            volumes: false,
            flexible_disk: false,
            force_failure: false,
            encrypted: false,
            nfs_v2: false,
            exclude_virtual: false,
            override_recent: false,
            volumes_from: Vec::new(),
            traits: None,
            affinity: None,
            locality: None,
            nic_groups: None,
        };
        Self { vm, image: Image::default(), package: None, servers: servers.map(<[_]>::to_vec) }
    }

    /// The VM's uuid (`vm.vm_uuid`).
    #[must_use]
    pub fn vm_uuid(&self) -> &str {
        &self.vm.vm_uuid
    }

    /// The servers to which the request restricts itself.
    #[must_use]
    pub fn servers(&self) -> Option<&[ServerUuid]> {
        self.servers.as_deref()
    }

    /// The VM as `calculate-recent-vms` remembers it once it was placed; `None` if the request
    /// does not want that (`vm.override_recent_vms`).
    #[must_use]
    pub fn recent_vm(&self, server_uuid: ServerUuid) -> Option<PlacedVm> {
        if self.vm.override_recent {
            return None;
        }
        let package = self.package.as_ref();
        let is_zvol = self.image.kind == "zvol";
        let memory = package.and_then(|p| p.max_physical_memory).unwrap_or(0.0);
        Some(PlacedVm {
            uuid: self.vm.vm_uuid.as_str().into(),
            owner_uuid: self.vm.owner_uuid.as_str().into(),
            server_uuid,
            is_zvol,
            max_physical_memory: memory + if is_zvol { 1024.0 } else { 0.0 },
            cpu_cap: package.and_then(|p| p.cpu_cap),
            quota: package.and_then(|p| p.quota).unwrap_or(0.0) / 1024.0,
            image_size: if is_zvol { self.image.image_size * 1_048_576.0 } else { 0.0 },
        })
    }

    /// What the VM will take on its server: figures for a reservation.
    #[must_use]
    pub fn promise(&self) -> Extra {
        let package = self.package.as_ref();
        // Memory falls back to the package as in the RAM filter, the rest as in theirs.
        let ram = nonzero(self.vm.ram).or(package.and_then(|p| p.max_physical_memory));
        Extra {
            owner_uuid: self.vm.owner_uuid.clone(),
            max_physical_memory: ram.unwrap_or(0.0),
            cpu_cap: self.vm.cpu_cap.or(package.and_then(|p| p.cpu_cap)),
            quota: self
                .vm
                .quota
                .or(package.and_then(|p| p.quota).map(|mib| mib / 1024.0))
                .unwrap_or(0.0),
            brand: self.vm.brand.clone(),
            disks_mib: if self.vm.is_hvm() { self.image.image_size } else { 0.0 },
        }
    }
}

/// The servers named by a capacity request: `None` for all.
///
/// # Errors
/// The member is no array of UUIDs (one level of nesting is flattened, as vmapi sends it).
pub fn parse_capacity(
    body: &Map<String, Value>,
) -> Result<Option<Vec<ServerUuid>>, Vec<FieldError>> {
    let Some(value) = body.get("servers") else { return Ok(None) };
    let Value::Array(items) = value else {
        return Err(vec![FieldError::new("servers", "value was not an array")]);
    };
    let mut flat = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Value::Array(inner) => flat.extend(inner.iter().cloned()),
            other => flat.push(other.clone()),
        }
    }
    parse_servers(Some(&Value::Array(flat)))
        .map_err(|message| vec![FieldError::new("servers", message)])
}

fn type_errors(body: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let members = [
        ("servers", true, true),
        ("package", false, true),
        ("image", false, false),
        ("vm", false, false),
        ("nic_tag_requirements", true, true),
        ("nic_tags", true, false),
    ];
    for (name, array, optional) in members {
        match body.get(name) {
            None if optional => {}
            Some(Value::Array(_)) if array => {}
            Some(Value::Object(_)) if !array => {}
            _ if array => errors.push(FieldError::new(name, "value was not an array")),
            value => {
                let kind = match value {
                    None => "Undefined",
                    Some(Value::Null) => "Null",
                    Some(Value::String(_)) => "String",
                    Some(Value::Number(_)) => "Number",
                    Some(Value::Bool(_)) => "Boolean",
                    Some(_) => "Array",
                };
                let message = format!("value is not an object. (was: [object {kind}])");
                errors.push(FieldError::new(name, message));
            }
        }
    }
    errors
}

fn parse_servers(value: Option<&Value>) -> Result<Option<Vec<ServerUuid>>, String> {
    let Some(Value::Array(items)) = value else { return Ok(None) };
    items
        .iter()
        .map(|item| match item {
            Value::String(uuid) => uuid.parse().map_err(|BadId| ()),
            _ => Err(()),
        })
        .collect::<Result<_, _>>()
        .map(Some)
        .map_err(|()| "invalid server UUID".to_owned())
}

fn parse_image(value: Option<&Value>) -> Result<Image, String> {
    let Some(Value::Object(map)) = value else { return Err("\"image\" has invalid type".into()) };
    let image_size =
        optional_number(map.get("image_size"), "\"image.image_size\" has invalid type")?;
    let traits = some_truthy(map.get("traits")).map(validate::traits).transpose()?;
    let empty = Map::new();
    let requirements = match some_truthy(map.get("requirements")) {
        None => &empty,
        Some(Value::Object(requirements)) => requirements,
        Some(_) => return Err("\"image.requirements\" has invalid type".into()),
    };
    let platforms = |name: &str| match requirements.get(name) {
        Some(Value::Null) => Err(format!("\"requirements.{name}\" is not a hash")),
        platforms => validate::platforms(platforms, &format!("requirements.{name}")),
    };
    let (min_platform, max_platform) = (platforms("min_platform")?, platforms("max_platform")?);
    let ram = |name: &str| {
        optional_number(
            requirements.get(name),
            &format!("\"image.requirements.{name}\" has invalid type"),
        )
    };
    let files_bytes = match map.get("files") {
        Some(Value::Array(files)) => {
            files.iter().filter_map(|f| f.get("size").and_then(Value::as_f64)).sum()
        }
        _ => 0.0,
    };
    validate::amount(image_size, "\"image.image_size\"")?;
    ensure(files_bytes >= 0.0, "\"image.files\" contains a negative size")?;
    Ok(Image {
        kind: map.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
        image_size: image_size.unwrap_or(0.0),
        files_bytes,
        traits,
        min_platform,
        max_platform,
        min_ram: ram("min_ram")?,
        max_ram: ram("max_ram")?,
    })
}

/// Checks a package by itself, as [`Request::parse`] does with that of a request.
///
/// # Errors
/// What is wrong with it, in the reference's words.
pub fn check_package(value: &Value) -> Result<(), String> {
    parse_package(value).map(drop)
}

fn parse_package(value: &Value) -> Result<Package, String> {
    let Value::Object(map) = value else { return Err("\"package\" has invalid type".into()) };
    let ratio = |name: &str| {
        let name = format!("overprovision_{name}");
        optional_num(map.get(&name), &format!("\"package.{name}\" has invalid type"))
    };
    let [cpu, memory, storage, network, io] =
        ["cpu", "memory", "storage", "network", "io"].map(ratio);
    let (cpu, memory, storage, network, io) = (cpu?, memory?, storage?, network?, io?);
    let spread = match some_truthy(map.get("alloc_server_spread")) {
        None => None,
        Some(Value::String(spread)) if SPREADS.contains(&spread.as_str()) => Some(spread.clone()),
        Some(_) => return Err("\"alloc_server_spread\" has invalid value".into()),
    };
    let unpack = |name: &str, prefix: &str| match some_truthy(map.get(name)) {
        Some(Value::String(text)) => serde_json::from_str::<Value>(text)
            .map(Some)
            .map_err(|_| format!("{prefix}\"package.{name}\" has invalid type")),
        other => Ok(other.cloned()),
    };
    let (min, max) = (unpack("min_platform", "")?, unpack("max_platform", "")?);
    let traits = unpack("traits", "\"package.traits\": ")?;
    let min_platform = validate::platforms(min.as_ref(), "package.min_platform")?;
    // Checked, then ignored, as in the reference.
    validate::platforms(max.as_ref(), "package.max_platform")?;
    let traits = some_truthy(traits.as_ref())
        .map(validate::traits)
        .transpose()
        .map_err(|message| format!("\"package.traits\": {message}"))?;
    let direct = |name: &str| map.get(name).map(num).and_then(nonzero);
    let mut ratios = Ratios {
        cpu: cpu.and_then(nonzero),
        ram: memory.or_else(|| direct("overprovision_ram")).and_then(nonzero),
        disk: storage.or_else(|| direct("overprovision_disk")).and_then(nonzero),
        net: network.or_else(|| direct("overprovision_net")).and_then(nonzero),
        io: io.and_then(nonzero),
    };
    if ratios == Ratios::default() {
        ratios.ram = Some(1.0);
    }
    for name in ["max_physical_memory", "cpu_cap", "quota"] {
        validate::amount(direct(name), &format!("\"package.{name}\""))?;
    }
    Ok(Package {
        ratios,
        max_physical_memory: direct("max_physical_memory"),
        cpu_cap: direct("cpu_cap"),
        quota: direct("quota"),
        spread,
        min_platform,
        traits,
    })
}

fn parse_vm(value: &Value) -> Result<VmRequest, String> {
    let Value::Object(map) = value else { return Err("VM object is an invalid type".into()) };
    let owner_uuid = map.get("owner_uuid").and_then(Value::as_str).filter(|uuid| is_uuid(uuid));
    let owner_uuid = owner_uuid.ok_or("VM \"owner_uuid\" is not a valid UUID")?;
    let Some(ram) = map.get("ram").and_then(Value::as_f64) else {
        return Err("VM \"ram\" is not a number".into());
    };
    let quota = optional_number(map.get("quota"), "VM \"quota\" is not a number")?;
    let cpu_cap = optional_number(map.get("cpu_cap"), "VM \"cpu_cap\" is not a number")?;
    let vcpus = match map.get("vcpus") {
        None | Some(Value::Null) => None,
        Some(Value::Number(vcpus)) => vcpus.as_f64().filter(|vcpus| *vcpus != 0.0),
        Some(_) => return Err("VM \"vcpus\" is not a number".to_owned()),
    };
    let asked = [("ram", Some(ram)), ("quota", quota), ("cpu_cap", cpu_cap), ("vcpus", vcpus)];
    for (name, asked) in asked {
        validate::amount(asked, &format!("VM \"{name}\""))?;
    }
    let brand = match map.get("brand").filter(|brand| !brand.is_null()) {
        None => String::new(),
        Some(Value::String(brand)) => brand.clone(),
        Some(_) => return Err("VM \"brand\" is not a string".into()),
    };
    let prefixed = |message: String| format!("VM {message}");
    let part = |name: &str| some_truthy(map.get(name));
    let traits = part("traits").map(validate::traits).transpose().map_err(prefixed)?;
    let affinity = part("affinity").map(validate::affinity).transpose().map_err(prefixed)?;
    let locality = part("locality").map(validate::locality).transpose().map_err(prefixed)?;
    check_nic_tags(part("nic_tags"))?;
    let vm_uuid = map.get("vm_uuid").and_then(Value::as_str).filter(|uuid| is_uuid(uuid));
    let vm_uuid = vm_uuid.ok_or("\"vm.vm_uuid\" is an invalid UUID")?;
    let metadata = match part("internal_metadata") {
        None => None,
        Some(Value::Object(metadata)) => Some(metadata),
        Some(_) => return Err("\"vm.internal_metadata\" is not a hash".into()),
    };
    let meta = |name: &str| metadata.and_then(|m| m.get(name));
    let tag = |name: &str| map.get("tags").and_then(|tags| tags.get(name));
    Ok(VmRequest {
        uuid: map.get("uuid").and_then(Value::as_str).map(str::to_owned),
        vm_uuid: vm_uuid.to_owned(),
        owner: Uuid::parse_str(owner_uuid).unwrap_or_default(),
        owner_uuid: owner_uuid.to_owned(),
        brand,
        ram,
        quota,
        cpu_cap,
        vcpus,
        docker: part("docker").is_some(),
        has_metadata: metadata.is_some(),
        volumes: part("volumes").is_some(),
        flexible_disk: part("flexible_disk_size").is_some(),
        force_failure: truthy(meta("force_designation_failure")),
        encrypted: truthy(meta("encrypted")),
        nfs_v2: meta("volapi-nfs-version").and_then(Value::as_f64) == Some(2.0),
        exclude_virtual: truthy(tag("triton.placement.exclude_virtual_servers")),
        override_recent: truthy(map.get("override_recent_vms")),
        volumes_from: metadata.map(validate::volumes_from).transpose()?.unwrap_or_default(),
        traits,
        affinity,
        locality,
        nic_groups: None,
    })
}

fn check_nic_tags(tags: Option<&Value>) -> Result<(), String> {
    match tags {
        None => Ok(()),
        Some(Value::Array(tags)) => ensure(
            tags.iter().all(Value::is_string),
            "VM \"nic_tags\" contains invalid type in array",
        ),
        Some(_) => Err("VM \"nic_tags\" is not an array".into()),
    }
}

fn check_ram(vm: &VmRequest, image: &Image) -> Result<(), String> {
    let too_small = image.min_ram.is_some_and(|min| vm.ram < min - 0.01);
    ensure(!too_small, "\"vm.ram\" is smaller than \"image.requirements.min_ram\"")?;
    let too_large = image.max_ram.is_some_and(|max| vm.ram > max + 0.01);
    ensure(!too_large, "\"vm.ram\" is larger than \"image.requirements.max_ram\"")
}

/// A map's text with its own key order, as reasons print it.
pub(crate) fn json_text(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap_or_else(|_| display(None))
}

#[cfg(test)]
mod tests;
