//! `calculate-server-unreserved`: what each server has left.

use serde_json::Value;

use crate::algorithm::{Algorithm, Kind};
use crate::num::json as number;
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static SERVER_UNRESERVED: Algorithm = Algorithm {
    name: "calculate-server-unreserved",
    title: "Calculate unreserved resources on each server",
    kind: Kind::Calculator,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let left = run.left(slot);
    vec![
        ("unreserved_cpu", number(left.cpu)),
        ("unreserved_ram", number(left.ram)),
        ("unreserved_disk", number(left.disk)),
    ]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.compute_left();
    Reasons::None
}
