//! `hard-filter-reservoir`: no servers kept for later.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RESERVOIR: Algorithm = Algorithm {
    name: "hard-filter-reservoir",
    title: "Servers which are not in the reservoir",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RESERVOIR, false, || Verdict::Drop)
}
