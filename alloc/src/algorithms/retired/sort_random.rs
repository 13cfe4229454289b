//! `sort-random`: servers in any order.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static SORT_RANDOM: Algorithm = Algorithm {
    name: "sort-random",
    title: "Sort servers randomly",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.spread() == Some("random") {
        let mut list = run.list().to_vec();
        run.rng.shuffle(&mut list);
        run.leave(list);
    }
    Reasons::None
}
