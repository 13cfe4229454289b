//! `hard-filter-reserved`: no servers that an operator reserved.

use super::{Algorithm, Kind};
use crate::outcome::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RESERVED: Algorithm = Algorithm {
    name: "hard-filter-reserved",
    title: "Servers which are not reserved",
    kind: Kind::Filter,
    run,
    compares: None,
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RESERVED, false, || Verdict::Drop)
}
