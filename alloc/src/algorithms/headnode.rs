//! `hard-filter-headnode`: no headnodes.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static HEADNODE: Algorithm = Algorithm {
    name: "hard-filter-headnode",
    title: "Servers which are not headnodes",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_headnode {
        return Reasons::skip("Do not filter out headnodes");
    }
    run.filter_flag(flag::HEADNODE, false, || Verdict::Drop)
}
