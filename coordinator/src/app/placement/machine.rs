//! A VM that this coordinator creates, as the allocator sees it. Pure.

use muster_shared::api::Object;
use muster_shared::vm::{DEFAULT_RAM_MIB, NOBODY, VmSpec, overhead_mib};
use serde_json::json;

/// The body of an allocation request for a VM; recorded with the decision, which can be replayed
/// from it. The reference's RAM filter leaves the hypervisor's overhead out, so that a server's
/// last VM could take more than there is; here it is in. A promise counts it by itself.
pub(super) fn request(spec: &VmSpec) -> Object {
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
    Object::from_iter([
        ("vm", vm.into_value()),
        ("image", json!({ "image_size": spec.disks_mib() })),
        // Without the ratios of a package the reference's filters let everything pass.
        (
            "package",
            json!({
                "overprovision_cpu": 4, "overprovision_memory": 1, "overprovision_storage": 1,
            }),
        ),
        ("nic_tags", json!(tags)),
    ])
}
