//! A VM as operators write it in a file, for `muster vm create --file` and `muster vm edit`.
//!
//! The doc comments of the fields are the documentation of the file: the JSON schema and the page
//! about it are made from them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{PartialSchema as _, ToSchema};

use super::property::Effect;
use super::restart::{POLICY_FORM, POLICY_KEY, Policy};
use super::{
    MAX_DEVICES, MAX_VCPUS, MIN_RAM_MIB, PUBLISH_FORM, Publish, is_alias, is_flat, property,
};
use crate::config::{Check, Problems, nearest};
use crate::units::{SIZE_FORM, format_mib, parse_mib};

/// Properties of the API that have a field of their own here, and its name.
pub const OWN_FIELDS: &[(&str, &str)] = &[
    ("alias", "name"),
    ("autoboot", "autostart"),
    ("bootrom", "firmware"),
    ("brand", "brand"),
    ("cpu_cap", "cpu_cap"),
    ("customer_metadata", "metadata"),
    ("disks", "disks"),
    ("image_uuid", "image"),
    ("nics", "networks"),
    ("owner_uuid", "owner"),
    ("quota", "disks"),
    ("ram", "ram"),
    ("tags", "tags"),
    ("vcpus", "vcpus"),
];

/// A virtual machine, as `muster vm create --file` reads it. All fields are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpecFile {
    /// Name, shown in lists and given to the guest as its hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Image to start from: name, `NAME@VERSION` or uuid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// CD to boot from first, e.g. an installer: an image, named in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<String>,
    /// Package with the sizes to use, unless this file gives them: name or uuid. See `packages.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Memory, with a unit: `512MiB`, `2GiB`. Default: `256MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram: Option<String>,
    /// Virtual CPUs. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// CPU limit, percent of one core. Default: 100 for each virtual CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_cap: Option<u64>,
    /// Disks; the guest boots from the first, which is created from `image`. Default: one of 1 GiB,
    /// or of the image's size if that is larger.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<SpecDisk>,
    /// Networks to connect to, with one interface each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<SpecNetwork>,
    /// Guest ports to publish on the node: `[ADDRESS:]PORT:GUEST_PORT[/udp]`. Without an address,
    /// on the node's loopback only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<String>,
    /// Firmware: `bios`, or `uefi` where the node has it. Default: `bios`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Whether the VM starts when its server boots. Default: `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autostart: Option<bool>,
    /// What to do when the guest ends or panics by itself: `never`, `on-failure`, `on-failure:N` (N
    /// starts in a row at most) or `always`. Default: `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
    /// Public keys that may log in as the image's first user, as in `authorized_keys`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Files with such keys. Paths here and below are relative to the folder of the spec file; `~/`
    /// is the home directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_key_files: Vec<String>,
    /// Configuration for cloud-init; it must begin with the line `#cloud-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_config: Option<String>,
    /// File with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_config_file: Option<String>,
    /// Script that the guest runs at boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_script: Option<String>,
    /// File with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_script_file: Option<String>,
    /// Labels: strings, numbers and booleans.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub tags: Map<String, Value>,
    /// More metadata for the guest to read: strings, numbers and booleans.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub metadata: Map<String, Value>,
    /// Uuid of the owner. Default: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Type of VM: `kvm` or `bhyve`, or one of containers, e.g. `joyent-minimal`; these have no disks.
    /// Default: `kvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brand: Option<String>,
    /// Any other VM property, named as in the API; see `vm-properties.md`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub properties: Map<String, Value>,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpecDisk {
    /// Size, with a unit: `20GiB`. Required unless the disk is created from an image; the default
    /// is then the image's size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Image to create the disk from; for the first disk it is the VM's `image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Storage pool of the server. Default: the server's first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Controller: `virtio`, `scsi`, `ide`, `ahci` or `nvme`. Default: `virtio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Maximum I/O operations per second. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iops: Option<u64>,
    /// Maximum MiB per second, read and written. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mib_per_second: Option<u64>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SpecNetwork {
    /// Network to connect to, by its NIC tag.
    pub name: String,
    /// Model: `virtio`, `e1000` or `rtl8139`. Default: `virtio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What a machine boots with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    /// A BIOS.
    Bios,
    /// UEFI.
    Uefi,
}

impl SpecFile {
    /// The JSON schema of the file.
    #[must_use]
    pub fn json_schema() -> Value {
        let mut schemas = Vec::new();
        Self::schemas(&mut schemas);
        let definitions: BTreeMap<String, Value> =
            schemas.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Muster VM",
        });
        let (Value::Object(all), Value::Object(own)) = (&mut schema, json!(Self::schema())) else {
            return schema;
        };
        all.extend(own);
        all.insert("$defs".to_owned(), json!(definitions));
        stand_alone(&mut schema);
        schema
    }
}

/// What was made for the OpenAPI document becomes a schema that stands alone: references lead to its
/// own definitions, and a field that may be left out may not be null instead.
fn stand_alone(schema: &mut Value) {
    let is_null = |it: &Value| *it == json!("null") || it["type"] == "null";
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get_mut("$ref") {
                *target = target.replace("#/components/schemas/", "#/$defs/");
            }
            if members.get("default").is_some_and(Value::is_null) {
                members.shift_remove("default");
            }
            if let Some(Value::Array(types)) = members.get_mut("type") {
                types.retain(|it| !is_null(it));
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    members.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(mut either)) = members.shift_remove("oneOf") {
                either.retain(|it| !is_null(it));
                match either.as_slice() {
                    [Value::Object(only)] => members.extend(only.clone()),
                    _ => drop(members.insert("oneOf".to_owned(), Value::Array(either))),
                }
                return stand_alone(schema);
            }
            members.values_mut().for_each(stand_alone);
        }
        Value::Array(items) => items.iter_mut().for_each(stand_alone),
        _ => {}
    }
}

impl Check for SpecFile {
    fn check(&self, problems: &mut Problems) {
        let name_form = "must begin with a letter or digit and hold only those, '_', '.' and '-'";
        problems.require(self.name.as_deref().is_none_or(is_alias), "name", name_form);
        let named = self.package.as_deref().is_none_or(|package| !package.is_empty());
        problems.require(named, "package", "must name a package");
        check_size("ram", self.ram.as_deref(), MIN_RAM_MIB, problems);
        let counts = self.vcpus.is_none_or(|count| (1..=MAX_VCPUS).contains(&count));
        problems.require(counts, "vcpus", format!("must be 1 to {MAX_VCPUS}"));
        problems.require(self.cpu_cap != Some(0), "cpu_cap", "must be 1 or more");
        problems.require(self.disks.len() < MAX_DEVICES, "disks", "too many");
        problems.within("disks", |problems| {
            for (number, disk) in self.disks.iter().enumerate() {
                problems.within(&number.to_string(), |problems| disk.check(number, problems));
            }
        });
        problems.require(self.networks.len() <= MAX_DEVICES, "networks", "too many");
        problems.within("networks", |problems| {
            for (number, network) in self.networks.iter().enumerate() {
                let named = !network.name.is_empty();
                problems.require(named, &format!("{number}.name"), "must name a network");
                check_value(
                    &format!("{number}.model"),
                    network.model.as_deref(),
                    NIC_MODEL,
                    problems,
                );
            }
        });
        for (number, port) in self.publish.iter().enumerate() {
            let good = port.parse::<Publish>().is_ok();
            problems.require(good, &format!("publish.{number}"), PUBLISH_FORM);
        }
        let restarts = self.restart.as_ref().is_none_or(|it| it.parse::<Policy>().is_ok());
        problems.require(restarts, "restart", POLICY_FORM);
        let owner = self.owner.as_ref().is_none_or(|it| it.parse::<uuid::Uuid>().is_ok());
        problems.require(owner, "owner", "must be a uuid");
        check_value("brand", self.brand.as_deref(), "brand", problems);
        self.check_guest(problems);
        self.check_properties(problems);
    }
}

impl SpecFile {
    fn is_container(&self) -> bool {
        self.brand.as_deref().is_some_and(|brand| super::CONTAINER_BRANDS.contains(&brand))
    }
}

/// The property that a network interface's model is like, for what it may be.
const NIC_MODEL: &str = "nic_driver";
/// That of a disk's.
const DISK_MODEL: &str = "disk_driver";
/// Metadata that has fields of its own, and which.
const OWN_METADATA: [(&str, &str); 3] = [
    ("cloud-init:user-data", "cloud_config"),
    ("root_authorized_keys", "ssh_keys"),
    ("user-script", "user_script"),
];

impl SpecFile {
    /// What the guest is told.
    fn check_guest(&self, problems: &mut Problems) {
        for (name, text, file) in [
            ("cloud_config", &self.cloud_config, &self.cloud_config_file),
            ("user_script", &self.user_script, &self.user_script_file),
        ] {
            let once = text.is_none() || file.is_none();
            problems.require(once, &format!("{name}_file"), format!("`{name}` is there already"));
        }
        for (name, members) in [("tags", &self.tags), ("metadata", &self.metadata)] {
            for (key, value) in members {
                let flat = is_flat(&json!({ "value": value }));
                let key = format!("{name}.{key}");
                problems.require(flat, &key, "must be text, a number or `true` or `false`");
            }
        }
        let given = [
            self.cloud_config.is_some() || self.cloud_config_file.is_some(),
            !self.ssh_keys.is_empty() || !self.ssh_key_files.is_empty(),
            self.user_script.is_some() || self.user_script_file.is_some(),
        ];
        for ((key, field), given) in OWN_METADATA.into_iter().zip(given) {
            let twice = given && self.metadata.contains_key(key);
            let message = format!("is given twice: `{field}` is the same");
            problems.require(!twice, &format!("metadata.{key}"), message);
        }
    }

    fn check_properties(&self, problems: &mut Problems) {
        problems.within("properties", |problems| {
            for (name, value) in &self.properties {
                if let Some(message) = property_problem(name, value, self.is_container()) {
                    problems.add(name, message);
                }
            }
        });
        let internal = self.properties.get("internal_metadata");
        for (key, field, given) in [
            ("muster:hostfwd", "publish", !self.publish.is_empty()),
            (POLICY_KEY, "restart", self.restart.is_some()),
        ] {
            let twice = given && internal.is_some_and(|metadata| metadata.get(key).is_some());
            let message = format!("is given twice: `{field}` is the same");
            problems.require(!twice, &format!("properties.internal_metadata.{key}"), message);
        }
    }
}

/// Why a file may not hold a property, or not this value of it.
fn property_problem(name: &str, value: &Value, is_container: bool) -> Option<String> {
    if let Some((_, field)) = OWN_FIELDS.iter().find(|(own, _)| *own == name) {
        return Some(format!("has a field of its own, `{field}`"));
    }
    let Some(found) = property(name) else {
        let names = super::LASTING.iter().chain(super::INITIAL).map(|property| property.name);
        let meant = nearest(name, names).map(|meant| format!(", did you mean `{meant}`?"));
        return Some(format!("unknown property{}", meant.unwrap_or_default()));
    };
    match found.effect_on(is_container) {
        Effect::Ignored(why) | Effect::Refused(why) => Some(format!("has no effect: {why}")),
        Effect::Dropped => Some("has no effect".to_owned()),
        Effect::Live | Effect::AtStart | Effect::Kept(_) => {
            let good = found.read(value).is_some();
            (!good).then(|| format!("cannot be {value}; it is: {}", found.doc))
        }
    }
}

impl SpecDisk {
    fn check(&self, number: usize, problems: &mut Problems) {
        check_size("size", self.size.as_deref(), 1, problems);
        let sized = self.size.is_some() || self.image.is_some() || number == 0;
        problems.require(sized, "size", "is needed: the disk is not made from an image");
        check_value("model", self.model.as_deref(), DISK_MODEL, problems);
    }
}

fn check_size(key: &str, size: Option<&str>, least_mib: u64, problems: &mut Problems) {
    let Some(size) = size else { return };
    match parse_mib(size) {
        None => problems.add(key, format!("{SIZE_FORM}, not {size:?}")),
        Some(mib) if mib < least_mib => {
            problems.add(key, format!("must be at least {}", format_mib(least_mib)));
        }
        Some(_) => {}
    }
}

/// Checks a value as a property of this name is checked.
fn check_value(key: &str, value: Option<&str>, like: &str, problems: &mut Problems) {
    let Some((value, property)) = value.zip(property(like)) else { return };
    if property.read(&json!(value)).is_some() {
        return;
    }
    let words = match property.form {
        super::Form::OneOf(words) => words.join(", "),
        _ => property.doc.to_owned(),
    };
    problems.add(key, format!("must be one of {words}, not {value:?}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keep_shape;

    /// The paths at fault, with the messages.
    fn problems(mut file: Value) -> Vec<(String, String)> {
        let mut problems = Problems::default();
        keep_shape::<SpecFile>(&mut file, &mut problems);
        let file: SpecFile = serde_json::from_value(file).unwrap();
        file.check(&mut problems);
        let found = problems.into_result().err().map(|error| error.problems).unwrap_or_default();
        found.into_iter().map(|problem| (problem.key, problem.message)).collect()
    }

    #[track_caller]
    fn check(file: Value, key: &str, message: &str) {
        let found = problems(file);
        let fits = |(at, text): &(String, String)| at == key && text.contains(message);
        assert!(found.len() == 1 && found.iter().any(fits), "{found:?}");
    }

    #[test]
    fn a_whole_file_is_read() {
        let file = json!({
            "name": "db1", "image": "debian@12", "cdrom": "installer", "ram": "2GiB", "vcpus": 2,
            "cpu_cap": 150, "networks": [{ "name": "admin", "model": "e1000" }],
            "disks": [{ "pool": "fast" }, { "size": "20GiB", "model": "scsi", "max_iops": 5 }],
            "publish": ["2222:22"], "firmware": "uefi", "autostart": false, "restart": "always",
            "ssh_keys": ["ssh-ed25519 A"], "cloud_config": "#cloud-config\n", "brand": "kvm",
            "user_script_file": "setup.sh", "tags": { "role": "db", "tier": 1, "on": true },
            "metadata": { "a": "b" }, "owner": uuid::Uuid::nil(),
            "properties": { "cpu_shares": 50, "internal_metadata": { "x": "y" } },
        });
        assert_eq!(problems(file.clone()), []);
        let read: SpecFile = serde_json::from_value(file.clone()).unwrap();
        assert_eq!(json!(read), file);
        assert_eq!(json!(SpecFile::default()), json!({}));
    }

    #[test]
    fn what_is_wrong_is_named() {
        check(json!({ "name": "a b" }), "name", "must begin with");
        check(json!({ "rma": "2GiB" }), "rma", "did you mean `ram`?");
        check(json!({ "ram": "2GB" }), "ram", "512MiB");
        check(json!({ "ram": "1MiB" }), "ram", "at least 64MiB");
        check(json!({ "ram": 512 }), "ram", "expected text, found 512");
        check(json!({ "vcpus": 0 }), "vcpus", "1 to");
        check(json!({ "cpu_cap": 0 }), "cpu_cap", "1 or more");
        check(json!({ "disks": [{}, {}] }), "disks.1.size", "is needed");
        check(json!({ "disks": [{ "model": "sata" }] }), "disks.0.model", "nvme");
        check(json!({ "networks": [{}] }), "networks.0.name", "must name");
        check(json!({ "networks": [{ "name": "a", "model": "x" }] }), "networks.0.model", "e1000");
        check(json!({ "publish": ["80"] }), "publish.0", "PORT");
        check(json!({ "firmware": "efi" }), "firmware", "did you mean `uefi`?");
        check(json!({ "restart": "sometimes" }), "restart", "on-failure");
        check(json!({ "owner": "me" }), "owner", "uuid");
        check(json!({ "brand": "builder" }), "brand", "kvm");
        let twice = json!({ "user_script": "a", "user_script_file": "b" });
        check(twice, "user_script_file", "there already");
        check(json!({ "tags": { "a": [] } }), "tags.a", "must be text");
        let twice = json!({ "metadata": { "user-script": "" }, "user_script": "" });
        check(twice, "metadata.user-script", "given twice: `user_script`");
    }

    #[test]
    fn properties_are_those_of_the_api_that_have_no_field_and_an_effect() {
        let of = |name: &str, value: Value| json!({ "properties": { name: value } });
        check(of("ram", json!(5)), "properties.ram", "field of its own, `ram`");
        check(of("alias", json!("x")), "properties.alias", "field of its own, `name`");
        check(of("cpu_share", json!(5)), "properties.cpu_share", "did you mean `cpu_shares`?");
        check(of("dns_domain", json!("x")), "properties.dns_domain", "has no effect");
        check(of("qemu_opts", json!("x")), "properties.qemu_opts", "has no effect");
        check(of("vga", json!("x")), "properties.vga", "cannot be");
        let mut published = of("internal_metadata", json!({ "muster:hostfwd": "x" }));
        assert_eq!(problems(published.clone()), []);
        published["publish"] = json!(["2222:22"]);
        check(published, "properties.internal_metadata.muster:hostfwd", "`publish`");
        for (name, field) in OWN_FIELDS {
            assert!(property(name).is_some(), "{name}");
            let fields = SpecFile::json_schema();
            assert!(fields["properties"][field].is_object(), "{field}");
        }
    }

    #[test]
    fn the_schema_stands_alone() {
        let schema = SpecFile::json_schema();
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["disks"]["items"]["$ref"], "#/$defs/SpecDisk");
        assert!(schema["$defs"]["SpecDisk"]["properties"]["size"].is_object());
        assert_eq!(schema["properties"]["firmware"]["$ref"], "#/$defs/Firmware");
        assert_eq!(schema["properties"]["name"]["type"], "string");
        for foreign in ["components", "null"] {
            assert!(!schema.to_string().contains(foreign), "{schema:#}");
        }
    }
}
