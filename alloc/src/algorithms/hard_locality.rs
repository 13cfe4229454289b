//! `hard-filter-locality-hints`: strict wishes to be near or far from other VMs of the owner.

use serde_json::Value;
use uuid::Uuid;

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::Run;
use crate::validate::Locality;

pub(super) static HARD_LOCALITY: Algorithm = Algorithm {
    name: "hard-filter-locality-hints",
    title: "Servers with requested hard locality considered",
    kind: Kind::Set,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let too_near = refused.reason().and_then(|text| text.strip_prefix("exclude: inst!="));
    refused.without(|vm| too_near == Some(&vm.uuid.to_string())).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    run.wishes(slot)
}

fn run(run: &mut Run<'_>) -> Reasons {
    let Some(locality) = run.found.locality().cloned().filter(|locality| locality.strict) else {
        return Reasons::skip("No strict locality requested");
    };
    let Locality { near, far, .. } = locality;
    if near.is_empty() && far.is_empty() {
        return Reasons::skip("No near or far localities requested");
    }
    let hosts = run.owned_hosts(&far);
    let mut reasons = Vec::new();
    for slot in run.list().iter() {
        if let Some(first) = hosts.get(slot).and_then(|found| found.first()) {
            let text = format!("exclude: inst!={}", far[*first]);
            reasons.push((*slot, Reason::Owned(text.into())));
        }
    }
    run.keep(|_, slot| !hosts.contains_key(&slot));
    let mut all = None;
    if let (Some(first), false) = (near.first(), run.list().is_empty()) {
        let hosts = run.owned_hosts(std::slice::from_ref(first));
        let candidate = run.list().iter().copied().find(|slot| hosts.contains_key(slot));
        let fits = |slot: &u32| near[1..].iter().all(|vm| has_vm(run, *slot, vm));
        match candidate.filter(fits) {
            Some(slot) => {
                let text = format!("include: inst=={}", near.join(","));
                reasons.push((slot, Reason::Owned(text.into())));
                run.leave(vec![slot]);
            }
            None => {
                run.leave(Vec::new());
                all = Some(format!("exclude: inst=={}", near.join(",")));
            }
        }
    }
    if reasons.is_empty() && all.is_none() {
        return Reasons::None;
    }
    Reasons::Each { each: reasons, shared: Vec::new(), all, in_order: true }
}

/// Whether the server has the VM, whoever owns it: the reference asks only for the first one's
/// owner.
fn has_vm(run: &Run<'_>, slot: u32, vm: &str) -> bool {
    Uuid::parse_str(vm).is_ok_and(|vm| run.vms(slot).any(|v| v.uuid == vm))
}
