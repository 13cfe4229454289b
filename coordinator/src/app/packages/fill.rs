//! What a VM, and the allocator, get of a package. Pure.

use muster_shared::api::Object;
use muster_shared::api::package::Package;
use serde_json::{Value, json};

/// What the allocator reads of a package beside sizes, which the VM has, and what names it in the
/// record of a decision.
const ALLOCATORS: [&str; 11] = [
    "name",
    "uuid",
    "version",
    "alloc_server_spread",
    "min_platform",
    "overprovision_cpu",
    "overprovision_io",
    "overprovision_memory",
    "overprovision_network",
    "overprovision_storage",
    "traits",
];

/// Gives a VM what its parameters do not say themselves.
pub(super) fn fill(vm: &mut Object, package: &Package) {
    let number = |number: Option<u64>| number.map(Value::from);
    // A package's quota is in MiB, as PAPI has it; a VM's in GiB, as vmadm.
    let quota = package.quota.map(|mib| mib.div_ceil(1024));
    for (names, value) in [
        (&["ram", "max_physical_memory", "memory"][..], number(Some(package.max_physical_memory))),
        (&["vcpus"], number(package.vcpus)),
        (&["cpu_cap"], number(package.cpu_cap)),
        (&["quota"], number(quota)),
        (&["max_swap"], number(package.max_swap)),
        (&["max_lwps"], number(package.max_lwps)),
        (&["zfs_io_priority"], number(package.zfs_io_priority)),
        (&["billing_id"], Some(json!(package.uuid))),
        (&["package_name"], Some(json!(package.name))),
        (&["package_version"], package.version.clone().map(Value::from)),
    ] {
        let is_given =
            |name: &&str| vm.get(name).is_some_and(|it| !it.is_null() && *it != json!(""));
        if let Some(value) = value.filter(|_| !names.iter().any(is_given)) {
            vm.set(names[0], value);
        }
    }
}

/// A package as the allocator is told of it for a VM that has its sizes already.
pub(in crate::app) fn for_allocator(package: &Package) -> Object {
    let mut members = Object::of(package);
    members.retain(|name, _| ALLOCATORS.contains(&name));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Package {
        let package = json!({
            "name": "small", "uuid": uuid::Uuid::from_u128(7), "version": "1.0",
            "max_physical_memory": 512, "quota": 2049, "vcpus": 2, "cpu_cap": 150,
            "max_swap": 1024, "max_lwps": 4000, "zfs_io_priority": 50,
            "overprovision_memory": 2, "traits": { "ssd": true },
        });
        serde_json::from_value(package).unwrap()
    }

    fn filled(vm: &Value) -> Object {
        let mut vm = Object::of(vm);
        fill(&mut vm, &package());
        vm
    }

    #[test]
    fn a_vm_gets_what_it_does_not_say() {
        let expected = json!({
            "ram": 512, "vcpus": 2, "cpu_cap": 150, "quota": 3, "max_swap": 1024,
            "max_lwps": 4000, "zfs_io_priority": 50, "billing_id": uuid::Uuid::from_u128(7),
            "package_name": "small", "package_version": "1.0",
        });
        assert_eq!(filled(&json!({})), Object::of(&expected));
        let cleared = filled(&json!({ "ram": null, "vcpus": "", "quota": null }));
        assert_eq!(Object::of(&cleared), filled(&json!({})));
    }

    #[test]
    fn what_it_says_itself_wins() {
        let vm = filled(&json!({ "memory": 256, "vcpus": 4, "quota": 0, "cpu_cap": "50" }));
        assert_eq!((vm.get("ram"), vm.get("memory")), (None, Some(&json!(256))));
        assert_eq!((vm.get("vcpus"), vm.get("quota")), (Some(&json!(4)), Some(&json!(0))));
        assert_eq!(
            (vm.get("cpu_cap"), vm.get("max_swap")),
            (Some(&json!("50")), Some(&json!(1024)))
        );
        assert_eq!(filled(&json!({ "max_physical_memory": 9 })).get("ram"), None);
    }

    #[test]
    fn the_allocator_is_told_no_sizes() {
        let expected = json!({
            "name": "small", "uuid": uuid::Uuid::from_u128(7), "version": "1.0",
            "overprovision_memory": 2, "traits": { "ssd": true },
        });
        assert_eq!(for_allocator(&package()), Object::of(&expected));
    }
}
