//! Sorting servers by a figure: the most expensive thing an allocation does.

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
/// their order.
pub(crate) fn stable_order(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
    match Packed::of(slots, &key) {
        None => by_comparison(slots, key),
        Some(packed) => packed.sorted(slot),
    }
}

/// Megabytes, VMs and times are whole numbers: the last bits of each, and the slot beside them.
struct Packed {
    items: Vec<u64>,
    least: i64,
    most: i64,
    is_ascending: bool,
    is_descending: bool,
}

impl Packed {
    /// None if a key is no whole number, or too far from others.
    fn of(slots: &[u32], key: impl Fn(u32) -> f64) -> Option<Self> {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        let (mut is_exact, mut is_ascending, mut is_descending) = (true, true, true);
        let one = |(slot, key): (&u32, f64)| {
            #[expect(clippy::cast_possible_truncation, reason = "compared right after")]
            let whole = key as i64;
            #[expect(clippy::cast_precision_loss, reason = "compared: equal only if exact")]
            let same = whole as f64 == key;
            is_exact &= same && u64::from(*slot) <= SLOT;
            is_ascending &= most <= whole;
            is_descending &= whole <= least;
            (least, most) = (least.min(whole), most.max(whole));
            whole.cast_unsigned() << SLOT_BITS | u64::from(*slot)
        };
        // Keys lie all over the memory: a loop that does nothing else has many of them on the way.
        let keys: Vec<f64> = slots.iter().map(|slot| key(*slot)).collect();
        let items = slots.iter().zip(keys).map(one).collect();
        let fits = is_exact && (slots.is_empty() || most.abs_diff(least) < RANGE);
        fits.then_some(Self { items, least, most, is_ascending, is_descending })
    }

    /// By the keys alone, a few bits of them in each pass, the lowest first.
    fn sorted<T: Copy + Default>(self, value: impl Fn(u64) -> T) -> Vec<T> {
        let Self { mut items, least, most, is_ascending, is_descending } = self;
        if is_ascending {
            return items.into_iter().map(value).collect();
        }
        if is_descending {
            // What was sorted by the same figure before, the other way round.
            return reversed(&items, value);
        }
        let least_item = least.cast_unsigned() << SLOT_BITS;
        let above = |item: u64| item.wrapping_sub(least_item) >> SLOT_BITS;
        if items.len() <= SHORT {
            items.sort_by_key(|item| above(*item));
            return items.into_iter().map(value).collect();
        }
        let bits = u64::BITS - most.abs_diff(least).leading_zeros();
        let passes = bits.div_ceil(DIGIT_BITS);
        let width = bits.div_ceil(passes);
        let mask = (1 << width) - 1;
        let digit = |item, pass| usize::try_from(above(item) >> (pass * width)).unwrap_or(0) & mask;
        for pass in 0..passes - 1 {
            items = scattered(&items, mask + 1, |item| digit(item, pass), |item| item);
        }
        scattered(&items, mask + 1, |item| digit(item, passes - 1), value)
    }
}

/// Descending keys in ascending order, equal ones as they are.
fn reversed<T>(items: &[u64], value: impl Fn(u64) -> T) -> Vec<T> {
    let mut order = Vec::with_capacity(items.len());
    let is_equal = |a: &u64, b: &u64| a >> SLOT_BITS == b >> SLOT_BITS;
    for equal in items.chunk_by(is_equal).rev() {
        order.extend(equal.iter().map(|item| value(*item)));
    }
    order
}

/// Slots in ascending order of their keys, which lie beside them: who wants some of them the other
/// way round need not read the keys again, which lie all over the memory.
#[derive(Debug)]
pub(crate) struct Sorted(Vec<u64>);

impl Sorted {
    /// As [`stable_order`]; `None` if the keys don't fit beside the slots.
    pub(crate) fn of(slots: &[u32], key: impl Fn(u32) -> f64) -> Option<Self> {
        Some(Self(Packed::of(slots, &key)?.sorted(|item| item)))
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|item| slot(*item))
    }

    /// Some of the slots, in descending order; equal ones keep theirs.
    pub(crate) fn descending(&self, of: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut items = Vec::with_capacity(self.0.len());
        items.extend(self.0.iter().copied().filter(|item| of(slot(*item))));
        reversed(&items, slot)
    }
}

/// Values of the items in the order of their digits, which are below `digits`.
fn scattered<T: Copy + Default>(
    items: &[u64],
    digits: usize,
    digit: impl Fn(u64) -> usize,
    value: impl Fn(u64) -> T,
) -> Vec<T> {
    let mut starts = vec![0_u32; digits];
    for item in items {
        starts[digit(*item)] += 1;
    }
    let mut next = 0;
    for start in &mut starts {
        next += std::mem::replace(start, next);
    }
    let mut sorted = vec![T::default(); items.len()];
    for item in items {
        let start = &mut starts[digit(*item)];
        sorted[*start as usize] = value(*item);
        *start += 1;
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

    fn check(keys: &[f64]) {
        let slots: Vec<u32> = (0..).take(keys.len()).collect();
        let mut want = slots.clone();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        want.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        assert_eq!(stable_order(&slots, key), want);
    }

    #[test]
    fn what_is_no_number_comes_last() {
        let keys: Vec<f64> =
            (0..50_u8).map(|n| if n % 3 == 0 { f64::NAN } else { f64::from(n) }).rev().collect();
        let slots: Vec<u32> = (0..).take(keys.len()).collect();
        let key = |slot: u32| keys[usize::try_from(slot).expect("small")];
        let sorted = stable_order(&slots, key);
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
        let sorted = Sorted::of(&slots, |slot| -key(slot)).expect("whole numbers");
        let all = stable_order(&slots, |slot| -key(slot));
        assert!(sorted.slots().eq(all.iter().copied()));
        let some = |slot: u32| !slot.is_multiple_of(3);
        let of_all: Vec<u32> = all.into_iter().filter(|slot| some(*slot)).collect();
        assert_eq!(sorted.descending(some), stable_order(&of_all, key));
        assert!(Sorted::of(&slots, |slot| key(slot) / 7.0).is_none());
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
