//! What the disks of each kind are for.

use super::Device;
use super::buckets::Bucket;

/// A log device keeps a few seconds of writes: more disks than these are no log.
const MAX_LOGS: usize = 4;

/// Disks by what they are for, each in the order of their sizes and names.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    pub(super) storage: Vec<Device>,
    pub(super) logs: Vec<Device>,
    pub(super) cache: Vec<Device>,
}

/// Gives each kind its role. Without `caches` nothing caches.
pub(super) fn assign(buckets: Vec<Bucket<'_>>, caches: bool) -> Roles {
    let mut roles = Roles::default();
    let (mut fast, mut turning): (Vec<_>, Vec<_>) =
        buckets.into_iter().partition(|bucket| bucket.solid_state);
    let only = fast.len() + turning.len() == 1;
    let storage = take_largest(if turning.is_empty() { &mut fast } else { &mut turning });
    roles.storage.extend(storage.into_iter().flat_map(|bucket| bucket.devices));
    if !only {
        if let Some(log) = smallest(&fast).filter(|log| fast[*log].devices.len() <= MAX_LOGS) {
            roles.logs = fast.remove(log).devices;
        }
        if caches {
            roles.cache.extend(fast.into_iter().chain(turning).flat_map(|bucket| bucket.devices));
        }
    }
    for devices in [&mut roles.storage, &mut roles.logs, &mut roles.cache] {
        devices.sort_by(|a, b| (a.size, &a.name).cmp(&(b.size, &b.name)));
    }
    roles
}

/// By the smallest disk of each.
fn take_largest<'a>(buckets: &mut Vec<Bucket<'a>>) -> Option<Bucket<'a>> {
    let all = buckets.iter().enumerate();
    // The first one of equals.
    let (largest, _) = all.rev().max_by_key(|(_, bucket)| bucket.least())?;
    Some(buckets.remove(largest))
}

fn smallest(buckets: &[Bucket<'_>]) -> Option<usize> {
    let all = buckets.iter().enumerate();
    all.min_by_key(|(_, bucket)| bucket.least()).map(|(index, _)| index)
}
