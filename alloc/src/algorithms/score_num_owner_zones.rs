//! `score-num-owner-zones`: spreads the VMs of an owner.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::Run;
use crate::score::{self, NO_WEIGHT};

pub(super) static SCORE_NUM_OWNER_ZONES: Algorithm = Algorithm {
    name: "score-num-owner-zones",
    title: "Score servers based on number of zones belonging to owner",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let weight = match run.spread() {
        Some("min-owner") => 2.0,
        Some(spread) => {
            return Reasons::Skip(format!("pkg or default set to spread with: {spread}").into());
        }
        None => run.settings.weights.num_owner_zones,
    };
    if weight == 0.0 {
        return Reasons::skip(NO_WEIGHT);
    }
    let counts = run.owner_counts_by_slot();
    let zones = |slot: u32| counts[slot as usize];
    let sorted = run.sorted_by(|_, slot| weight.signum() * f64::from(zones(slot)));
    let found = sorted.iter().map(|slot| zones(*slot)).collect();
    score::linear(run, sorted, weight.abs(), Some(found))
}
