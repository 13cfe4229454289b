//! `hard-filter-reservoir`: no servers kept for later.

use serde_json::json;

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RESERVOIR: Algorithm = Algorithm {
    name: "hard-filter-reservoir",
    title: "Servers which are not in the reservoir",
    kind: Kind::Filter,
    run,
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.set("reservoir", json!(false), "no reservoir mark")]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RESERVOIR, false, || Verdict::Drop)
}
