//! How scorers turn an order or raw figures into changes of the score.

use crate::num::count;
use crate::outcome::{Deltas, Reasons, Scored};
use crate::run::Run;

/// The text where a weight is 0.
pub(crate) const NO_WEIGHT: &str = "Resolved score weight to 0.00; no changes";

/// The share of place `i` among `n`: 1 for the first, 0 for the last, in steps written as the
/// reference writes them, because rounding shows in the texts.
fn share(i: usize, n: usize, weight: f64) -> f64 {
    if n == 1 {
        return weight;
    }
    let step = 1.0 / count(n - 1);
    count(n - 1 - i) * step * weight
}

impl Scored {
    /// By how much the server at this place changed.
    pub(crate) fn delta(&self, place: usize) -> f64 {
        match &self.deltas {
            Deltas::Linear(weight) => share(place, self.order.len(), *weight),
            Deltas::Each(deltas) => deltas[place],
        }
    }

    /// Adds the changes to the scores, which are by slot.
    pub(crate) fn apply(&self, score: &mut [f64]) {
        for (place, slot) in self.order.iter().enumerate() {
            score[*slot as usize] += self.delta(place);
        }
    }
}

/// Adds the changes again, and returns the scores then, in the scorer's order.
pub(crate) fn replay(scored: &Scored, score: &mut [f64]) -> Vec<f64> {
    scored.apply(score);
    scored.order.iter().map(|slot| score[*slot as usize]).collect()
}

fn finish(run: &mut Run<'_>, scored: Scored) -> Reasons {
    scored.apply(&mut run.score);
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
    finish(run, Scored { order: run.list.to_vec(), deltas: Deltas::Each(raw), zones: None })
}
