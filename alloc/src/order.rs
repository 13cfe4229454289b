//! Sorting servers by a figure: the most expensive thing an allocation does.

use crate::slot_set::{SlotSet, slots_of};

/// Bits of a slot, or of a place in a list.
const INDEX_BITS: u32 = 24;
const INDICES: usize = 1 << INDEX_BITS;
/// How far apart keys may be that fit a number with the index beside them.
const RANGE: u64 = 1 << (u64::BITS - INDEX_BITS);
/// Most bits that one pass sorts by: its counters are to stay in the processor's first cache.
const DIGIT_BITS: u32 = 12;
/// Shorter lists are sorted by comparing.
const SHORT: usize = 512;

/// Servers to be sorted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Servers<'a> {
    /// In the order that equal ones keep.
    pub(crate) slots: &'a [u32],
    /// The same.
    pub(crate) set: &'a SlotSet,
}

/// Sorts, and keeps its memory for the next sort.
#[derive(Debug, Default)]
pub(crate) struct Sorter {
    /// By slot: the lowest bits of its key. A snapshot has keys in the order of slots, and is much
    /// larger: read in the order of a list, each would be a wait for the memory.
    keys: Vec<u32>,
    /// Of each server, how far its key is above the least one, and an index beside it, in one
    /// number. Megabytes, VMs and times are whole numbers.
    items: Vec<u64>,
    /// Where a pass puts them.
    sorted: Vec<u64>,
}

impl Sorter {
    /// The slots in ascending order of their keys; equal ones (and whatever is not a number) keep
    /// their order.
    pub(crate) fn order(&mut self, servers: Servers<'_>, key: impl Fn(u32) -> f64) -> Vec<u32> {
        self.labels(servers, servers.slots, key)
    }

    /// Numbers that stand for the servers, one for each, in ascending order of the servers' keys.
    pub(crate) fn labels(
        &mut self,
        servers: Servers<'_>,
        labels: &[u32],
        key: impl Fn(u32) -> f64,
    ) -> Vec<u32> {
        let mut order = vec![0; labels.len()];
        let label = |place: usize| labels[place];
        if self.sort(servers, &key, label, |rank, item| order[rank] = index(item)) {
            return order;
        }
        by_comparison(servers.slots, key).into_iter().map(label).collect()
    }

    /// By place in the list: the server's place in the order. To change scores in the order itself
    /// would be a wait for the memory at each server.
    pub(crate) fn ranks(&mut self, servers: Servers<'_>, key: impl Fn(u32) -> f64) -> Vec<u32> {
        let mut ranks = vec![0; servers.slots.len()];
        let rank_of = |rank, item| ranks[index(item) as usize] = number(rank);
        if !self.sort(servers, &key, number, rank_of) {
            for (rank, place) in (0..).zip(by_comparison(servers.slots, key)) {
                ranks[place] = rank;
            }
        }
        ranks
    }

    /// As [`Sorter::order`], with the keys; `None` if they don't fit beside the slots, or if there
    /// are few servers.
    pub(crate) fn sorted(
        &mut self,
        servers: Servers<'_>,
        key: impl Fn(u32) -> f64,
    ) -> Option<Sorted> {
        let mut sorted = vec![0; servers.slots.len()];
        let slot = |place: usize| servers.slots[place];
        self.sort(servers, &key, slot, |rank, item| sorted[rank] = item).then_some(Sorted(sorted))
    }

    /// Sorts by the keys alone, a few bits of them in each pass, the lowest first, and hands each
    /// item to `last` with its place. `false` if it can't: a key is no whole number or too far from
    /// others, or there are few servers.
    fn sort(
        &mut self,
        servers: Servers<'_>,
        key: &impl Fn(u32) -> f64,
        index_of: impl Fn(usize) -> u32,
        mut last: impl FnMut(usize, u64),
    ) -> bool {
        let Some(digits) = self.take(servers, key, index_of) else { return false };
        let Some(last_pass) = digits.passes.checked_sub(1) else {
            self.items.iter().enumerate().for_each(|(place, item)| last(place, *item));
            return true;
        };
        let Self { items, sorted, .. } = self;
        for pass in 0..last_pass {
            sorted.resize(items.len(), 0);
            digits.pass(pass, items, |place, item| sorted[place] = item);
            std::mem::swap(items, sorted);
        }
        digits.pass(last_pass, items, last);
        true
    }

    /// Takes in the items; says how their keys are taken apart.
    fn take(
        &mut self,
        servers: Servers<'_>,
        key: &impl Fn(u32) -> f64,
        index_of: impl Fn(usize) -> u32,
    ) -> Option<Digits> {
        if servers.slots.len() <= SHORT || servers.set.capacity() > INDICES {
            return None;
        }
        let (least, span) = self.take_keys(servers.set, key)?;
        let item = |place: usize, above: u64| above << INDEX_BITS | u64::from(index_of(place));
        let near = |slot: u32| self.keys[slot as usize].wrapping_sub(low_bits(least));
        let listed = servers.slots.iter().enumerate();
        self.items.clear();
        if u32::try_from(span).is_ok() {
            self.items.extend(listed.map(|(place, slot)| item(place, near(*slot).into())));
        } else {
            let above = |slot: u32| whole(key(slot)).abs_diff(least);
            self.items.extend(listed.map(|(place, slot)| item(place, above(*slot))));
        }
        Some(Digits::of(span))
    }

    /// Takes in the keys; says which is the least, and how far above it the others are at most.
    fn take_keys(&mut self, set: &SlotSet, key: &impl Fn(u32) -> f64) -> Option<(i64, u64)> {
        self.keys.resize(set.capacity(), 0);
        let (mut least, mut most, mut is_exact) = (i64::MAX, i64::MIN, true);
        for word in 0..set.words() {
            for slot in slots_of(word, set.word(word)) {
                let key = key(slot);
                let whole = whole(key);
                #[expect(clippy::cast_precision_loss, reason = "compared: equal only if exact")]
                let same = whole as f64 == key;
                is_exact &= same;
                (least, most) = (least.min(whole), most.max(whole));
                self.keys[slot as usize] = low_bits(whole);
            }
        }
        let span = most.abs_diff(least);
        (is_exact && span < RANGE).then_some((least, span))
    }
}

/// Slots in ascending order of their keys, which lie beside them: who wants some of them the other
/// way round need not read the keys again, which lie all over the memory.
#[derive(Debug)]
pub(crate) struct Sorted(Vec<u64>);

impl Sorted {
    /// Without so many of the first.
    pub(crate) fn without(mut self, first: usize) -> Self {
        self.0.drain(..first.min(self.0.len()));
        self
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|item| index(*item))
    }

    /// Of some of the slots, by their place among them here: which place each has in descending
    /// order, in which equal ones keep theirs.
    pub(crate) fn descending_ranks(&self, of: &SlotSet) -> Vec<u32> {
        let mut keys = Vec::with_capacity(self.0.len());
        keys.extend(
            self.0.iter().filter(|item| of.has(index(**item))).map(|item| *item >> INDEX_BITS),
        );
        // Equal ones that come before it.
        let (mut last, mut equal) = (u64::MAX, 0);
        let mut ranks: Vec<u32> = keys
            .iter()
            .map(|key| {
                equal = if *key == last { equal + 1 } else { 0 };
                last = *key;
                equal
            })
            .collect();
        // And those that are greater: all after the last one that is equal.
        let (mut last, mut greater) = (u64::MAX, 0);
        for (after, (rank, key)) in (0..).zip(ranks.iter_mut().zip(&keys).rev()) {
            greater = if *key == last { greater } else { after };
            last = *key;
            *rank += greater;
        }
        ranks
    }
}

#[expect(clippy::cast_possible_truncation, reason = "compared with the key by whoever asks")]
fn whole(key: f64) -> i64 {
    key as i64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "differences below 2^32 are right"
)]
fn low_bits(whole: i64) -> u32 {
    whole as u32
}

/// How keys are taken apart.
#[derive(Clone, Copy)]
struct Digits {
    width: u32,
    passes: u32,
}

impl Digits {
    /// For keys up to this one; if that is 0, they are equal and need no pass.
    fn of(most: u64) -> Self {
        let bits = u64::BITS - most.leading_zeros();
        let passes = bits.div_ceil(DIGIT_BITS);
        Self { width: bits.div_ceil(passes.max(1)), passes }
    }

    /// Hands each item to `to` with the place that it has by one digit of its key.
    fn pass(self, pass: u32, items: &[u64], mut to: impl FnMut(usize, u64)) {
        let mut places = vec![0_u32; 1 << self.width];
        let (shift, mask) = (INDEX_BITS + pass * self.width, places.len() - 1);
        let digit = |item: u64| usize::try_from(item >> shift).unwrap_or(0) & mask;
        for item in items {
            places[digit(*item)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for item in items {
            let place = &mut places[digit(*item)];
            to(*place as usize, *item);
            *place += 1;
        }
    }
}

fn index(item: u64) -> u32 {
    number(usize::try_from(item).unwrap_or(0) % INDICES)
}

fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// Places in the list in ascending order of keys.
fn by_comparison(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<usize> {
    let mut sorted: Vec<(f64, usize)> = slots.iter().map(|slot| key(*slot)).zip(0..).collect();
    // What is no number comes last; the reference leaves its place to the sorting algorithm.
    sorted
        .sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())));
    sorted.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_of(slots: &[u32]) -> SlotSet {
        SlotSet::of(slots, 2_048)
    }

    fn ordered(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
        Sorter::default().order(Servers { slots, set: &all_of(slots) }, key)
    }

    fn ranks(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
        Sorter::default().ranks(Servers { slots, set: &all_of(slots) }, key)
    }

    fn sorted(slots: &[u32], key: impl Fn(u32) -> f64) -> Option<Sorted> {
        Sorter::default().sorted(Servers { slots, set: &all_of(slots) }, key)
    }

    fn check(keys: &[f64]) {
        let slots: Vec<u32> = (0..).take(keys.len()).collect();
        let mut want = slots.clone();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        want.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        assert_eq!(ordered(&slots, key), want);
        let ranks = ranks(&slots, key);
        let ranked: Vec<u32> = want.iter().map(|slot| ranks[*slot as usize]).collect();
        assert!(ranked.into_iter().eq((0..).take(keys.len())), "places and slots are the same");
    }

    #[test]
    fn what_is_no_number_comes_last() {
        let keys: Vec<f64> =
            (0..50_u8).map(|n| if n % 3 == 0 { f64::NAN } else { f64::from(n) }).rev().collect();
        let slots: Vec<u32> = (0..).take(keys.len()).collect();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        let sorted = ordered(&slots, key);
        let numbers = sorted.iter().take_while(|slot| !key(**slot).is_nan()).count();
        assert!(sorted[..numbers].is_sorted_by_key(|slot| key(*slot)));
        assert_eq!((numbers, sorted.len()), (33, 50));
        assert!(sorted[numbers..].is_sorted(), "in the order in which they were");
    }

    #[test]
    fn what_is_in_order_already_or_the_other_way_round_keeps_equal_ones_as_they_are() {
        for step in [-1.0, 1.0] {
            check(&(0..2_000_u16).map(|n| f64::from(n / 3) * step).collect::<Vec<_>>());
        }
        check(&[4.0; 900]);
    }

    #[test]
    fn some_of_what_is_sorted_is_sorted_the_other_way_round() {
        let keys: Vec<f64> = (0..2_000_u16).map(|n| f64::from(n * 7 % 300)).collect();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        let slots: Vec<u32> = (0..2_000).rev().collect();
        let by_key = sorted(&slots, |slot| -key(slot)).expect("whole numbers");
        let all = ordered(&slots, |slot| -key(slot));
        assert!(by_key.slots().eq(all.iter().copied()));
        let rest = by_key.without(10);
        assert!(rest.slots().eq(all[10..].iter().copied()));
        let some: Vec<u32> =
            all[10..].iter().copied().filter(|slot| !slot.is_multiple_of(3)).collect();
        assert_eq!(rest.descending_ranks(&all_of(&some)), ranks(&some, key));
        assert!(sorted(&slots, |slot| key(slot) / 7.0).is_none());
        assert!(sorted(&slots[..500], key).is_none());
    }

    proptest! {
        #[test]
        fn order_is_stable(
            keys in proptest::collection::vec(-5i32..5, 0..60), half in any::<bool>(),
        ) {
            let offset = if half { 0.5 } else { 0.0 };
            check(&keys.into_iter().map(|key| f64::from(key) + offset).collect::<Vec<_>>());
        }

        #[test]
        fn long_lists_are_sorted_alike(
            keys in proptest::collection::vec(any::<i32>(), 0..2_000), scale in 0..3u32,
        ) {
            let scale = [1.0, 60_000.0, 1_048_576.0][usize::try_from(scale).expect("small")];
            check(&keys.iter().map(|key| f64::from(*key) * scale).collect::<Vec<_>>());
            check(&keys.iter().map(|key| f64::from(key % 10)).collect::<Vec<_>>());
        }
    }
}
