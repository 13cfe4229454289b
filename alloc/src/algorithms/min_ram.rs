//! `hard-filter-min-ram`: servers with enough RAM left.

use super::{Algorithm, Kind, without_ratio};
use crate::num::{nonzero, text};
use crate::outcome::{Reason, Reasons};
use crate::platform::with_shared;
use crate::run::{Run, Verdict};

pub(super) static MIN_RAM: Algorithm = Algorithm {
    name: "hard-filter-min-ram",
    title: "Servers with enough unreserved RAM",
    kind: Kind::Filter,
    run,
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.config.filter_min_resources {
        return Reasons::skip("Do not filter out based on minimum free RAM");
    }
    let package = run.package.as_ref();
    let Some(ratio) = package.and_then(|package| package.ratios.ram) else {
        return without_ratio(run, "RAM", |ratios| ratios.ram);
    };
    let vm = &run.request.vm;
    let fallback = package.and_then(|package| package.max_physical_memory);
    let ram = nonzero(vm.ram).or(fallback).unwrap_or(f64::NAN);
    let need = if vm.is_hvm() { ram } else { ram / ratio };
    let reasons = run.filter(|run, slot| {
        let spare = run.left(slot).ram;
        if spare >= need { Verdict::Keep } else { Verdict::Because(Reason::Spare(spare)) }
    });
    let before = format!("VM's calculated {} RAM is less than server's spare ", text(need));
    with_shared(reasons, vec![before])
}
