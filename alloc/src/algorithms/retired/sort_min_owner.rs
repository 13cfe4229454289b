//! `sort-min-owner`: servers with the fewest VMs of the owner first.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::Run;

pub(super) static SORT_MIN_OWNER: Algorithm = Algorithm {
    name: "sort-min-owner",
    title: "Sort servers by minimum zones belonging to owner",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.spread() != Some("min-owner") {
        let spread = run.spread().unwrap_or("undefined");
        return Reasons::Skip(format!("\"server_spread\" is not \"min-owner\": {spread}").into());
    }
    let counts = run.owner_counts_by_slot();
    let zones = |slot: u32| counts[slot as usize];
    let each = run.list().iter().map(|slot| (*slot, Reason::Count(zones(*slot)))).collect();
    run.leave(run.sorted_by(|_, slot| f64::from(zones(slot))));
    Reasons::each(each)
}
