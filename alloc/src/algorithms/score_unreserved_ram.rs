//! `score-unreserved-ram`: packs (or, with a negative weight, spreads) by RAM left.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;
use crate::score::{self, NO_WEIGHT};

pub(super) static SCORE_UNRESERVED_RAM: Algorithm = Algorithm {
    name: "score-unreserved-ram",
    title: "Score servers based on unreserved RAM",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let weight = match run.spread() {
        Some("min-ram") => 2.0,
        Some("max-ram") => -2.0,
        Some("min-owner" | "random") => {
            return Reasons::skip("pkg or default set to score with other plugin");
        }
        _ => run.settings.weights.unreserved_ram,
    };
    if weight == 0.0 {
        return Reasons::skip(NO_WEIGHT);
    }
    // A positive weight favours the servers with the least RAM left, whatever the docs say.
    let ranks = run.ranked(SortKey::Ram, weight < 0.0);
    score::linear(run, ranks, weight.abs(), None)
}
