//! `calculate-server-unreserved`: what each server has left.

use super::{Algorithm, Kind};
use crate::outcome::Reasons;
use crate::run::Run;

pub(super) static SERVER_UNRESERVED: Algorithm = Algorithm {
    name: "calculate-server-unreserved",
    title: "Calculate unreserved resources on each server",
    kind: Kind::Calculator,
    run,
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.compute_left();
    Reasons::None
}
