//! `soft-filter-large-servers`: the emptiest servers for large VMs, the rest for the others.

use crate::algorithm::{Algorithm, Kind};
use crate::algorithms::large_servers::kept_back;
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;

/// A VM with more RAM than this is a large one.
const LARGE_MIB: f64 = 32_767.0;

pub(super) static SOFT_LARGE_SERVERS: Algorithm = Algorithm {
    name: "soft-filter-large-servers",
    title: "Separate some servers as pool for large requests",
    kind: Kind::Set,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let pool = kept_back(run.list().len());
    if pool > 0 {
        let sorted = run.sorted(SortKey::Ram, true);
        let (large, rest) = sorted.split_at(pool);
        let kept = if run.request.vm.ram > LARGE_MIB { large } else { rest };
        run.leave(kept.to_vec());
    }
    Reasons::None
}
