//! `hard-filter-overprovision-ratios`: servers that overprovision as the package does.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::num::fix2;
use crate::ratios::{RatioPolicy, Ratios};
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::request::Package;
use crate::run::{Run, Verdict};

pub(super) static OVERPROVISION_RATIOS: Algorithm = Algorithm {
    name: "hard-filter-overprovision-ratios",
    title: "Servers with same overprovision ratios as requested VM",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let to_package = |package: &Package| {
        let r = package.ratios;
        let named =
            [("cpu", r.cpu), ("ram", r.ram), ("disk", r.disk), ("io", r.io), ("net", r.net)];
        let known = named.into_iter().filter(|(_, ratio)| ratio.is_some());
        let ratios = known.map(|(name, ratio)| (name.to_owned(), json!(ratio))).collect();
        refused.set("overprovision_ratios", Value::Object(ratios), "the package's ratios")
    };
    refused.request.package.as_ref().map(to_package).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let has = run.ratios(slot);
    let list =
        |r: Ratios| json!({"cpu": r.cpu, "ram": r.ram, "disk": r.disk, "io": r.io, "net": r.net});
    let package = run.found.package().map(|package| list(package.ratios));
    vec![("server", list(has)), ("package", json!(package))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let Some(package) = &run.found.package() else { return Reasons::skip("No pkg provided") };
    let wanted = package.ratios;
    if run.found.policy() == RatioPolicy::Forced(wanted) {
        return Reasons::None;
    }
    run.filter(|run, slot| match mismatch(wanted, run.ratios(slot)) {
        None => Verdict::Keep,
        Some(text) => Verdict::Because(Reason::Owned(text.into())),
    })
}

fn mismatch(wanted: Ratios, has: Ratios) -> Option<String> {
    let pairs = [
        (wanted.cpu, has.cpu),
        (wanted.ram, has.ram),
        (wanted.disk, has.disk),
        (wanted.io, has.io),
        (wanted.net, has.net),
    ];
    let canon = |ratio: Option<f64>| ratio.map_or_else(|| "null".to_owned(), fix2);
    pairs.into_iter().map(|(wanted, has)| (canon(wanted), canon(has))).find_map(|(wanted, has)| {
        (wanted != has).then(|| {
            format!("Package over-provision ratio of {wanted} does not match server's {has}")
        })
    })
}
