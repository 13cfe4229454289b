//! `hard-filter-setup`: servers that are set up.

use super::{Algorithm, Kind};
use crate::outcome::Reasons;
use crate::run::Run;
use crate::server::flag;

pub(super) static SETUP: Algorithm = Algorithm {
    name: "hard-filter-setup",
    title: "Servers which have been setup",
    kind: Kind::Filter,
    run,
    compares: None,
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.keep(|snapshot, slot| snapshot.has(slot, flag::SETUP))
}
