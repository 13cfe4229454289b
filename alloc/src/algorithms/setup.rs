//! `hard-filter-setup`: servers that are set up.

use serde_json::json;

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static SETUP: Algorithm = Algorithm {
    name: "hard-filter-setup",
    title: "Servers which have been setup",
    kind: Kind::Filter,
    run,
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.set("setup", json!(true), "the setup done")]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::SETUP, true, || Verdict::Drop)
}
