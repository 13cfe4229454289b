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

    /// By place in the list: the server's place once the list is sorted; equal ones keep their order, and
    /// those without a value come last.
    pub(crate) fn ranked(&self, key: SortKey, most_first: bool) -> Vec<u32> {
        let list = self.list();
        if let Some(order) = self.order(key) {
            return order.ranks(list, self.remaining().set(), most_first);
        }
        let mut ranks = vec![0; list.len()];
        for (rank, place) in (0..).zip(places_by(list, self.sort_value(key, most_first))) {
            ranks[place] = rank;
        }
        ranks
    }

    /// The list, sorted.
    pub(crate) fn sorted(&self, key: SortKey, most_first: bool) -> Vec<u32> {
        let (list, set) = (self.list(), self.remaining().set());
        match self.order(key) {
            Some(order) => order.sorted(list.iter().map(|slot| (*slot, *slot)), set, most_first),
            None => self.compared(list, |slot| slot, key, most_first),
        }
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
        let slot_of = |place: u32| list[place as usize];
        match self.order(key) {
            Some(order) => {
                let places = places.iter().map(|place| (slot_of(*place), *place));
                order.sorted(places, set, most_first)
            }
            None => self.compared(places, slot_of, key, most_first),
        }
    }

    /// Items in the order of their servers, whose values are compared.
    fn compared(
        &self,
        items: &[u32],
        slot_of: impl Fn(u32) -> u32,
        key: SortKey,
        most_first: bool,
    ) -> Vec<u32> {
        let value = self.sort_value(key, most_first);
        places_by(items, |item| value(&slot_of(*item))).map(|place| items[place]).collect()
    }

    /// What a server is compared by.
    fn sort_value(&self, key: SortKey, most_first: bool) -> impl Fn(&u32) -> f64 {
        move |slot| {
            let value = self.value(*slot, key);
            if most_first { -value } else { value }
        }
    }

    /// The list in ascending order of a number; stable.
    pub(crate) fn sorted_by(&self, key: impl Fn(&Self, u32) -> f64) -> Vec<u32> {
        let list = self.list();
        places_by(list, |slot| key(self, *slot)).map(|place| list[place]).collect()
    }
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
