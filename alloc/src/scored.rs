//! What a scorer did, and how it changes the scores.

use std::borrow::Cow;
use std::iter::repeat_n;
use std::sync::Arc;

use crate::slot_set::SlotSet;

/// What a scorer did: enough to do it again, in an eighth of the room of its texts' figures.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    /// The servers that were scored. A place, below, is one in this list.
    pub(crate) list: Arc<Vec<u32>>,
    pub(crate) scoring: Scoring,
    /// The owner's VMs on each slot that has any, in the order of slots, if the scorer counted them.
    pub(crate) zones: Option<Vec<(u32, u32)>>,
}

/// How the scores of a list changed, and in which order its servers were scored.
#[derive(Clone, Debug)]
pub(crate) enum Scoring {
    /// In this order of places: all of the weight for the first, nothing for the last.
    InOrder { places: Vec<u32>, weight: f64 },
    /// The same by place: how many servers come before it. Scores can be changed in the order of
    /// the list then; in any other, each is a wait for the memory.
    ByRank { ranks: Vec<u32>, weight: f64 },
    /// In buckets of equal changes.
    Buckets(Buckets),
    /// As listed, each by so much.
    Each(Vec<f64>),
}

/// Servers with equal changes: most of them in one bucket, in the order of the list.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    /// The places in the other buckets, in the order of scoring.
    places: Vec<u32>,
    /// How many of these are in each bucket, and their change.
    buckets: Vec<(usize, f64)>,
    /// The change of those that have no place above.
    rest: f64,
    /// Whether these are scored last, not first.
    rest_last: bool,
}

impl Scored {
    /// The places, in the order of scoring.
    pub(crate) fn places(&self) -> Cow<'_, [u32]> {
        let all = || (0..).take(self.list.len());
        match &self.scoring {
            Scoring::Each(_) => all().collect(),
            Scoring::InOrder { places, .. } => places.into(),
            Scoring::ByRank { ranks, .. } => {
                let mut places = vec![0; ranks.len()];
                for (place, rank) in (0..).zip(ranks) {
                    places[*rank as usize] = place;
                }
                places.into()
            }
            Scoring::Buckets(Buckets { places, rest_last, .. }) => {
                let apart = SlotSet::of(places, self.list.len());
                let rest: Vec<u32> = all().filter(|place| !apart.has(*place)).collect();
                let order = if *rest_last { (places, &rest) } else { (&rest, places) };
                [order.0.as_slice(), order.1].concat().into()
            }
        }
    }

    /// How many VMs the owner has on a server, if the scorer counted them.
    pub(crate) fn zones_of(&self, slot: u32) -> Option<u32> {
        let zones = self.zones.as_ref()?;
        let found = zones.binary_search_by_key(&slot, |(slot, _)| *slot);
        Some(found.map_or(0, |found| zones[found].1))
    }

    /// By how much each server changed, by place.
    pub(crate) fn changes(&self) -> Vec<f64> {
        let mut changes = vec![0.0; self.list.len()];
        self.apply(&mut changes);
        changes
    }

    /// Adds the changes to the scores, which are by place.
    pub(crate) fn apply(&self, scores: &mut [f64]) {
        match &self.scoring {
            Scoring::InOrder { places, weight } => {
                let share = shares(places.len(), *weight);
                (0..).zip(places).for_each(|(rank, p)| scores[*p as usize] += share(rank));
            }
            Scoring::ByRank { ranks, weight } => {
                let share = shares(ranks.len(), *weight);
                scores.iter_mut().zip(ranks).for_each(|(score, rank)| *score += share(*rank));
            }
            Scoring::Buckets(buckets) => buckets.apply(scores),
            Scoring::Each(changes) => {
                scores.iter_mut().zip(changes).for_each(|(score, change)| *score += change);
            }
        }
    }
}

impl Buckets {
    /// Changes by rank of the bucket, of which the places are given, among so many servers. The rest
    /// of these are one bucket more, the first one or the last one.
    pub(crate) fn of(buckets: &[&[u32]], rest_last: bool, servers: usize, weight: f64) -> Self {
        let places = buckets.concat();
        let has_rest = places.len() < servers;
        let share = shares(buckets.len() + usize::from(has_rest), weight);
        let first = u32::from(has_rest && !rest_last);
        let buckets = (first..).zip(buckets).map(|(rank, bucket)| (bucket.len(), share(rank)));
        let buckets: Vec<(usize, f64)> = buckets.collect();
        let last = u32::try_from(buckets.len()).unwrap_or(u32::MAX);
        let rest = match (has_rest, rest_last) {
            (false, _) => 0.0,
            (true, true) => share(last),
            (true, false) => share(0),
        };
        Self { places, buckets, rest, rest_last }
    }

    /// All buckets in the order of scoring among so many servers: how many are in each, and their
    /// change.
    pub(crate) fn all(&self, servers: usize) -> Vec<(usize, f64)> {
        let mut all = self.buckets.clone();
        let rest = servers - self.places.len();
        if rest > 0 {
            all.insert(if self.rest_last { all.len() } else { 0 }, (rest, self.rest));
        }
        all
    }

    fn apply(&self, scores: &mut [f64]) {
        let before: Vec<f64> = self.places.iter().map(|place| scores[*place as usize]).collect();
        scores.iter_mut().for_each(|score| *score += self.rest);
        let changes = self.buckets.iter().flat_map(|(len, change)| repeat_n(change, *len));
        for ((place, before), change) in self.places.iter().zip(before).zip(changes) {
            scores[*place as usize] = before + change;
        }
    }
}

/// The share of rank `i` among `n`: 1 for the first, 0 for the last, in steps written as the
/// reference writes them, because rounding shows in the texts.
fn shares(n: usize, weight: f64) -> impl Fn(u32) -> f64 {
    let last = u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX);
    let step = 1.0 / f64::from(last);
    move |i| if last == 0 { weight } else { f64::from(last - i) * step * weight }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Changes by place, from the order of scoring and the changes in it.
    fn listed(scored: &Scored, in_order: impl IntoIterator<Item = f64>) -> Vec<f64> {
        let mut changes = vec![f64::NAN; scored.list.len()];
        for (place, change) in scored.places().iter().zip(in_order) {
            changes[*place as usize] = change;
        }
        changes
    }

    proptest! {
        #[test]
        fn changes_are_in_the_order_of_scoring(
            order in Just((0..40_u32).collect::<Vec<_>>()).prop_shuffle(),
            buckets in prop::collection::vec(1..8_usize, 1..5), rest_last in any::<bool>(),
        ) {
            let list = Arc::new((0..40).map(|place| place * 3).collect());
            let scored = |scoring| Scored { list: Arc::clone(&list), scoring, zones: None };
            let mut ranks = vec![0; order.len()];
            (0..).zip(&order).for_each(|(rank, place)| ranks[*place as usize] = rank);
            let by_order = scored(Scoring::InOrder { places: order.clone(), weight: 2.0 });
            let by_rank = scored(Scoring::ByRank { ranks, weight: 2.0 });
            prop_assert_eq!(by_order.places(), order.as_slice());
            prop_assert_eq!(by_rank.places(), order.as_slice());
            let shares: Vec<f64> = (0..40).map(shares(40, 2.0)).collect();
            prop_assert_eq!(by_order.changes(), listed(&by_order, shares));
            prop_assert_eq!(by_order.changes(), by_rank.changes());

            let apart = buckets.iter().sum();
            let buckets = buckets.into_iter().zip((1..).map(f64::from)).collect();
            let buckets = Buckets { places: order[..apart].to_vec(), buckets, rest: 0.5, rest_last };
            let all: Vec<f64> = buckets
                .all(order.len())
                .into_iter()
                .flat_map(|(len, change)| repeat_n(change, len))
                .collect();
            prop_assert_eq!(all.len(), order.len());
            let scored = scored(Scoring::Buckets(buckets));
            prop_assert_eq!(scored.changes(), listed(&scored, all));
            let in_order: Vec<u32> = scored.places().to_vec();
            let (rest, apart) = if rest_last {
                (&in_order[apart..], &in_order[..apart])
            } else {
                in_order.split_at(order.len() - apart)
            };
            prop_assert!(rest.is_sorted() && apart == &order[..apart.len()]);
        }
    }
}
