//! The body of `POST /vms` to the parameters of a `machine_create`. Pure.

use muster_shared::api::FieldError;
use muster_shared::ids::VmUuid;
use muster_shared::lenient::{self, is_uuid};
use serde_json::{Map, Value, json};

use super::error::AppError;

const NOBODY: &str = "00000000-0000-0000-0000-000000000000";
/// GiB, the agent's default.
const DEFAULT_QUOTA_GIB: u64 = 10;
const MAX_ALIAS_BYTES: usize = 189;

/// Whether VMs of this brand have memory of their own.
fn is_hvm(brand: &str) -> bool {
    matches!(brand, "kvm" | "bhyve")
}

/// A checked request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VmRequest {
    /// The VM's uuid, if the client chose it.
    pub uuid: Option<VmUuid>,
    /// Parameters of the task, without `uuid`.
    pub params: Map<String, Value>,
}

struct Body<'a> {
    body: &'a Map<String, Value>,
    package: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Body<'_> {
    fn error(&mut self, field: &str, message: &str) {
        self.errors.push(FieldError::new(field, message));
    }

    /// Refuses a 0 of the body's own; in a package it stands for nothing said.
    fn not_zero(&mut self, name: &str) {
        if self.body.get(name).and_then(lenient::number) == Some(0) {
            self.error(name, "value was not greater than zero");
        }
    }

    /// A whole number given as a number or its text, from the body or else the package.
    fn number(&mut self, names: &[&str]) -> Option<u64> {
        for name in names {
            let Some(value) = self.body.get(*name).or_else(|| self.package.get(*name)) else {
                continue;
            };
            let number = lenient::number(value);
            if number.is_none() {
                self.error(name, "value was not a number");
            }
            return number;
        }
        None
    }

    fn text(&mut self, name: &str) -> Option<String> {
        let value = self.body.get(name)?;
        if value.as_str().is_none() {
            self.error(name, "value was not a string");
        }
        value.as_str().map(str::to_owned)
    }

    fn flat_object(&mut self, name: &str) -> Option<Map<String, Value>> {
        let value = self.body.get(name)?;
        let flat = value.as_object().filter(|members| {
            members.values().all(|v| v.is_string() || v.is_number() || v.is_boolean())
        });
        if flat.is_none() {
            self.error(name, "value is not an object of strings, numbers and booleans");
        }
        flat.cloned()
    }

    fn image(&mut self) -> Option<String> {
        let first_disk = self.body.get("disks").and_then(|disks| disks.get(0));
        let image = self
            .body
            .get("image_uuid")
            .or_else(|| self.body.get("image").filter(|image| image.is_string()))
            .or_else(|| self.body.get("image")?.get("uuid"))
            .or_else(|| first_disk?.get("image_uuid"));
        let uuid = image.and_then(Value::as_str).filter(|text| is_uuid(text));
        if uuid.is_none() {
            self.error("image_uuid", "value was not the UUID of an image");
        }
        uuid.map(str::to_owned)
    }
}

/// Checks a request and completes it.
///
/// # Errors
/// [`AppError::Invalid`] naming every bad member.
pub(super) fn build(body: &Map<String, Value>) -> Result<VmRequest, AppError> {
    let package = match body.get("package") {
        None => Map::new(),
        Some(Value::Object(package)) => package.clone(),
        Some(_) => return Err(AppError::invalid("package", "value is not an object")),
    };
    let mut body = Body { body, package, errors: Vec::new() };
    let uuid = body.text("uuid").and_then(|text| {
        let uuid = text.parse().ok();
        if uuid.is_none() {
            body.error("uuid", "value was not a UUID");
        }
        uuid
    });
    let brand = body.text("brand").unwrap_or_else(|| "kvm".to_owned());
    let mut params = body.body.clone();
    for name in ["uuid", "package", "networks", "metadata", "disk", "image_uuid", "server_uuid"] {
        params.remove(name);
    }
    sizes(&mut body, &mut params);
    identity(&mut body, &mut params, &brand);
    disks(&mut body, &mut params, &brand);
    networks(&mut body, &mut params, &brand);
    if body.errors.is_empty() {
        Ok(VmRequest { uuid, params })
    } else {
        Err(AppError::Invalid(body.errors))
    }
}

fn sizes(body: &mut Body<'_>, params: &mut Map<String, Value>) {
    let before = body.errors.len();
    match body.number(&["ram", "max_physical_memory", "memory"]) {
        Some(ram) if ram > 0 => drop(params.insert("ram".to_owned(), json!(ram))),
        _ if body.errors.len() > before => {}
        _ => body.error("ram", "value was not greater than zero"),
    }
    for name in ["vcpus", "cpu_cap", "disk"] {
        body.not_zero(name);
    }
    let vcpus = body.number(&["vcpus"]).unwrap_or(1).max(1);
    params.insert("vcpus".to_owned(), json!(vcpus));
    // Without a cap a VM may use the whole server, and the allocator would count it so.
    let cap = body.number(&["cpu_cap"]).filter(|cap| *cap > 0).unwrap_or(vcpus.saturating_mul(100));
    params.insert("cpu_cap".to_owned(), json!(cap));
    // A package's quota is in MiB (PAPI), a VM's in GiB (vmadm).
    let packaged = body.package.get("quota").and_then(Value::as_u64).map(|mib| mib.div_ceil(1024));
    let quota = if body.body.contains_key("quota") { body.number(&["quota"]) } else { packaged };
    params.insert("quota".to_owned(), json!(quota.unwrap_or(DEFAULT_QUOTA_GIB)));
    for name in ["name", "uuid", "version"] {
        if let Some(value) = body.package.get(name).filter(|value| value.is_string()) {
            let name =
                if name == "uuid" { "billing_id".to_owned() } else { format!("package_{name}") };
            params.entry(name).or_insert_with(|| value.clone());
        }
    }
}

fn identity(body: &mut Body<'_>, params: &mut Map<String, Value>, brand: &str) {
    params.insert("brand".to_owned(), json!(brand));
    if let Some(alias) = body.text("alias") {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let starts = alias.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts || alias.len() > MAX_ALIAS_BYTES || !alias.chars().all(plain) {
            body.error("alias", "value was not letters, digits, '_', '.' and '-'");
        }
    }
    let owner = body.text("owner_uuid").unwrap_or_else(|| NOBODY.to_owned());
    if !is_uuid(&owner) {
        body.error("owner_uuid", "value was not a UUID");
    }
    params.insert("owner_uuid".to_owned(), json!(owner));
    body.flat_object("tags");
    body.flat_object("customer_metadata");
    if let Some(metadata) = body.flat_object("metadata") {
        let merged = params.entry("customer_metadata").or_insert_with(|| json!({}));
        if let Some(merged) = merged.as_object_mut() {
            merged.extend(metadata);
        }
    }
}

fn disks(body: &mut Body<'_>, params: &mut Map<String, Value>, brand: &str) {
    let image = body.image();
    let size = body.number(&["disk"]);
    let Some(image) = image else { return };
    if !params.get("image").is_some_and(Value::is_object) {
        params.remove("image");
    }
    if !is_hvm(brand) {
        params.insert("image_uuid".to_owned(), json!(image));
        return;
    }
    if params.contains_key("disks") {
        return;
    }
    let mut disk = json!({ "image_uuid": image, "boot": true, "model": "virtio" });
    match size {
        Some(mib) => disk["size"] = json!(mib),
        // The agent makes this image's disk as large as the quota, or as the image if that is
        // larger. Said here, the allocator would count disk and quota.
        None => drop(params.insert("image_uuid".to_owned(), json!(image))),
    }
    params.insert("disks".to_owned(), json!([disk]));
}

fn networks(body: &mut Body<'_>, params: &mut Map<String, Value>, brand: &str) {
    let Some(networks) = body.body.get("networks") else { return };
    let Some(networks) = networks.as_array() else {
        return body.error("networks", "value was not an array");
    };
    let mut nics = Vec::new();
    for (number, network) in networks.iter().enumerate() {
        let mut nic = match network {
            Value::String(tag) => json!({ "nic_tag": tag }),
            Value::Object(_) if network.get("nic_tag").is_some_and(Value::is_string) => {
                network.clone()
            }
            _ => return body.error("networks", "a network was neither a name nor has a nic_tag"),
        };
        if nic.get("ips").is_none() {
            nic["ips"] = json!(["dhcp"]);
        }
        if number == 0 && !networks.iter().any(|n| n.get("primary") == Some(&json!(true))) {
            nic["primary"] = json!(true);
        }
        if is_hvm(brand) && nic.get("model").is_none() {
            nic["model"] = json!("virtio");
        }
        nics.push(nic);
    }
    params.insert("nics".to_owned(), json!(nics));
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "11111111-1111-1111-1111-111111111111";

    fn build_json(body: &Value) -> Result<VmRequest, AppError> {
        build(body.as_object().unwrap())
    }

    #[track_caller]
    fn check_bad(body: &Value, field: &str) {
        let Err(AppError::Invalid(errors)) = build_json(body) else { panic!("accepted") };
        assert!(errors.iter().any(|error| error.field == field), "{errors:?}");
    }

    #[test]
    fn a_small_request_is_completed() {
        let params = build_json(&json!({ "image": IMAGE, "ram": "256", "metadata": { "a": "b" } }))
            .unwrap()
            .params;
        assert_eq!(params["ram"], 256);
        assert_eq!(params["cpu_cap"], 100);
        assert_eq!(params["brand"], "kvm");
        assert_eq!(params["disks"][0]["image_uuid"], IMAGE);
        assert_eq!((&params["image_uuid"], &params["quota"]), (&json!(IMAGE), &json!(10)));
        assert_eq!(params["customer_metadata"]["a"], "b");
        assert!(!params.contains_key("image") && !params.contains_key("metadata"));
    }

    #[test]
    fn a_package_gives_sizes_in_its_own_units() {
        let package = json!({ "name": "p", "max_physical_memory": 512, "vcpus": 2, "quota": 2049 });
        let params =
            build_json(&json!({ "image_uuid": IMAGE, "package": package })).unwrap().params;
        assert_eq!((&params["ram"], &params["vcpus"]), (&json!(512), &json!(2)));
        assert_eq!((&params["quota"], &params["cpu_cap"]), (&json!(3), &json!(200)));
        assert_eq!(params["package_name"], "p");
    }

    #[test]
    fn a_size_of_its_own_frees_the_disk_from_the_quota() {
        let body = json!({ "image": IMAGE, "ram": 256, "disk": 2048 });
        let params = build_json(&body).unwrap().params;
        assert_eq!(params["disks"][0]["size"], 2048);
        assert!(!params.contains_key("image_uuid"));
    }

    #[test]
    fn networks_become_nics() {
        let body =
            json!({ "image_uuid": IMAGE, "ram": 1, "networks": ["admin", { "nic_tag": "x" }] });
        let params = build_json(&body).unwrap().params;
        assert_eq!(params["nics"][0]["primary"], true);
        assert_eq!(params["nics"][1]["nic_tag"], "x");
        assert_eq!(params["nics"][1]["model"], "virtio");
    }

    #[test]
    fn what_is_bad_is_named() {
        check_bad(&json!({}), "image_uuid");
        check_bad(&json!({}), "ram");
        check_bad(&json!({ "image_uuid": IMAGE, "ram": "much" }), "ram");
        check_bad(&json!({ "image_uuid": IMAGE, "ram": 128, "uuid": "x" }), "uuid");
        for name in ["vcpus", "cpu_cap", "disk"] {
            check_bad(&json!({ "image_uuid": IMAGE, "ram": 128, name: 0 }), name);
            check_bad(&json!({ "image_uuid": IMAGE, "ram": 128, name: "0" }), name);
        }
        check_bad(&json!({ "image_uuid": IMAGE, "ram": 1, "alias": "a b" }), "alias");
        check_bad(&json!({ "image_uuid": IMAGE, "ram": 1, "tags": { "a": [] } }), "tags");
        check_bad(&json!({ "image_uuid": IMAGE, "ram": 1, "networks": [7] }), "networks");
    }
}
