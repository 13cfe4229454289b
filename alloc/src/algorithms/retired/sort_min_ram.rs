//! `sort-min-ram`: fullest servers first.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static SORT_MIN_RAM: Algorithm = Algorithm {
    name: "sort-min-ram",
    title: "Sort servers by minimum unreserved RAM",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.spread() == Some("min-ram") {
        let mut sorted = run.sorted(SortKey::Ram, true);
        // Not an ascending sort: equal servers come out the other way round.
        sorted.reverse();
        run.leave(sorted);
    }
    Reasons::None
}
