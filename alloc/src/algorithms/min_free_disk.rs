//! `hard-filter-min-free-disk`: servers whose pool has room left, whatever is promised.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::{Change, Resource};
use crate::num::json as number;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::Run;

pub(super) static MIN_FREE_DISK: Algorithm = Algorithm {
    name: "hard-filter-min-free-disk",
    title: "Servers with enough free disk",
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
    let least = run.settings.minimum_free_disk.as_ref().map(|(_, least)| number(*least));
    vec![("free_mib", number(run.snapshot.free_disk(slot))), ("least_mib", json!(least))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let Some((text, least)) = &run.settings.minimum_free_disk else {
        return Reasons::skip("No minimum free disk set");
    };
    // What is not known (NaN) is not enough.
    let is_enough = |free: f64| free >= *least;
    let gone = run.sweep(|word| word.refused(&word.chunk.free_disk, |free| !is_enough(free)));
    let snapshot = run.snapshot;
    let reasons = run.remove_because(gone, |slot| Reason::Spare(snapshot.free_disk(slot)));
    let before = format!("Server requires {text}MB free disk, but only has ");
    reasons.sharing(vec![before, "MB".to_owned()])
}
