//! How scorers turn an order or raw figures into changes of the score.

use std::sync::Arc;

use crate::reason::{Deltas, Reasons, Scored, share};
use crate::run::Run;
use crate::snapshot::Snapshot;

/// The text where a weight is 0.
pub(crate) const NO_WEIGHT: &str = "Resolved score weight to 0.00; no changes";

fn finish(run: &mut Run<'_>, scored: Scored) -> Reasons {
    run.score(&scored);
    Reasons::Scored(scored)
}

/// Scores by place in an order; `zones` goes into the texts.
pub(crate) fn linear(
    run: &mut Run<'_>,
    order: Vec<u32>,
    weight: f64,
    zones: Option<Vec<u32>>,
) -> Reasons {
    finish(run, Scored { order: Arc::new(order), deltas: Deltas::Linear(weight), zones })
}

/// Scores by place of a server's bucket.
pub(crate) fn buckets(run: &mut Run<'_>, buckets: &[&[u32]], weight: f64) -> Reasons {
    let group = |(i, bucket): (usize, &&[u32])| (bucket.len(), share(i, buckets.len(), weight));
    let deltas = Deltas::Groups(buckets.iter().enumerate().map(group).collect());
    finish(run, Scored { order: Arc::new(buckets.concat()), deltas, zones: None })
}

/// Scores by figures, stretched over the weight. One that is not known (NaN) counts as the least.
pub(crate) fn normalize(
    run: &mut Run<'_>,
    figure: impl Fn(&Snapshot, u32) -> f64,
    weight: f64,
) -> Reasons {
    let (snapshot, slots) = (run.snapshot, run.remaining().set());
    let figures = || slots.iter().map(|slot| (slot, figure(snapshot, slot)));
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for (_, x) in figures() {
        // Hardly ever true, so that no step waits for the one before it.
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
    }
    let scale = 1.0 / (max - min) * weight.abs();
    let mut deltas = vec![0.0; snapshot.capacity()];
    for (slot, x) in figures() {
        let x = if x.is_nan() { min } else { x };
        deltas[slot as usize] = if max <= min {
            weight
        } else if weight > 0.0 {
            (x - min) * scale
        } else {
            (max - x) * scale
        };
    }
    let order = Arc::clone(run.list());
    finish(run, Scored { order, deltas: Deltas::BySlot(deltas), zones: None })
}
