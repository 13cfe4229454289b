//! What scorers do: how an order or raw figures become changes of the score.

use std::sync::Arc;

use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;
use crate::scored::{Buckets, Scored, Scoring};

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

/// Scores by a value, stretched over the weight. One that is not known counts as the least.
pub(crate) fn normalize(run: &mut Run<'_>, key: SortKey, weight: f64) -> Reasons {
    let list = Arc::clone(run.list());
    let changes = match run.order(key) {
        Some(order) => {
            let set = run.remaining().set();
            order.map(&list, set.capacity(), stretch(order.span(set), weight))
        }
        None => {
            let value = |slot: &u32| run.value(*slot, key);
            let known = || list.iter().map(value).filter(|value| !value.is_nan());
            let span = known().reduce(f64::min).zip(known().reduce(f64::max));
            list.iter().map(value).map(stretch(span, weight)).collect()
        }
    };
    finish(run, Scored { list, scoring: Scoring::Each(changes), zones: None })
}

/// The change of a value, from the least and the greatest one.
fn stretch(span: Option<(f64, f64)>, weight: f64) -> impl Fn(f64) -> f64 {
    let (min, max) = span.unwrap_or_default();
    let scale = 1.0 / (max - min) * weight.abs();
    move |value| {
        let known = if value.is_nan() { min } else { value };
        if max <= min {
            weight
        } else if weight > 0.0 {
            (known - min) * scale
        } else {
            (max - known) * scale
        }
    }
}
