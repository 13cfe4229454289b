//! `score-unreserved-disk`: packs (or, with a negative weight, spreads) by disk left.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;
use crate::score::{self, NO_WEIGHT};

pub(super) static SCORE_UNRESERVED_DISK: Algorithm = Algorithm {
    name: "score-unreserved-disk",
    title: "Score servers based on unreserved disk",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if let Some(spread) = run.spread() {
        return Reasons::Skip(format!("pkg or default set to spread with: {spread}").into());
    }
    let weight = run.settings.weights.unreserved_disk;
    if weight == 0.0 {
        return Reasons::skip(NO_WEIGHT);
    }
    let ranks = run.ranked(SortKey::Disk, weight < 0.0);
    score::linear(run, ranks, weight.abs(), None)
}
