//! A VM that this coordinator creates, as the allocator sees it. Pure.

use muster_shared::api::{FieldError, Object};
use muster_shared::vm::{
    DEFAULT_BRAND, DEFAULT_QUOTA_GIB, DEFAULT_RAM_MIB, NOBODY, VmSpec, overhead_mib,
};
use serde_json::{Value, json};

use crate::app::error::AppError;

/// What a client asks about a VM that it may create later, as if it were created now: `vm` has
/// members of a `POST /vms`. Image and package are those of a create, which has its own: a kept
/// package, or none.
pub(super) fn as_create(
    body: &Object,
    package: Option<&Object>,
) -> Result<(Object, VmSpec), AppError> {
    let vm = body.get("vm").and_then(Value::as_object).cloned().unwrap_or_default();
    let name = vm.get("vm_uuid").cloned();
    let (mut spec, errors) = VmSpec::read(vm);
    if !errors.is_empty() {
        let of_vm =
            |error: FieldError| FieldError::new(format!("vm.{}", error.field), error.message);
        return Err(AppError::Invalid(errors.into_iter().map(of_vm).collect()));
    }
    spec.brand.get_or_insert_with(|| DEFAULT_BRAND.to_owned());
    spec.cap_cpu();
    if package.is_some() {
        // As a create gives it where the package says none.
        spec.quota.get_or_insert(DEFAULT_QUOTA_GIB);
    }
    let mut request = request(&spec, package);
    if let Some(name) = name {
        request.slot("vm")["vm_uuid"] = name;
    }
    let own = ["vm", "image", "package"];
    for (name, value) in body.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        request.set(name, value.clone());
    }
    Ok((request, spec))
}

/// The body of an allocation request for a VM; recorded with the decision, which can be replayed
/// from it. The reference's RAM filter leaves the hypervisor's overhead out, so that a server's
/// last VM could take more than there is; here it is in. A promise counts it by itself.
pub(super) fn request(spec: &VmSpec, package: Option<&Object>) -> Object {
    let brand = spec.brand.as_deref().unwrap_or_default();
    let ram = spec.ram.unwrap_or(DEFAULT_RAM_MIB).saturating_add(overhead_mib(brand).into());
    let owner = spec.owner_uuid.as_deref().unwrap_or(NOBODY).to_lowercase();
    let mut vm = Object::of(&VmSpec {
        uuid: None,
        brand: spec.brand.clone(),
        owner_uuid: Some(owner),
        ram: Some(ram),
        vcpus: spec.vcpus,
        cpu_cap: spec.cpu_cap,
        quota: spec.quota,
        tags: spec.tags.clone(),
        ..VmSpec::default()
    });
    vm.set("vm_uuid", json!(spec.uuid));
    for name in ["locality", "affinity", "internal_metadata", "docker"] {
        if let Some(value) = spec.extra.get(name) {
            vm.set(name, value.clone());
        }
    }
    let tags: Vec<_> = spec.nics.iter().flatten().filter_map(|nic| nic.nic_tag.as_ref()).collect();
    // Without the ratios of a package the reference's filters let everything pass.
    let mut ratios = Object::from_iter([
        ("overprovision_cpu", 4),
        ("overprovision_memory", 1),
        ("overprovision_storage", 1),
    ]);
    ratios.extend(package.cloned().unwrap_or_default());
    Object::from_iter([
        ("vm", vm.into_value()),
        ("image", json!({ "image_size": spec.disks_mib() })),
        ("package", ratios.into_value()),
        ("nic_tags", json!(tags)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_asks_what_a_create_asks() {
        let vm = json!({
            "vm_uuid": uuid::Uuid::nil(), "uuid": uuid::Uuid::nil(), "ram": 512, "quota": 20,
            "vcpus": 2, "brand": "kvm", "owner_uuid": NOBODY,
        });
        let body = Object::of(&json!({ "vm": vm, "image": { "x": 1 }, "nic_tags": [], "seed": 7 }));
        let (mut asked, spec) = as_create(&body, None).unwrap();
        assert_eq!(asked.remove("seed"), Some(json!(7)));
        let (mut created, errors) = VmSpec::read(vm.as_object().unwrap().clone());
        assert_eq!(errors, []);
        created.cap_cpu();
        assert_eq!(asked, request(&created, None));
        // The guest's memory and its hypervisor's; a promise adds the latter by itself.
        assert_eq!((&asked.get("vm").unwrap()["ram"], spec.ram), (&json!(512 + 1024), Some(512)));
        assert_eq!(asked.get("vm").unwrap()["cpu_cap"], 200);
        assert_eq!(asked.get("package").unwrap()["overprovision_cpu"], 4);
        let package = Object::of(&json!({ "name": "p", "overprovision_cpu": 2, "traits": {} }));
        let (of_package, _) = as_create(&body, Some(&package)).unwrap();
        assert_eq!(
            of_package.get("package").unwrap(),
            &json!({ "overprovision_cpu": 2, "overprovision_memory": 1, "overprovision_storage": 1,
                     "name": "p", "traits": {} })
        );
        let bad = Object::of(&json!({ "vm": { "ram": "much" } }));
        let Err(AppError::Invalid(errors)) = as_create(&bad, None) else { panic!("accepted") };
        assert_eq!(errors[0].field, "vm.ram");
    }
}
