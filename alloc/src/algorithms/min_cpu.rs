//! `hard-filter-min-cpu`: servers with enough CPU left.

use serde_json::{Value, json};

use super::no_ratio::without_ratio;
use crate::algorithm::{Algorithm, Kind};
use crate::change::{Change, Resource};
use crate::num::{json as number, text};
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::Run;

pub(super) static MIN_CPU: Algorithm = Algorithm {
    name: "hard-filter-min-cpu",
    title: "Servers with enough unreserved CPU",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.more(Resource::Cores)]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let ratio = run.found.package().and_then(|package| package.ratios.cpu);
    let need = ratio.zip(run.found.cpu_cap()).map(|(ratio, cap)| number(cap / ratio));
    vec![("spare", number(run.left(slot).cpu)), ("need", json!(need))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_min_resources {
        return Reasons::skip("Do not filter out based on minimum free CPU");
    }
    let package = run.found.package();
    let ratio = package.and_then(|package| package.ratios.cpu);
    let cap = run.found.cpu_cap().or(package.and_then(|package| package.cpu_cap));
    run.found.set_cpu_cap(cap);
    // A VM without a cap takes what is left, whatever the ratios.
    let Some(cap) = cap else { return Reasons::None };
    let Some(ratio) = ratio else {
        return without_ratio(run, "CPU", |ratios| ratios.cpu);
    };
    let need = cap / ratio;
    let reasons = run.keep_with(Resource::Cores, need);
    let before = format!("VM's calculated {} CPU is less than server's spare ", text(need));
    reasons.sharing(vec![before])
}
