//! Disks of a kind.

use super::capacity::Megabytes;
use super::{Device, Disk};

/// Disks of one kind and of about one size.
#[derive(Clone, Debug)]
pub(super) struct Bucket<'a> {
    kind: &'a str,
    /// That of most of them.
    size: Megabytes,
    pub(super) solid_state: bool,
    pub(super) devices: Vec<Device>,
}

impl Bucket<'_> {
    /// The smallest of its disks.
    pub(super) fn least(&self) -> Option<Megabytes> {
        self.devices.iter().map(|device| device.size).min()
    }
}

/// Puts disks together, with their rounded sizes.
pub(super) fn of<'a>(disks: impl Iterator<Item = (&'a Disk, Megabytes)>) -> Vec<Bucket<'a>> {
    let mut disks: Vec<_> = disks.collect();
    // In whatever order they were found, they are the same server's.
    disks.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut buckets: Vec<Bucket<'a>> = Vec::new();
    for (disk, size) in disks {
        let device = Device {
            name: disk.name.clone(),
            vid: disk.vendor.clone(),
            pid: disk.product.clone(),
            size,
            solid_state: disk.solid_state,
        };
        let is_its = |bucket: &&mut Bucket<'_>| {
            (bucket.kind, bucket.size, bucket.solid_state)
                == (disk.kind.as_str(), size, disk.solid_state)
        };
        match buckets.iter_mut().find(is_its) {
            Some(bucket) => bucket.devices.push(device),
            None => buckets.push(Bucket {
                kind: &disk.kind,
                size,
                solid_state: disk.solid_state,
                devices: vec![device],
            }),
        }
    }
    while let Some((one, other)) = alike(&buckets) {
        merge(&mut buckets, one, other);
    }
    buckets
}

/// Two that differ in their size by a twentieth at most.
fn alike(buckets: &[Bucket<'_>]) -> Option<(usize, usize)> {
    let all = 0..buckets.len();
    let mut pairs = all.clone().flat_map(|one| all.clone().map(move |other| (one, other)));
    pairs.find(|&(one, other)| {
        let (a, b) = (&buckets[one], &buckets[other]);
        one != other && a.solid_state == b.solid_state && a.size.is_near(b.size)
    })
}

/// Into the one with more disks.
fn merge(buckets: &mut Vec<Bucket<'_>>, one: usize, other: usize) {
    let fewer = buckets[one].devices.len() < buckets[other].devices.len();
    let (kept, gone) = if fewer { (other, one) } else { (one, other) };
    let devices = std::mem::take(&mut buckets[gone].devices);
    buckets[kept].devices.extend(devices);
    buckets.remove(gone);
}
