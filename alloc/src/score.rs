//! How scorers turn an order or raw figures into changes of the score.

use crate::reason::{Deltas, Reasons, Scored, share};
use crate::run::Run;

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
    finish(run, Scored { order, deltas: Deltas::Linear(weight), zones })
}

/// Scores by place of a server's bucket.
pub(crate) fn buckets(run: &mut Run<'_>, buckets: &[Vec<u32>], weight: f64) -> Reasons {
    let deltas = buckets
        .iter()
        .enumerate()
        .flat_map(|(i, bucket)| vec![share(i, buckets.len(), weight); bucket.len()])
        .collect();
    finish(run, Scored { order: buckets.concat(), deltas: Deltas::Each(deltas), zones: None })
}

/// Scores by figures, stretched over the weight.
pub(crate) fn normalize(run: &mut Run<'_>, mut raw: Vec<f64>, weight: f64) -> Reasons {
    let min = raw.iter().copied().fold(f64::INFINITY, f64::min);
    let max = raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scale = 1.0 / (max - min) * weight.abs();
    for x in &mut raw {
        *x = if max <= min {
            weight
        } else if weight > 0.0 {
            (*x - min) * scale
        } else {
            (max - *x) * scale
        };
    }
    finish(run, Scored { order: run.list().to_vec(), deltas: Deltas::Each(raw), zones: None })
}
