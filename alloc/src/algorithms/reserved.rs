//! `hard-filter-reserved`: no servers that an operator reserved.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RESERVED: Algorithm = Algorithm {
    name: "hard-filter-reserved",
    title: "Servers which are not reserved",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RESERVED, false, || Verdict::Drop)
}
