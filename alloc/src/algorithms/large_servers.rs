//! `hard-filter-large-servers`: keeps the emptiest servers for large VMs.

use crate::algorithm::{Algorithm, Kind};
use crate::num::{count, trunc};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static LARGE_SERVERS: Algorithm = Algorithm {
    name: "hard-filter-large-servers",
    title: "Filter out the largest and most empty servers",
    kind: Kind::Set,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_large_servers {
        return Reasons::skip("Do not filter out large servers");
    }
    let kept_back = kept_back(run.remaining().len());
    if kept_back > 0 {
        // The order stays, too.
        let mut rest = run.sorted(SortKey::Ram, true);
        rest.drain(..kept_back);
        run.leave(rest);
    }
    Reasons::None
}

/// The part of the servers that is kept back.
const SHARE: f64 = 0.15;

/// How many of `n` servers are kept back.
pub(super) fn kept_back(n: usize) -> usize {
    trunc(count(n) * SHARE)
}
