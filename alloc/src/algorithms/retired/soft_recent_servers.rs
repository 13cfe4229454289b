//! `soft-filter-recent-servers`: servers not chosen lately, so that racing allocations spread.

use crate::algorithm::{Algorithm, Kind};
use crate::num::{count, trunc};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static SOFT_RECENT_SERVERS: Algorithm = Algorithm {
    name: "soft-filter-recent-servers",
    title: "Servers which have not been allocated to recently",
    kind: Kind::Set,
    run,
    remembers: true,
    ..Algorithm::PLAIN
};

/// A name found in sample expressions only.
pub(super) static HARD_RECENT_SERVERS: Algorithm =
    Algorithm { name: "hard-filter-recent-servers", ..SOFT_RECENT_SERVERS };

/// How long a choice is remembered.
const MEMORY_MS: f64 = 300_000.0;
/// The part of the servers that is left out at most.
const SHARE: f64 = 0.25;

fn run(run: &mut Run<'_>) -> Reasons {
    let mut recent: Vec<(f64, u32)> = run
        .recent
        .servers
        .iter()
        .filter(|entry| entry.age_ms <= MEMORY_MS)
        .filter_map(|entry| Some((entry.age_ms, run.snapshot.slot_of(&entry.server_uuid)?)))
        .filter(|(_, slot)| run.remaining().has(*slot))
        .collect();
    recent.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let colliding = count(recent.len());
    let most = (count(run.remaining().len()) * SHARE).min(colliding);
    recent.truncate(trunc(most));
    if !recent.is_empty() {
        run.keep(|_, slot| !recent.iter().any(|(_, used)| *used == slot));
    }
    Reasons::None
}
