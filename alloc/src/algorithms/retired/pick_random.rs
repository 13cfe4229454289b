//! `pick-random`: any one server.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static PICK_RANDOM: Algorithm = Algorithm {
    name: "pick-random",
    title: "Random server",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.list().is_empty() {
        let place = run.rng.below(run.list().len());
        let slot = run.list()[place];
        run.leave(vec![slot]);
    }
    Reasons::None
}
