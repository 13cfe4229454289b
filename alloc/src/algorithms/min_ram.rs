//! `hard-filter-min-ram`: servers with enough RAM left.

use serde_json::{Value, json};

use super::no_ratio::without_ratio;
use crate::algorithm::{Algorithm, Kind};
use crate::change::{Change, Resource};
use crate::num::{json as number, nonzero, text};
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::Run;

pub(super) static MIN_RAM: Algorithm = Algorithm {
    name: "hard-filter-min-ram",
    title: "Servers with enough unreserved RAM",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.more(Resource::Memory)]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let need = run.found.package().and_then(|package| package.ratios.ram);
    let need = need.map(|ratio| number(need_mib(run, ratio)));
    vec![("spare_mib", number(run.left(slot).ram)), ("need_mib", json!(need))]
}

/// What the VM takes of a server's RAM under a ratio, MiB.
fn need_mib(run: &Run<'_>, ratio: f64) -> f64 {
    let vm = &run.request.vm;
    let fallback = run.found.package().and_then(|package| package.max_physical_memory);
    let ram = nonzero(vm.ram).or(fallback).unwrap_or(vm.ram);
    if vm.is_hvm() { ram } else { ram / ratio }
}

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_min_resources {
        return Reasons::skip("Do not filter out based on minimum free RAM");
    }
    let Some(ratio) = run.found.package().and_then(|package| package.ratios.ram) else {
        return without_ratio(run, "RAM", |ratios| ratios.ram);
    };
    let need = need_mib(run, ratio);
    let reasons = run.keep_with(Resource::Memory, need);
    let before = format!("VM's calculated {} RAM is less than server's spare ", text(need));
    reasons.sharing(vec![before])
}
