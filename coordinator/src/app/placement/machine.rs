//! A VM that this coordinator creates, as the allocator sees it. Pure.

use muster_shared::vm::{DEFAULT_RAM_MIB, NOBODY, VmSpec, overhead_mib};
use serde_json::{Map, Value, json};

use crate::alloc::Extra;

/// The body of an allocation request for a VM; recorded with the decision, which can be replayed
/// from it. The reference's RAM filter leaves the hypervisor's overhead out, so that a server's
/// last VM could take more than there is; here it is in. A promise counts it by itself.
pub(super) fn request(spec: &VmSpec) -> Map<String, Value> {
    let mut vm = Map::new();
    for name in ["locality", "affinity", "internal_metadata", "docker"] {
        if let Some(value) = spec.extra.get(name) {
            vm.insert(name.to_owned(), value.clone());
        }
    }
    let brand = spec.brand.as_deref().unwrap_or_default();
    let ram = spec.ram.unwrap_or(DEFAULT_RAM_MIB).saturating_add(overhead_mib(brand).into());
    let owner = spec.owner_uuid.as_deref().unwrap_or(NOBODY).to_lowercase();
    let given = [
        ("vm_uuid", Some(json!(spec.uuid))),
        ("owner_uuid", Some(json!(owner))),
        ("brand", spec.brand.as_ref().map(|brand| json!(brand))),
        ("tags", spec.tags.as_ref().map(|tags| json!(tags))),
        ("ram", Some(json!(ram))),
        ("cpu_cap", spec.cpu_cap.map(Value::from)),
        ("quota", spec.quota.map(Value::from)),
        ("vcpus", spec.vcpus.map(Value::from)),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    vm.extend(given);
    let tags: Vec<_> = spec.nics.iter().flatten().filter_map(|nic| nic.nic_tag.as_ref()).collect();
    let body = json!({
        "vm": vm,
        "image": { "image_size": spec.disks_mib() },
        // Without the ratios of a package the reference's filters let everything pass.
        "package":
            { "overprovision_cpu": 4, "overprovision_memory": 1, "overprovision_storage": 1 },
        "nic_tags": tags,
    });
    body.as_object().cloned().unwrap_or_default()
}

/// What a VM that is created on a server of the client's choice will take of it.
pub(super) fn promise_of(params: &Map<String, Value>) -> Extra {
    Extra::of_new_vm(&VmSpec::read(params.clone()).0)
}
