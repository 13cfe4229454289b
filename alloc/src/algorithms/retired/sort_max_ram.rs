//! `sort-max-ram`: emptiest servers first.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static SORT_MAX_RAM: Algorithm = Algorithm {
    name: "sort-max-ram",
    title: "Sort servers by maximum unreserved RAM",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.spread() == Some("max-ram") {
        run.leave(run.sorted(SortKey::Ram, true));
    }
    Reasons::None
}
