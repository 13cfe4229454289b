//! Keeps a status report within one frame, whatever the VMs' records hold: a larger one would
//! cost the connection, and again each time it is dialed anew.

use std::collections::BTreeMap;

use muster_shared::ids::VmUuid;
use muster_shared::vm::json_bytes;
use muster_shared::wire::MAX_FRAME_BYTES;
use muster_shared::wire::status::{VmIndex, VmReport};
use muster_shared::wire::usage::{self, Usages};
use serde_json::json;

/// Room in the frame for all VMs of a report; the rest is for the figures beside them.
pub(super) const MAX_VMS_BYTES: usize = MAX_FRAME_BYTES - 64 * 1024;
/// The only tag of a VM whose tags were left out. A tag, because coordinators of every version
/// keep tags as they are.
const LEFT_OUT: &str = "muster:tags_left_out";
/// A VM's key in the report with its punctuation.
const KEY_BYTES: usize = 40;

/// Leaves out tags, of the VMs with the longest reports first, until all fit into `most_bytes`.
/// Returns how many VMs lost theirs.
pub(super) fn fit(vms: &mut BTreeMap<VmUuid, VmReport>, most_bytes: usize) -> usize {
    let mut by_size: Vec<(usize, VmUuid)> =
        vms.iter().map(|(vm, report)| (json_bytes(report), *vm)).collect();
    by_size.sort_unstable();
    let mut total = by_size.iter().map(|(bytes, _)| bytes + KEY_BYTES).sum::<usize>();
    let mut reduced = 0;
    while total > most_bytes
        && let Some((bytes, vm)) = by_size.pop()
        && let Some(report) = vms.get_mut(&vm)
    {
        let tags = BTreeMap::from([(LEFT_OUT.to_owned(), json!(true))]);
        // Older agents took a text of any length for it.
        let index = VmIndex { tags, docker_id: None, ..report.index.clone() };
        let without = VmReport { index, ..report.clone() };
        let bytes_without = json_bytes(&without);
        // One without tags of its own has nothing to give.
        if bytes_without < bytes {
            *report = without;
            total = total - bytes + bytes_without;
            reduced += 1;
        }
    }
    reduced
}

/// Leaves out what VMs use, of the last ones first, until that fits beside the VMs. Returns of how
/// many VMs it was left out.
pub(super) fn fit_usage(usages: &mut Usages, vms: &BTreeMap<VmUuid, VmReport>) -> usize {
    let left = MAX_VMS_BYTES.saturating_sub(json_bytes(vms));
    usage::fit(usages, left)
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::usage::VmUsage;

    use super::*;
    use crate::drivers::compute::Observed;
    use crate::vms::sim::record;
    use crate::vms::{Entry, object};

    /// Reports of VMs with tags of so many bytes.
    fn reports(tag_bytes: &[usize]) -> BTreeMap<VmUuid, VmReport> {
        let report = |(number, bytes): (u128, &usize)| {
            let mut record = record(number);
            let tags = json!({ "a": "x".repeat(*bytes) });
            record.properties.insert("tags".to_owned(), tags);
            let state_since = jiff::Timestamp::UNIX_EPOCH;
            let entry = Entry { record, observed: Observed::stopped(), state_since, guest: None };
            (entry.record.uuid, object::report(&entry))
        };
        (0..).zip(tag_bytes).map(report).collect()
    }

    #[track_caller]
    fn check(tag_bytes: &[usize], most_bytes: usize, reduced: usize) {
        let mut vms = reports(tag_bytes);
        let whole = vms.clone();
        assert_eq!(fit(&mut vms, most_bytes), reduced);
        assert!(json_bytes(&vms) <= most_bytes, "{} bytes", json_bytes(&vms));
        let changed = vms.iter().filter(|(vm, report)| whole[vm] != **report).count();
        assert_eq!(changed, reduced);
    }

    #[test]
    fn the_largest_lose_their_tags_until_all_fit() {
        check(&[], 100, 0);
        check(&[1000; 10], 100_000, 0);
        check(&[10, 90_000, 20], 80_000, 1);
        check(&[880_000; 3], MAX_VMS_BYTES, 1);
        let mut none = reports(&[0; 10]);
        assert_eq!(fit(&mut none, 100), 0, "no tags, nothing to leave out");
        let mut many = reports(&[16_000; 300]);
        let reduced = fit(&mut many, MAX_VMS_BYTES);
        assert!((170..190).contains(&reduced), "{reduced}");
        assert!(json_bytes(&many) <= MAX_VMS_BYTES);

        let usages = |vms: &BTreeMap<VmUuid, VmReport>| -> Usages {
            vms.keys().map(|vm| (*vm, VmUsage::default())).collect()
        };
        let mut used = usages(&many);
        fit_usage(&mut used, &many);
        assert!(used.len() < 300);
        assert!(json_bytes(&used) + json_bytes(&many) <= MAX_VMS_BYTES);
        let few = reports(&[0; 10]);
        let mut used = usages(&few);
        assert_eq!(fit_usage(&mut used, &few), 0);
    }
}
