//! `pick-random`: any one server.

use std::sync::Arc;

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
    if !run.list.is_empty() {
        let slot = run.list[run.rng.below(run.list.len())];
        run.list = Arc::new(vec![slot]);
    }
    Reasons::None
}
