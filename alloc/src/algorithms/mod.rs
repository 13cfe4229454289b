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
mod locality;
mod min_cpu;
mod min_disk;
mod min_free_disk;
mod min_ram;
mod os;
mod overprovision_ratios;
mod override_overprovisioning;
mod owner_same_racks;
mod owner_same_servers;
mod owners_servers;
mod pick_random;
mod pick_weighted_random;
mod platform_versions;
mod recent_vms;
mod reserved;
mod reservoir;
mod running;
mod score_current_platform;
mod score_next_reboot;
mod score_num_owner_zones;
mod score_uniform_random;
mod score_unreserved_disk;
mod score_unreserved_ram;
mod server_unreserved;
mod setup;
mod soft_large_servers;
mod soft_locality;
mod soft_recent_servers;
mod sort_2adic;
mod sort_max_ram;
mod sort_min_owner;
mod sort_min_ram;
mod sort_random;
mod ticketed_vms;
mod traits;
mod virtual_servers;
mod vlans;
mod vm_count;
mod volumes_from;
mod zpool_encryption;

use std::fmt;

use serde_json::Value;

use crate::config::Ratios;
use crate::num::text;
use crate::outcome::{Reason, Reasons};
use crate::run::{Run, Verdict};

/// What an algorithm may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Removes servers, each judged by itself.
    Filter,
    /// Removes servers, judged together.
    Set,
    /// Computes something for later steps.
    Calculator,
    /// Changes scores.
    Scorer,
    /// Changes the order, or picks.
    Sorter,
}

/// One algorithm.
pub(crate) struct Algorithm {
    /// In expressions.
    pub(crate) name: &'static str,
    /// In steps.
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    /// Works on the servers that are left and says why it did what it did.
    pub(crate) run: fn(&mut Run<'_>) -> Reasons,
    /// The figures by which it judges one server, for `?explain=full`; `None`: none worth saying.
    pub(crate) compares: Option<Compares>,
}

/// Names and values that an algorithm compares on a server; of the request, too.
pub(crate) type Compares = fn(&Run<'_>, u32) -> Vec<(&'static str, Value)>;

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

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
    &min_ram::MIN_RAM,
    &min_cpu::MIN_CPU,
    &min_disk::MIN_DISK,
    &reservoir::RESERVOIR,
    &owner_same_servers::OWNER_SAME_SERVERS,
    &identity::IDENTITY,
    &force_failure::FORCE_FAILURE,
    &volumes_from::VOLUMES_FROM,
    &affinity::AFFINITY,
    &hard_locality::HARD_LOCALITY,
    &owners_servers::OWNERS_SERVERS,
    &large_servers::LARGE_SERVERS,
    &soft_locality::SOFT_LOCALITY,
    &soft_large_servers::SOFT_LARGE_SERVERS,
    &soft_recent_servers::SOFT_RECENT_SERVERS,
    &soft_recent_servers::HARD_RECENT_SERVERS,
    &owner_same_racks::OWNER_SAME_RACKS,
];

static CALCULATORS: &[&Algorithm] = &[
    &override_overprovisioning::OVERRIDE_OVERPROVISIONING,
    &load_server_vms::LOAD_SERVER_VMS,
    &server_unreserved::SERVER_UNRESERVED,
    &recent_vms::RECENT_VMS,
    &locality::LOCALITY,
];

static SCORERS: &[&Algorithm] = &[
    &score_unreserved_ram::SCORE_UNRESERVED_RAM,
    &score_unreserved_disk::SCORE_UNRESERVED_DISK,
    &score_num_owner_zones::SCORE_NUM_OWNER_ZONES,
    &score_current_platform::SCORE_CURRENT_PLATFORM,
    &score_next_reboot::SCORE_NEXT_REBOOT,
    &score_uniform_random::SCORE_UNIFORM_RANDOM,
];

static SORTERS: &[&Algorithm] = &[
    &sort_min_ram::SORT_MIN_RAM,
    &sort_max_ram::SORT_MAX_RAM,
    &sort_min_owner::SORT_MIN_OWNER,
    &sort_random::SORT_RANDOM,
    &sort_2adic::SORT_2ADIC,
    &pick_random::PICK_RANDOM,
    &pick_weighted_random::PICK_WEIGHTED_RANDOM,
];

/// All algorithms.
pub(crate) fn all() -> impl Iterator<Item = &'static Algorithm> {
    [FILTERS, CALCULATORS, SCORERS, SORTERS].into_iter().flatten().copied()
}

/// The algorithm of this name.
pub(crate) fn find(name: &str) -> Option<&'static Algorithm> {
    all().find(|algorithm| algorithm.name == name)
}

/// The names of all algorithms, as expressions use them.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|algorithm| algorithm.name)
}

/// What resource filters do if the package has no ratio for the resource.
fn without_ratio(
    run: &mut Run<'_>,
    resource: &str,
    ratio: impl Fn(Ratios) -> Option<f64>,
) -> Reasons {
    // A request without package is never limited, as in the reference.
    if run.package.is_none() {
        return Reasons::None;
    }
    run.filter(|run, slot| match ratio(run.ratios(slot)) {
        None => Verdict::Keep,
        Some(ratio) => {
            let ratio = text(ratio);
            let text = format!(
                "Package gave no {resource} overprovision ratio, but server has ratio {ratio}"
            );
            Verdict::Because(Reason::Owned(text.into()))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_kinds_fit() {
        let names: BTreeSet<_> = names().collect();
        assert_eq!(names.len(), all().count(), "a name is used twice");
        for algorithm in all() {
            let prefix = match algorithm.kind {
                Kind::Scorer => &["score-"][..],
                Kind::Sorter => &["sort-", "pick-"],
                Kind::Filter | Kind::Set | Kind::Calculator => &[
                    "hard-filter-",
                    "soft-filter-",
                    "calculate-",
                    "load-",
                    "override-",
                    "identity",
                ],
            };
            assert!(prefix.iter().any(|p| algorithm.name.starts_with(p)), "{algorithm:?}");
            assert!(!algorithm.title.is_empty());
        }
    }
}
