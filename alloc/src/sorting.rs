//! The servers that are left, in the order of a value.

use crate::findings::Left;
use crate::order::{Order, SortKey};
use crate::run::Run;
use crate::slot_set::SlotSet;

/// If less than this part of the servers is left, comparing those costs less than going through the order of
/// all: one in so many.
const FEW: usize = 8;

impl Run<'_> {
    /// The order of all servers; `None` if the request sees other values than the snapshot, or if few
    /// servers are left.
    pub(crate) fn order(&self, key: SortKey) -> Option<&Order> {
        let fits = match key {
            SortKey::Cpu | SortKey::Ram | SortKey::Disk => matches!(self.found.left(), Left::Fast),
            SortKey::NextReboot | SortKey::Platform => self.uses_sums(),
        };
        let order = self.snapshot.order(key);
        (fits && self.remaining().len() >= order.len() / FEW).then_some(order)
    }

    /// A server's value; NaN if there is none.
    pub(crate) fn value(&self, slot: u32, key: SortKey) -> f64 {
        match key {
            SortKey::Cpu => self.left(slot).cpu,
            SortKey::Ram => self.left(slot).ram,
            SortKey::Disk => self.left(slot).disk,
            SortKey::NextReboot | SortKey::Platform => self.snapshot.value(slot, key),
        }
    }

    /// For each of these servers, its place once they are sorted; equal ones keep their order, and
    /// those without a value come last. The set has the same servers.
    fn ranks_of(&self, slots: &[u32], set: &SlotSet, key: SortKey, most_first: bool) -> Vec<u32> {
        if let Some(order) = self.order(key) {
            return order.ranks(slots, set, most_first);
        }
        let value = |slot: &u32| {
            let value = self.value(*slot, key);
            if most_first { -value } else { value }
        };
        let mut ranks = vec![0; slots.len()];
        for (rank, place) in (0..).zip(places_by(slots, value)) {
            ranks[place] = rank;
        }
        ranks
    }

    /// By place in the list: the server's place once the list is sorted.
    pub(crate) fn ranked(&self, key: SortKey, most_first: bool) -> Vec<u32> {
        self.ranks_of(self.list(), self.remaining().set(), key, most_first)
    }

    /// The list, sorted.
    pub(crate) fn sorted(&self, key: SortKey, most_first: bool) -> Vec<u32> {
        in_order(self.list(), &self.ranked(key, most_first))
    }

    /// Some of the list's places, sorted. The set has their servers.
    pub(crate) fn sorted_places(
        &self,
        places: &[u32],
        set: &SlotSet,
        key: SortKey,
        most_first: bool,
    ) -> Vec<u32> {
        let list = self.list();
        let slots: Vec<u32> = places.iter().map(|place| list[*place as usize]).collect();
        in_order(places, &self.ranks_of(&slots, set, key, most_first))
    }

    /// The list in ascending order of a number; stable.
    pub(crate) fn sorted_by(&self, key: impl Fn(&Self, u32) -> f64) -> Vec<u32> {
        let list = self.list();
        places_by(list, |slot| key(self, *slot)).map(|place| list[place]).collect()
    }
}

/// Each item at its rank.
fn in_order(items: &[u32], ranks: &[u32]) -> Vec<u32> {
    let mut sorted = vec![0; items.len()];
    for (item, rank) in items.iter().zip(ranks) {
        sorted[*rank as usize] = *item;
    }
    sorted
}

/// The places of items in ascending order of a number; stable. What is no number comes last: the
/// reference leaves its place to the sorting algorithm.
pub(crate) fn places_by<T>(items: &[T], key: impl Fn(&T) -> f64) -> impl Iterator<Item = usize> {
    let mut sorted: Vec<(f64, usize)> = items.iter().map(key).zip(0..).collect();
    sorted
        .sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())));
    sorted.into_iter().map(|(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_comes_last() {
        let keys: Vec<f64> =
            (0..50_u8).map(|n| if n % 3 == 0 { f64::NAN } else { f64::from(n) }).rev().collect();
        let places: Vec<usize> = places_by(&keys, |key| *key).collect();
        let (numbers, unknown) = places.split_at(33);
        assert!(numbers.is_sorted_by_key(|place| keys[*place]));
        assert!(unknown.iter().all(|place| keys[*place].is_nan()));
        assert!(unknown.is_sorted(), "in the order in which they were");
    }
}
