//! The body of `POST /vms` to the parameters of a `machine_create`. Pure.

use muster_shared::api::FieldError;
use muster_shared::api::Object;
use muster_shared::ids::ImageUuid;
use muster_shared::lenient::{self, is_uuid};
use muster_shared::vm::{
    DEFAULT_BRAND, DEFAULT_QUOTA_GIB, DiskSpec, MAX_METADATA_BYTES, NOBODY, NicSpec, VmSpec,
    is_alias, is_flat, json_bytes,
};
use serde_json::{Map, Value, json};

use super::error::AppError;

/// A VM on its way from what a client said to what its agent is told.
struct Draft<'a> {
    /// As the client said it.
    body: &'a Object,
    /// Sizes that count where the body has none, as PAPI has them.
    package: Object,
    spec: VmSpec,
    errors: Vec<FieldError>,
}

impl Draft<'_> {
    fn error(&mut self, field: &str, message: &str) {
        self.errors.push(FieldError::new(field, message));
    }

    fn is_bad(&self, field: &str) -> bool {
        self.errors.iter().any(|error| error.field == field)
    }

    /// A whole number from the body or else the package, by the first name that has one.
    fn number(&mut self, names: &[&str]) -> Option<u64> {
        for name in names {
            let value = self.body.get(name).or_else(|| self.package.get(name));
            let Some(value) = value.filter(|value| !value.is_null() && **value != json!("")) else {
                continue;
            };
            let number = lenient::number(value);
            if number.is_none() && !self.is_bad(name) {
                self.error(name, "value was not a number");
            }
            return number;
        }
        None
    }

    /// Refuses a 0 of the body's own; in a package it stands for nothing said.
    fn not_zero(&mut self, name: &str) {
        if self.body.get(name).and_then(lenient::number) == Some(0) {
            self.error(name, "value was not greater than zero");
        }
    }

    fn sizes(&mut self) {
        let before = self.errors.len();
        self.spec.ram = self.number(&["ram", "max_physical_memory", "memory"]);
        if self.spec.ram.unwrap_or(0) == 0 && self.errors.len() == before && !self.is_bad("ram") {
            self.error("ram", "value was not greater than zero");
        }
        for name in ["vcpus", "cpu_cap", "disk"] {
            self.not_zero(name);
        }
        self.spec.vcpus = Some(self.number(&["vcpus"]).unwrap_or(1).max(1));
        self.spec.cpu_cap = self.number(&["cpu_cap"]).filter(|cap| *cap > 0);
        self.spec.cap_cpu();
        // A package's quota is in MiB (PAPI), a VM's in GiB (vmadm).
        let packaged = self.package.get("quota").and_then(Value::as_u64);
        let packaged = packaged.filter(|_| !self.body.has("quota"));
        let quota = self.spec.quota.or(packaged.map(|mib| mib.div_ceil(1024)));
        self.spec.quota = Some(quota.unwrap_or(DEFAULT_QUOTA_GIB));
        for (name, target) in
            [("name", "package_name"), ("uuid", "billing_id"), ("version", "package_version")]
        {
            if let Some(value) = self.package.get(name).filter(|value| value.is_string()) {
                self.spec.extra.entry(target).or_insert_with(|| value.clone());
            }
        }
    }

    fn identity(&mut self) {
        self.spec.brand.get_or_insert_with(|| DEFAULT_BRAND.to_owned());
        if self.spec.alias.as_deref().is_some_and(|alias| !is_alias(alias)) {
            self.error("alias", "value was not letters, digits, '_', '.' and '-'");
        }
        let owner = self.spec.owner_uuid.get_or_insert_with(|| NOBODY.to_owned());
        if !is_uuid(owner) && !self.is_bad("owner_uuid") {
            self.error("owner_uuid", "value was not a UUID");
        }
        match self.body.get("metadata").filter(|metadata| !metadata.is_null()) {
            None => {}
            Some(metadata @ Value::Object(members)) if is_flat(metadata) => {
                let all = self.spec.customer_metadata.get_or_insert_default();
                all.extend(members.clone());
                if json_bytes(all) > MAX_METADATA_BYTES {
                    self.error("metadata", "value is too large");
                }
            }
            Some(_) => {
                let text = "value is not an object of strings, numbers and booleans";
                self.error("metadata", text);
            }
        }
    }

    /// The image, wherever the client names it.
    fn image(&mut self) -> Option<ImageUuid> {
        let image = self.body.get("image");
        let named = image.filter(|image| image.is_string()).or_else(|| image?.get("uuid"));
        // An empty disk may come first, beside a CD to install from.
        let disks = self.body.get("disks").and_then(Value::as_array);
        let of_disk = || disks?.iter().find_map(|disk| disk.get("image_uuid"));
        let uuid = self.body.get("image_uuid").or(named).or_else(of_disk);
        let uuid = uuid.and_then(Value::as_str).and_then(|uuid| uuid.parse().ok());
        if uuid.is_none() {
            self.errors.retain(|error| error.field != "image_uuid");
            self.error("image_uuid", "value was not the UUID of an image");
        }
        uuid
    }

    fn disks(&mut self) {
        let image = self.image();
        let size = self.number(&["disk"]);
        let Some(image) = image else { return };
        if !self.spec.extra.get("image").is_some_and(Value::is_object) {
            self.spec.extra.shift_remove("image");
        }
        if !self.spec.is_hvm() {
            self.spec.image_uuid = Some(image);
            return;
        }
        // What has disks of its own needs none of the request's image.
        self.spec.image_uuid = None;
        if self.spec.disks.is_some() {
            return;
        }
        // The agent makes the only disk as large as the quota, or as the image if that is larger.
        // Said here, the allocator would count disk and quota.
        self.spec.image_uuid = size.is_none().then_some(image);
        let extra = [("boot".to_owned(), json!(true)), ("model".to_owned(), json!("virtio"))];
        let extra = extra.into_iter().collect();
        self.spec.disks = Some(vec![DiskSpec { size, image_uuid: Some(image), extra }]);
    }

    fn networks(&mut self) {
        let Some(networks) = self.body.get("networks") else { return };
        let Some(networks) = networks.as_array() else {
            return self.error("networks", "value was not an array");
        };
        let primary = networks.iter().any(|network| network.get("primary") == Some(&json!(true)));
        let mut nics = Vec::new();
        for (number, network) in networks.iter().enumerate() {
            let (tag, mut extra) = match network {
                Value::String(tag) => (tag, Map::new()),
                Value::Object(members) => match members.get("nic_tag") {
                    Some(Value::String(tag)) => (tag, members.clone()),
                    _ => return self.error("networks", NO_NETWORK),
                },
                _ => return self.error("networks", NO_NETWORK),
            };
            extra.entry("ips").or_insert_with(|| json!(["dhcp"]));
            if number == 0 && !primary {
                extra.insert("primary".to_owned(), json!(true));
            }
            if self.spec.is_hvm() {
                extra.entry("model").or_insert_with(|| json!("virtio"));
            }
            nics.push(NicSpec { nic_tag: Some(tag.clone()), extra });
        }
        self.spec.nics = Some(nics);
    }
}

const NO_NETWORK: &str = "a network was neither a name nor has a nic_tag";

/// Checks a request and completes it.
///
/// # Errors
/// [`AppError::Invalid`] naming every bad member.
pub(super) fn build(body: &Object) -> Result<VmSpec, AppError> {
    let package = match body.get("package") {
        None => Object::new(),
        Some(Value::Object(package)) => package.clone().into(),
        Some(_) => return Err(AppError::invalid("package", "value is not an object")),
    };
    let (spec, errors) = VmSpec::read(body.clone().into());
    let mut draft = Draft { body, package, spec, errors };
    draft.sizes();
    draft.identity();
    draft.disks();
    draft.networks();
    let Draft { mut spec, errors, .. } = draft;
    if !errors.is_empty() {
        return Err(AppError::Invalid(errors));
    }
    for name in ["package", "networks", "metadata", "disk", "image_uuid", "server_uuid"] {
        spec.extra.shift_remove(name);
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "11111111-1111-1111-1111-111111111111";

    fn build_json(body: &Value) -> Result<VmSpec, AppError> {
        build(&Object::of(body))
    }

    #[track_caller]
    fn check_bad(body: &Value, field: &str) {
        let Err(AppError::Invalid(errors)) = build_json(body) else { panic!("accepted") };
        assert!(errors.iter().any(|error| error.field == field), "{errors:?}");
    }

    #[test]
    fn a_small_request_is_completed() {
        let body = json!({ "image": IMAGE, "ram": "256", "metadata": { "a": "b" } });
        let params = json!(build_json(&body).unwrap());
        assert_eq!(params["ram"], 256);
        assert_eq!(params["cpu_cap"], 100);
        assert_eq!(params["brand"], "kvm");
        assert_eq!(params["disks"][0]["image_uuid"], IMAGE);
        assert_eq!((&params["image_uuid"], &params["quota"]), (&json!(IMAGE), &json!(10)));
        assert_eq!(params["customer_metadata"]["a"], "b");
        assert!(params.get("image").is_none() && params.get("metadata").is_none());
    }

    #[test]
    fn a_package_gives_sizes_in_its_own_units() {
        let package = json!({ "name": "p", "max_physical_memory": 512, "vcpus": 2, "quota": 2049 });
        let body = json!({ "image_uuid": IMAGE, "package": package });
        let params = json!(build_json(&body).unwrap());
        assert_eq!((&params["ram"], &params["vcpus"]), (&json!(512), &json!(2)));
        assert_eq!((&params["quota"], &params["cpu_cap"]), (&json!(3), &json!(200)));
        assert_eq!(params["package_name"], "p");
    }

    #[test]
    fn a_size_of_its_own_frees_the_disk_from_the_quota() {
        let body = json!({ "image": IMAGE, "ram": 256, "disk": 2048 });
        let params = json!(build_json(&body).unwrap());
        assert_eq!(params["disks"][0]["size"], 2048);
        assert!(params.get("image_uuid").is_none());
    }

    #[test]
    fn an_empty_disk_beside_a_cd_needs_no_image() {
        let disks = json!([{ "size": 1024 }, { "image_uuid": IMAGE, "media": "cdrom" }]);
        let params = json!(build_json(&json!({ "ram": 256, "disks": disks })).unwrap());
        assert_eq!((&params["disks"], params.get("image_uuid")), (&disks, None));
        check_bad(&json!({ "ram": 256, "disks": [{ "size": 1024 }] }), "image_uuid");
    }

    #[test]
    fn networks_become_nics() {
        let body =
            json!({ "image_uuid": IMAGE, "ram": 1, "networks": ["admin", { "nic_tag": "x" }] });
        let params = json!(build_json(&body).unwrap());
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
        let large = json!({ "a": "x".repeat(MAX_METADATA_BYTES) });
        check_bad(&json!({ "image_uuid": IMAGE, "ram": 1, "metadata": large }), "metadata");
    }
}
