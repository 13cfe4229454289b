//! What a VM is made of: the names of its properties, their units and limits, once for the API,
//! the allocator, the command line and the agent.
//!
//! [`property`] says of each name what it is and what an agent does with it; [`VmSpec`] and
//! [`VmChange`] are the members that Muster itself reads, typed, with everything else beside them;
//! [`SpecFile`] is a VM as operators write it in a file.

mod changes;
mod firewall;
mod property;
mod publish;
pub mod restart;
mod spec;
mod spec_file;
mod tables;

use serde::Serialize;

pub use changes::{Reboot, VmChange};
pub use firewall::{Action, BadRule, Direction, Rule, Traffic, Vms, firewall_rules};
pub use property::{Effect, Form, Item, Kind, Property, asks_nothing, is_flat};
pub use publish::{MIN_PUBLISHED_PORT, NotPublished, PUBLISH_FORM, Publish};
pub use spec::{DiskSpec, NicSpec, VmSpec};
pub use spec_file::{Firmware, OWN_FIELDS, SpecDisk, SpecFile, SpecNetwork};
pub use tables::{
    CHANGES, CONTEXT, DISK, FACTS, INITIAL, LASTING, NETWORK_RECORD, NIC, PACKAGE, TOLD, change,
    property,
};

/// Largest size of anything counted in MiB (1 EiB): keeps sums far from overflow.
pub const MAX_MIB: u64 = 1 << 40;
/// Largest of anything else that is counted.
pub const MAX_COUNT: u64 = u32::MAX as u64;
/// Virtual CPUs of one VM.
pub const MAX_VCPUS: u64 = 1024;
/// Disks or network interfaces of one VM.
pub const MAX_DEVICES: usize = 32;
/// Most words of one property: addresses, names.
pub const MAX_WORDS: usize = 256;
/// Most memory of one VM, MiB (16 TiB).
pub const MAX_RAM_MIB: u64 = 16 << 20;
/// Largest disk, MiB (64 TiB): what the agent believes of an image's header.
pub const MAX_DISK_MIB: u64 = 64 << 20;
/// All tags of one VM together, bytes of JSON: every status report carries those of all VMs.
pub const MAX_TAGS_BYTES: usize = 16 * 1024;
/// `customer_metadata`, and as much again of `internal_metadata`, bytes of JSON.
pub const MAX_METADATA_BYTES: usize = 256 * 1024;
/// All routes of one VM together, bytes of JSON.
pub const MAX_ROUTES_BYTES: usize = 16 * 1024;
/// All properties of one VM together, bytes of JSON: a VM fits into a request and into a result.
pub const MAX_VM_BYTES: usize = 768 * 1024;
/// Longest alias, characters.
pub const MAX_ALIAS_CHARS: usize = 189;
/// Least memory of a hardware VM, MiB.
pub const MIN_RAM_MIB: u64 = 64;
/// Least swap of a VM, MiB.
pub const MIN_SWAP_MIB: u64 = 256;
/// Memory of a VM that names none, MiB.
pub const DEFAULT_RAM_MIB: u64 = 256;
/// Quota of a VM that names none, GiB.
pub const DEFAULT_QUOTA_GIB: u64 = 10;
/// Brand of a VM that names none.
pub const DEFAULT_BRAND: &str = "kvm";
/// Owner and package of a VM that names none.
pub const NOBODY: &str = "00000000-0000-0000-0000-000000000000";
/// Brands that run as containers.
pub const CONTAINER_BRANDS: &[&str] = &["joyent", "joyent-minimal", "builder", "lx", "docker"];

/// Whether VMs of this brand are hardware VMs, with memory of their own.
#[must_use]
pub fn is_hvm(brand: &str) -> bool {
    overhead_mib(brand) > 0
}

/// What the hypervisor of a brand takes beside the guest's memory, MiB; 0 for containers.
#[must_use]
pub const fn overhead_mib(brand: &str) -> u32 {
    match brand.as_bytes() {
        b"kvm" => 1024,
        b"bhyve" => 1280,
        _ => 0,
    }
}

/// A cap that leaves each virtual CPU a whole core, percent of one core.
#[must_use]
pub fn full_cpu_cap(vcpus: u64) -> u64 {
    vcpus.saturating_mul(100)
}

/// Length of a value as JSON, bytes: what the limits of objects count.
#[must_use]
pub fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// Whether a text can be a VM's alias: letters, digits, `_`, `.` and `-`, the first one a letter
/// or digit.
#[must_use]
pub fn is_alias(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= MAX_ALIAS_CHARS
        && text.chars().all(plain)
}
