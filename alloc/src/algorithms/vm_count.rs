//! `hard-filter-vm-count`: servers that do not have too many VMs.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::num::{json as number, text};
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};

pub(super) static VM_COUNT: Algorithm = Algorithm {
    name: "hard-filter-vm-count",
    title: "Servers with more VMs than limit",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let last = refused.server.counted().last().map(|vm| vm.uuid);
    refused.without(|vm| Some(vm.uuid) == last).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("vms", json!(run.vm_count(slot))), ("limit", number(run.settings.vm_limit))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let limit = run.settings.vm_limit;
    let fits = |n: u32| f64::from(n) < limit;
    let reasons = if run.is_fast() {
        let gone = run.sweep(|word| word.refused(&word.chunk.vm_count, |n| !fits(n)));
        let snapshot = run.snapshot;
        run.remove_because(gone, |slot| Reason::VmCount(snapshot.fast_vm_count(slot)))
    } else {
        run.filter(|run, slot| {
            let n = run.vm_count(slot);
            if fits(n) { Verdict::Keep } else { Verdict::Because(Reason::VmCount(n)) }
        })
    };
    reasons.sharing(vec![text(limit)])
}
