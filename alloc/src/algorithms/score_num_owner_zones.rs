//! `score-num-owner-zones`: spreads the VMs of an owner.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::remaining::Remaining;
use crate::run::Run;
use crate::score::{self, NO_WEIGHT};
use crate::slot_set::SlotSet;

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
    let counts = run.owner_counts();
    let ranks = ranks(run.remaining(), &counts, weight < 0.0);
    score::linear(run, ranks, weight.abs(), Some(counts))
}

/// By place: its rank by the owner's VMs there. Most servers have none: these are in the order of the
/// list, and only the others are sorted.
fn ranks(servers: &Remaining, counts: &[(u32, u32)], most_first: bool) -> Vec<u32> {
    let slots = counts.iter().map(|(slot, _)| *slot).filter(|slot| servers.has(*slot));
    let with_zones = SlotSet::of(&slots.collect::<Vec<_>>(), servers.set().capacity());
    let zones = |slot: u32| {
        counts.binary_search_by_key(&slot, |(slot, _)| *slot).map_or(0, |found| counts[found].1)
    };
    let (mut ranks, mut sorted) = (Vec::with_capacity(servers.len()), Vec::new());
    let mut next = if most_first { with_zones.len() } else { 0 };
    for (place, slot) in servers.list().iter().enumerate() {
        ranks.push(u32::try_from(next).unwrap_or(u32::MAX));
        if with_zones.has(*slot) {
            sorted.push((zones(*slot), place));
        } else {
            next += 1;
        }
    }
    sorted.sort_by(|(a, _), (b, _)| if most_first { b.cmp(a) } else { a.cmp(b) });
    let first = if most_first { 0 } else { u32::try_from(next).unwrap_or(u32::MAX) };
    for (rank, (_, place)) in (first..).zip(sorted) {
        ranks[place] = rank;
    }
    ranks
}
