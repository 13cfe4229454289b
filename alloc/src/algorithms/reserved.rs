//! `hard-filter-reserved`: no servers that an operator reserved.

use serde_json::json;

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RESERVED: Algorithm = Algorithm {
    name: "hard-filter-reserved",
    title: "Servers which are not reserved",
    kind: Kind::Filter,
    run,
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.set("reserved", json!(false), "the reservation lifted")]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RESERVED, false, || Verdict::Drop)
}
