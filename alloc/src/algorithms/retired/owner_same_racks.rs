//! `hard-filter-owner-same-racks`: no two VMs of an owner in one rack.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};

pub(super) static OWNER_SAME_RACKS: Algorithm = Algorithm {
    name: "hard-filter-owner-same-racks",
    title: "Servers in racks containing none of an owner's zones",
    kind: Kind::Set,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let owner = refused.request.vm.owner;
    refused.without(|vm| vm.owner == owner).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let rack = run.snapshot.server(slot).parsed.rack.as_deref();
    vec![("rack", json!(rack)), ("owner_vms", json!(run.owner_vms(slot)))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let counts = run.owner_counts_by_slot();
    let snapshot = run.snapshot;
    let rack = |slot: u32| snapshot.server(slot).parsed.rack.as_deref();
    let taken: BTreeSet<&str> = run
        .list()
        .iter()
        .filter(|slot| counts[**slot as usize] > 0)
        .filter_map(|slot| rack(*slot))
        .collect();
    if taken.is_empty() {
        return Reasons::None;
    }
    run.filter(|_, slot| match rack(slot).filter(|rack| taken.contains(rack)) {
        None => Verdict::Keep,
        Some(rack) => {
            let text = format!("VM's owner has another VM in rack {rack}");
            Verdict::Because(Reason::Owned(text.into()))
        }
    })
}
