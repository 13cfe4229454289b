//! The algorithms: one file each, and one line in the lists below.
//!
//! `docs/adding-an-algorithm.md` is the recipe.

mod affinity;
mod capness;
mod feature_min_platform;
mod force_failure;
mod hard_locality;
mod headnode;
mod hvm;
mod identity;
mod invalid_servers;
mod large_servers;
mod load_server_vms;
mod min_cpu;
mod min_disk;
mod min_free_disk;
mod min_ram;
mod no_ratio;
mod oci_runtime;
mod os;
mod overprovision_ratios;
mod override_overprovisioning;
mod owners_servers;
mod platform_versions;
mod reserved;
mod reservoir;
mod retired;
mod running;
mod score_current_platform;
mod score_next_reboot;
mod score_num_owner_zones;
mod score_uniform_random;
mod score_unreserved_disk;
mod score_unreserved_ram;
mod server_unreserved;
mod setup;
mod soft_locality;
mod ticketed_vms;
mod traits;
mod virtual_servers;
mod vlans;
mod vm_count;
mod volumes_from;
mod zpool_encryption;

pub(crate) use override_overprovisioning::OVERRIDE_OVERPROVISIONING;
pub(crate) use volumes_from::VOLUMES_FROM;

use crate::algorithm::Algorithm;

static FILTERS: &[&Algorithm] = &[
    &setup::SETUP,
    &running::RUNNING,
    &os::OS,
    &invalid_servers::INVALID_SERVERS,
    &virtual_servers::VIRTUAL_SERVERS,
    &zpool_encryption::ZPOOL_ENCRYPTION,
    &reserved::RESERVED,
    &min_free_disk::MIN_FREE_DISK,
    &vlans::VLANS,
    &platform_versions::PLATFORM_VERSIONS,
    &feature_min_platform::FEATURE_MIN_PLATFORM,
    &traits::TRAITS,
    &headnode::HEADNODE,
    &overprovision_ratios::OVERPROVISION_RATIOS,
    &ticketed_vms::TICKETED_VMS,
    &capness::CAPNESS,
    &vm_count::VM_COUNT,
    &hvm::HVM,
    &oci_runtime::OCI_RUNTIME,
    &min_ram::MIN_RAM,
    &min_cpu::MIN_CPU,
    &min_disk::MIN_DISK,
    &reservoir::RESERVOIR,
    &identity::IDENTITY,
    &force_failure::FORCE_FAILURE,
    &VOLUMES_FROM,
    &affinity::AFFINITY,
    &hard_locality::HARD_LOCALITY,
    &owners_servers::OWNERS_SERVERS,
    &large_servers::LARGE_SERVERS,
    &soft_locality::SOFT_LOCALITY,
];

static CALCULATORS: &[&Algorithm] = &[
    &OVERRIDE_OVERPROVISIONING,
    &load_server_vms::LOAD_SERVER_VMS,
    &server_unreserved::SERVER_UNRESERVED,
];

/// What `capacity` runs: what the VMs that servers report leave.
pub(crate) static CAPACITY: [&Algorithm; 6] = [
    &setup::SETUP,
    &running::RUNNING,
    &invalid_servers::INVALID_SERVERS,
    &load_server_vms::LOAD_SERVER_VMS,
    &OVERRIDE_OVERPROVISIONING,
    &server_unreserved::SERVER_UNRESERVED,
];

static SCORERS: &[&Algorithm] = &[
    &score_unreserved_ram::SCORE_UNRESERVED_RAM,
    &score_unreserved_disk::SCORE_UNRESERVED_DISK,
    &score_num_owner_zones::SCORE_NUM_OWNER_ZONES,
    &score_current_platform::SCORE_CURRENT_PLATFORM,
    &score_next_reboot::SCORE_NEXT_REBOOT,
    &score_uniform_random::SCORE_UNIFORM_RANDOM,
];

/// All algorithms.
pub(crate) fn all() -> impl Iterator<Item = &'static Algorithm> {
    [FILTERS, CALCULATORS, SCORERS, retired::ALL].into_iter().flatten().copied()
}

/// The algorithm of this name.
pub(crate) fn find(name: &str) -> Option<&'static Algorithm> {
    all().find(|algorithm| algorithm.name == name)
}

/// The text that names the step of an algorithm; `None` for one that this version does not know.
#[must_use]
pub fn title_of(algorithm: &str) -> Option<&'static str> {
    find(algorithm).map(|algorithm| algorithm.title)
}

#[cfg(test)]
mod tests;
