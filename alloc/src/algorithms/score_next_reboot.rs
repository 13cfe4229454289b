//! `score-next-reboot`: favours servers that stay up longer.

use crate::algorithm::{Algorithm, Kind};
use crate::order::stable_order;
use crate::reason::Reasons;
use crate::run::Run;
use crate::score;

/// Reboots closer together than this count as equally soon.
const WEEK_MS: f64 = 7.0 * 24.0 * 3_600_000.0;

pub(super) static SCORE_NEXT_REBOOT: Algorithm = Algorithm {
    name: "score-next-reboot",
    title: "Score servers that will not be rebooted soon more highly",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.list().len() < 2 {
        return Reasons::skip("One or fewer servers");
    }
    let reboot = |slot: &u32| run.snapshot.reboot_ms(*slot);
    let (unplanned, planned): (Vec<u32>, Vec<u32>) =
        run.list().iter().copied().partition(|slot| reboot(slot).is_nan());
    let planned = stable_order(&planned, |slot| -reboot(&slot));
    let mut buckets = Vec::new();
    if !unplanned.is_empty() {
        buckets.push(unplanned);
    }
    let mut limit = f64::INFINITY;
    let mut bucket: Vec<u32> = Vec::new();
    for slot in planned {
        if reboot(&slot) <= limit {
            if !bucket.is_empty() {
                buckets.push(std::mem::take(&mut bucket));
            }
            limit = reboot(&slot) - WEEK_MS;
        }
        bucket.push(slot);
    }
    if !bucket.is_empty() {
        buckets.push(bucket);
    }
    let weight = run.settings.weights.next_reboot;
    if weight < 0.0 {
        buckets.reverse();
    }
    score::buckets(run, &buckets, weight.abs())
}
