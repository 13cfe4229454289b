//! `hard-filter-min-disk`: servers with enough disk left.

use serde_json::{Value, json};

use super::no_ratio::without_ratio;
use crate::algorithm::{Algorithm, Kind};
use crate::change::{Change, Resource};
use crate::num::{json as number, text};
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::Run;
use crate::server::MIB;

/// Room for whatever else an installation needs, MiB.
const SLACK_MIB: f64 = 10_240.0;

pub(super) static MIN_DISK: Algorithm = Algorithm {
    name: "hard-filter-min-disk",
    title: "Servers with enough unreserved disk",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.more(Resource::Disk)]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let ratio = run.found.package().and_then(|package| package.ratios.disk);
    let need = ratio.zip(quota(run)).map(|(ratio, quota)| number(need_mib(run, quota, ratio)));
    vec![("spare_mib", number(run.left(slot).disk)), ("need_mib", json!(need))]
}

/// The disk that VM or package ask for, MiB.
fn quota(run: &Run<'_>) -> Option<f64> {
    let own = run.request.vm.quota.map(|gib| gib * 1024.0);
    own.or(run.found.package().and_then(|package| package.quota))
}

/// What the VM takes of a server's disk under a ratio, MiB.
fn need_mib(run: &Run<'_>, quota: f64, ratio: f64) -> f64 {
    let image = &run.request.image;
    let whole = run.request.vm.is_hvm() || image.kind == "zvol";
    let disk = if whole { quota + image.image_size } else { (quota / ratio).ceil() };
    disk + ((image.files_bytes / MIB).ceil() + SLACK_MIB)
}

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_min_resources {
        return Reasons::skip("Do not filter out based on unreserved disk");
    }
    let Some(quota) = quota(run) else {
        return Reasons::skip("Vm and pkg have no quota");
    };
    let Some(ratio) = run.found.package().and_then(|package| package.ratios.disk) else {
        return without_ratio(run, "disk", |ratios| ratios.disk);
    };
    let need = need_mib(run, quota, ratio);
    let reasons = run.keep_with(Resource::Disk, need);
    let before = format!("VM's calculated {} MiB disk is more than server's spare ", text(need));
    reasons.sharing(vec![before, " MiB".to_owned()])
}
