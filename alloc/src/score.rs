//! What scorers do: how an order or raw figures become changes of the score.

use std::sync::Arc;

use crate::reason::Reasons;
use crate::run::Run;
use crate::scored::{Buckets, Scored, Scoring};
use crate::snapshot::Snapshot;

/// The text where a weight is 0.
pub(crate) const NO_WEIGHT: &str = "Resolved score weight to 0.00; no changes";

fn finish(run: &mut Run<'_>, scored: Scored) -> Reasons {
    run.score(&scored);
    Reasons::Scored(scored)
}

/// Scores by rank; `zones` goes into the texts.
pub(crate) fn linear(
    run: &mut Run<'_>,
    ranks: Vec<u32>,
    weight: f64,
    zones: Option<Vec<(u32, u32)>>,
) -> Reasons {
    let list = Arc::clone(run.list());
    finish(run, Scored { list, scoring: Scoring::ByRank { ranks, weight }, zones })
}

/// Scores in an order of places.
pub(crate) fn in_order(run: &mut Run<'_>, places: Vec<u32>, weight: f64) -> Reasons {
    let list = Arc::clone(run.list());
    finish(run, Scored { list, scoring: Scoring::InOrder { places, weight }, zones: None })
}

/// Scores by rank of a server's bucket, of which the places are given. The rest of the servers are
/// one bucket more, the first one or the last one.
pub(crate) fn buckets(
    run: &mut Run<'_>,
    buckets: &[&[u32]],
    rest_last: bool,
    weight: f64,
) -> Reasons {
    let list = Arc::clone(run.list());
    let buckets = Buckets::of(buckets, rest_last, list.len(), weight);
    finish(run, Scored { list, scoring: Scoring::Buckets(buckets), zones: None })
}

/// Scores by figures, stretched over the weight. One that is not known (NaN) counts as the least.
pub(crate) fn normalize(
    run: &mut Run<'_>,
    figure: impl Fn(&Snapshot, u32) -> f64,
    weight: f64,
) -> Reasons {
    let list = Arc::clone(run.list());
    let mut changes: Vec<f64> = list.iter().map(|slot| figure(run.snapshot, *slot)).collect();
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for x in &changes {
        // Hardly ever true, so that no step waits for the one before it.
        if *x < min {
            min = *x;
        }
        if *x > max {
            max = *x;
        }
    }
    let scale = 1.0 / (max - min) * weight.abs();
    for x in &mut changes {
        let known = if x.is_nan() { min } else { *x };
        *x = if max <= min {
            weight
        } else if weight > 0.0 {
            (known - min) * scale
        } else {
            (max - known) * scale
        };
    }
    finish(run, Scored { list, scoring: Scoring::Each(changes), zones: None })
}
