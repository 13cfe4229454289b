//! Sorting servers by a figure: the most expensive thing an allocation does.

use crate::slot_set::{SlotSet, slots_of};

/// Bits of a slot.
const SLOT_BITS: u32 = 24;
const SLOT: u64 = (1 << SLOT_BITS) - 1;
/// How far apart keys may be that fit a number with the slot beside them.
const RANGE: u64 = 1 << (u64::BITS - SLOT_BITS);
/// Most bits that one pass sorts by: its counters are to stay in the processor's first cache.
const DIGIT_BITS: u32 = 12;
/// Shorter lists are sorted by comparing.
const SHORT: usize = 512;

/// The slots in ascending order of their keys; equal ones (and whatever is not a number) keep
/// their order. `set` has the same slots.
pub(crate) fn stable_order(slots: &[u32], set: &SlotSet, key: impl Fn(u32) -> f64) -> Vec<u32> {
    by_digits(slots, set, &key, slot).unwrap_or_else(|| by_comparison(slots, key))
}

/// Slots in ascending order of their keys, which lie beside them: who wants some of them the other
/// way round need not read the keys again, which lie all over the memory.
#[derive(Debug)]
pub(crate) struct Sorted(Vec<u64>);

impl Sorted {
    /// As [`stable_order`]; `None` if the keys don't fit beside the slots, or if the list is short.
    pub(crate) fn of(slots: &[u32], set: &SlotSet, key: impl Fn(u32) -> f64) -> Option<Self> {
        by_digits(slots, set, &key, |item| item).map(Self)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|item| slot(*item))
    }

    /// Some of the slots, in descending order; equal ones keep theirs.
    pub(crate) fn descending(&self, of: &SlotSet) -> Vec<u32> {
        let mut items = vec![0; self.0.len() + 1];
        let mut end = 0;
        for item in &self.0 {
            // Without a branch, which a processor would have to guess.
            items[end] = *item;
            end += usize::from(of.has(slot(*item)));
        }
        let mut order = Vec::with_capacity(end);
        let is_equal = |a: &u64, b: &u64| a >> SLOT_BITS == b >> SLOT_BITS;
        for equal in items[..end].chunk_by(is_equal).rev() {
            order.extend(equal.iter().map(|item| slot(*item)));
        }
        order
    }
}

/// Sorts by the keys alone, a few bits of them in each pass, the lowest first. Megabytes, VMs and
/// times are whole numbers: how far each is above the least, and the slot beside it, are one item.
/// `None` if a key is no whole number or too far from others, or if there are few.
fn by_digits<T: Copy + Default>(
    slots: &[u32],
    set: &SlotSet,
    key: &impl Fn(u32) -> f64,
    value: impl Fn(u64) -> T,
) -> Option<Vec<T>> {
    if slots.len() <= SHORT {
        return None;
    }
    let (mut least, mut most, mut is_exact) = (i64::MAX, i64::MIN, true);
    for word in 0..set.words() {
        for slot in slots_of(word, set.word(word)) {
            let key = key(slot);
            let whole = whole(key);
            #[expect(clippy::cast_precision_loss, reason = "compared: equal only if exact")]
            let same = whole as f64 == key;
            is_exact &= same & (u64::from(slot) <= SLOT);
            (least, most) = (least.min(whole), most.max(whole));
        }
    }
    let span = most.abs_diff(least);
    if !is_exact || span >= RANGE {
        return None;
    }
    let above = |slot| whole(key(slot)).abs_diff(least);
    Some(match u32::try_from(span) {
        Ok(_) => Keys::<u32>::of(set, span, |slot| u32::try_from(above(slot)).unwrap_or(u32::MAX))
            .sorted(slots, value),
        Err(_) => Keys::<u64>::of(set, span, above).sorted(slots, value),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "compared with the key by whoever asks")]
fn whole(key: f64) -> i64 {
    key as i64
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

    /// How many values a digit has.
    fn values(self) -> usize {
        1 << self.width
    }

    fn get(self, key: u64, pass: u32) -> usize {
        usize::try_from(key >> (pass * self.width)).unwrap_or(0) & (self.values() - 1)
    }
}

/// Keys by slot. A snapshot has them in the order of slots, and is much larger: read in the order of
/// the list, each would be a wait for the memory.
struct Keys<K> {
    by_slot: Vec<K>,
    digits: Digits,
    /// How often there is each first digit.
    counts: Vec<u32>,
}

impl<K: Copy + Default + Into<u64>> Keys<K> {
    fn of(set: &SlotSet, most: u64, key: impl Fn(u32) -> K) -> Self {
        let digits = Digits::of(most);
        let mut by_slot = vec![K::default(); set.capacity()];
        let mut counts = vec![0; digits.values()];
        for word in 0..set.words() {
            for slot in slots_of(word, set.word(word)) {
                let key = key(slot);
                by_slot[slot as usize] = key;
                counts[digits.get(key.into(), 0)] += 1;
            }
        }
        Self { by_slot, digits, counts }
    }

    fn sorted<T: Copy + Default>(self, slots: &[u32], value: impl Fn(u64) -> T) -> Vec<T> {
        let Self { by_slot, digits, mut counts } = self;
        let item = |slot: &u32| by_slot[*slot as usize].into() << SLOT_BITS | u64::from(*slot);
        let digit = |item: u64, pass| digits.get(item >> SLOT_BITS, pass);
        if digits.passes < 2 {
            return scattered(slots.iter().map(item), &mut counts, |item| digit(item, 0), value);
        }
        let mut items = Vec::new();
        for pass in 0..digits.passes - 1 {
            let mut next = vec![0; digits.values()];
            let counted = |item| {
                next[digit(item, pass + 1)] += 1;
                item
            };
            items = if pass == 0 {
                let items = slots.iter().map(item);
                scattered(items, &mut counts, |item| digit(item, pass), counted)
            } else {
                scattered(items.into_iter(), &mut counts, |item| digit(item, pass), counted)
            };
            counts = next;
        }
        let last = digits.passes - 1;
        scattered(items.into_iter(), &mut counts, |item| digit(item, last), value)
    }
}

/// Values of the items in the order of their digits, of which there are so many each.
fn scattered<T: Copy + Default>(
    items: impl ExactSizeIterator<Item = u64>,
    counts: &mut [u32],
    digit: impl Fn(u64) -> usize,
    mut value: impl FnMut(u64) -> T,
) -> Vec<T> {
    let mut next = 0;
    for count in counts.iter_mut() {
        next += std::mem::replace(count, next);
    }
    let mut sorted = vec![T::default(); items.len()];
    for item in items {
        let place = &mut counts[digit(item)];
        sorted[*place as usize] = value(item);
        *place += 1;
    }
    sorted
}

fn slot(item: u64) -> u32 {
    u32::try_from(item & SLOT).unwrap_or(0)
}

fn by_comparison(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
    let mut sorted: Vec<(f64, u32)> = slots.iter().map(|slot| (key(*slot), *slot)).collect();
    // What is no number comes last; the reference leaves its place to the sorting algorithm.
    sorted
        .sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())));
    sorted.into_iter().map(|(_, slot)| slot).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_of(slots: &[u32]) -> SlotSet {
        SlotSet::of(slots, 2_048)
    }

    fn ordered(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
        stable_order(slots, &all_of(slots), key)
    }

    fn check(keys: &[f64]) {
        let slots: Vec<u32> = (0..).take(keys.len()).collect();
        let mut want = slots.clone();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        want.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        assert_eq!(ordered(&slots, key), want);
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
        let set = all_of(&slots);
        let sorted = Sorted::of(&slots, &set, |slot| -key(slot)).expect("whole numbers");
        let all = ordered(&slots, |slot| -key(slot));
        assert!(sorted.slots().eq(all.iter().copied()));
        let of_all: Vec<u32> = all.into_iter().filter(|slot| !slot.is_multiple_of(3)).collect();
        assert_eq!(sorted.descending(&all_of(&of_all)), ordered(&of_all, key));
        assert!(Sorted::of(&slots, &set, |slot| key(slot) / 7.0).is_none());
        assert!(Sorted::of(&slots[..500], &all_of(&slots[..500]), key).is_none());
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
