//! `hard-filter-running`: servers whose agent is heard.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static RUNNING: Algorithm = Algorithm {
    name: "hard-filter-running",
    title: "Servers which are currently running",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    vec![refused.set("status", json!("running"), "status running")]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("status", json!(run.snapshot.server(slot).status.as_deref()))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.filter_flag(flag::RUNNING, true, || Verdict::Because(Reason::Status))
}
