//! `hard-filter-min-disk`: servers with enough disk left.

use super::{Algorithm, Kind, without_ratio};
use crate::num::text;
use crate::outcome::{Reason, Reasons};
use crate::platform::with_shared;
use crate::run::{Run, Verdict};
use crate::server::MIB;

/// Room for whatever else an installation needs, MiB.
const SLACK_MIB: f64 = 10_240.0;

pub(super) static MIN_DISK: Algorithm = Algorithm {
    name: "hard-filter-min-disk",
    title: "Servers with enough unreserved disk",
    kind: Kind::Filter,
    run,
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.config.filter_min_resources {
        return Reasons::skip("Do not filter out based on unreserved disk");
    }
    let (request, package) = (run.request, run.package.as_ref());
    let own = request.vm.quota.map(|gib| gib * 1024.0);
    let Some(quota) = own.or(package.and_then(|package| package.quota)) else {
        return Reasons::skip("Vm and pkg have no quota");
    };
    let Some(ratio) = package.and_then(|package| package.ratios.disk) else {
        return without_ratio(run, "disk", |ratios| ratios.disk);
    };
    let image = &request.image;
    let whole = request.vm.is_hvm() || image.kind == "zvol";
    let disk = if whole { quota + image.image_size } else { (quota / ratio).ceil() };
    let need = disk + ((image.files_bytes / MIB).ceil() + SLACK_MIB);
    let reasons = run.filter(|run, slot| {
        let spare = run.left(slot).disk;
        if spare >= need { Verdict::Keep } else { Verdict::Because(Reason::Spare(spare)) }
    });
    let before = format!("VM's calculated {} MiB disk is more than server's spare ", text(need));
    with_shared(reasons, vec![before, " MiB".to_owned()])
}
