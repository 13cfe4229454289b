//! How scorers turn an order or raw figures into changes of the score.

use crate::num::count;
use crate::outcome::Reason;
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

/// Scores by place in an order.
pub(crate) fn linear(run: &mut Run<'_>, sorted: &[u32], weight: f64) -> Vec<(u32, Reason)> {
    let n = sorted.len();
    sorted
        .iter()
        .enumerate()
        .map(|(i, slot)| (*slot, run.add_score(*slot, share(i, n, weight))))
        .collect()
}

/// Scores by place of a server's bucket.
pub(crate) fn buckets(run: &mut Run<'_>, buckets: &[Vec<u32>], weight: f64) -> Vec<(u32, Reason)> {
    let n = buckets.len();
    let mut each = Vec::with_capacity(run.list.len());
    for (i, bucket) in buckets.iter().enumerate() {
        let delta = share(i, n, weight);
        each.extend(bucket.iter().map(|slot| (*slot, run.add_score(*slot, delta))));
    }
    each
}

/// Scores by figures, stretched over the weight.
pub(crate) fn normalize(run: &mut Run<'_>, raw: &[f64], weight: f64) -> Vec<(u32, Reason)> {
    let min = raw.iter().copied().fold(f64::INFINITY, f64::min);
    let max = raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scale = 1.0 / (max - min) * weight.abs();
    let delta = |raw: f64| {
        if max <= min {
            weight
        } else if weight > 0.0 {
            (raw - min) * scale
        } else {
            (max - raw) * scale
        }
    };
    let list = std::sync::Arc::clone(&run.list);
    list.iter().zip(raw).map(|(slot, raw)| (*slot, run.add_score(*slot, delta(*raw)))).collect()
}
