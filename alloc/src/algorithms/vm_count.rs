//! `hard-filter-vm-count`: servers that do not have too many VMs.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::num::{json as number, text};
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};

pub(super) static VM_COUNT: Algorithm = Algorithm {
    name: "hard-filter-vm-count",
    title: "Servers with more VMs than limit",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("vms", json!(run.vm_count(slot))), ("limit", number(run.settings.vm_limit))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let limit = run.settings.vm_limit;
    let reasons = run.filter(|run, slot| {
        let n = run.vm_count(slot);
        if f64::from(n) < limit { Verdict::Keep } else { Verdict::Because(Reason::VmCount(n)) }
    });
    reasons.sharing(vec![text(limit)])
}
