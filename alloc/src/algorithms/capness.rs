//! `hard-filter-capness`: no mixing of VMs with and without a CPU cap.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;
use crate::vm::Vm;

pub(super) static CAPNESS: Algorithm = Algorithm {
    name: "hard-filter-capness",
    title: "Servers which have same existence of cpu_cap as package",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let request = refused.request;
    let package = request.package.as_ref().and_then(|package| package.cpu_cap);
    let capped = request.vm.cpu_cap.or(package).is_some();
    refused.without(|vm| vm.cpu_cap.is_some() != capped).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let capped = run.vms(slot).filter(|vm| vm.cpu_cap.is_some()).count();
    let all = run.vms(slot).count();
    vec![("capped_vms", json!(capped)), ("uncapped_vms", json!(all - capped))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_capness {
        return Reasons::skip("Do not filter out cpu_cap disparities");
    }
    let package = run.found.package().and_then(|package| package.cpu_cap);
    let capped = run.found.cpu_cap().or(package).is_some();
    let bit = if capped { flag::UNCAPPED } else { flag::CAPPED };
    if run.flags_decide(bit) {
        return Reasons::None;
    }
    run.filter(|run, slot| {
        let differs = |vm: &Vm| vm.cpu_cap.is_some() != capped;
        if !run.any_vm(slot, bit, differs) {
            return Verdict::Keep;
        }
        match run.vms(slot).find(|vm| differs(vm)) {
            None => Verdict::Keep,
            Some(vm) => Verdict::Because(Reason::Capness(vm.uuid, !capped)),
        }
    })
}
