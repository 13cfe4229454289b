//! `hard-filter-setup`: servers that are set up.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static SETUP: Algorithm = Algorithm {
    name: "hard-filter-setup",
    title: "Servers which have been setup",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::SETUP, true, || Verdict::Drop)
}
