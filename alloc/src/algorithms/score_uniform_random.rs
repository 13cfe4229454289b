//! `score-uniform-random`: keeps allocations that race from all choosing the same server.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::Run;
use crate::score;

pub(super) static SCORE_UNIFORM_RANDOM: Algorithm = Algorithm {
    name: "score-uniform-random",
    title: "Increase server scores randomly",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let weight = match run.spread() {
        Some("random") => 2.0,
        Some(spread) => {
            return Reasons::Skip(format!("pkg or default set to spread with: {spread}").into());
        }
        None => run.settings.weights.uniform_random,
    };
    if weight == 0.0 {
        return Reasons::skip("Resolved score weight to 0; no changes");
    }
    let mut places: Vec<u32> = (0..).take(run.remaining().len()).collect();
    run.rng.shuffle(&mut places);
    score::in_order(run, places, weight.abs())
}
