//! Algorithms of the reference that its own default policy has long left out. They stay because
//! policies may name them; nothing else here needs them.

mod locality;
mod owner_same_racks;
mod owner_same_servers;
mod pick_random;
mod pick_weighted_random;
mod recent_vms;
mod soft_large_servers;
mod soft_recent_servers;
mod sort_2adic;
mod sort_max_ram;
mod sort_min_owner;
mod sort_min_ram;
mod sort_random;

use crate::algorithm::Algorithm;

pub(super) static ALL: &[&Algorithm] = &[
    &owner_same_servers::OWNER_SAME_SERVERS,
    &soft_large_servers::SOFT_LARGE_SERVERS,
    &soft_recent_servers::SOFT_RECENT_SERVERS,
    &soft_recent_servers::HARD_RECENT_SERVERS,
    &owner_same_racks::OWNER_SAME_RACKS,
    &recent_vms::RECENT_VMS,
    &locality::LOCALITY,
    &sort_min_ram::SORT_MIN_RAM,
    &sort_max_ram::SORT_MAX_RAM,
    &sort_min_owner::SORT_MIN_OWNER,
    &sort_random::SORT_RANDOM,
    &sort_2adic::SORT_2ADIC,
    &pick_random::PICK_RANDOM,
    &pick_weighted_random::PICK_WEIGHTED_RANDOM,
];
