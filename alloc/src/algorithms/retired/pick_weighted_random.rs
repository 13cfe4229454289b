//! `pick-weighted-random`: any one of the first servers.

use crate::algorithm::{Algorithm, Kind};
use crate::num::{count, trunc};
use crate::reason::Reasons;
use crate::run::Run;

/// The part of the servers of which one is picked.
const SHARE: f64 = 0.20;

pub(super) static PICK_WEIGHTED_RANDOM: Algorithm = Algorithm {
    name: "pick-weighted-random",
    title: "Random weighted server",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let first = trunc(count(run.list().len()) * SHARE).max(1);
    if !run.list().is_empty() {
        let place = if first == 1 { 0 } else { run.rng.below(first) };
        run.leave(vec![run.list()[place]]);
    }
    Reasons::None
}
