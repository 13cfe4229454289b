//! Sorting servers by a figure: the most expensive thing an allocation does.

/// Whole numbers below this are exact, and fit an integer with the slot beside them.
const LIMIT: f64 = 549_755_813_888.0;
/// Bits of a slot.
const SLOT_BITS: u32 = 24;
const SLOT: u64 = (1 << SLOT_BITS) - 1;
/// Most bits that one pass sorts by: its counters are to stay in the processor's first cache.
const DIGIT_BITS: u32 = 12;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Shorter lists are sorted by comparing.
const SHORT: usize = 512;

/// The slots in ascending order of their keys; equal ones (and whatever is not a number) keep
/// their order.
pub(crate) fn stable_order(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
    let keys: Vec<f64> = slots.iter().map(|slot| key(*slot)).collect();
    if keys.is_sorted() {
        return slots.to_vec();
    }
    // What was sorted by the same figure before, the other way round.
    if keys.is_sorted_by(|a, b| a >= b) {
        return reversed(slots, &keys);
    }
    let Some(packed) = pack(slots, &keys) else { return by_comparison(slots, &keys) };
    let slot = |packed: u64| u32::try_from(packed & SLOT).unwrap_or(0);
    sort(packed).into_iter().map(slot).collect()
}

/// Descending keys in ascending order.
fn reversed(slots: &[u32], keys: &[f64]) -> Vec<u32> {
    let mut order = Vec::with_capacity(slots.len());
    let mut end = slots.len();
    for equal in keys.chunk_by(|a, b| a == b).rev() {
        let start = end - equal.len();
        order.extend_from_slice(&slots[start..end]);
        end = start;
    }
    order
}

/// Megabytes, VMs and times are whole numbers: what they are above the least, beside the slot.
fn pack(slots: &[u32], keys: &[f64]) -> Option<Vec<u64>> {
    let least = keys.iter().copied().fold(f64::INFINITY, f64::min);
    let mut exact = true;
    let one = |(key, slot): (&f64, &u32)| {
        let above = key - least;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked right after: an integer in 0..2^39"
        )]
        let whole = above as i64 as u64;
        #[expect(clippy::cast_precision_loss, reason = "below 2^39 it is exact")]
        let same = whole as i64 as f64 == above;
        exact &= same && above < LIMIT && is_whole(*key) && u64::from(*slot) <= SLOT;
        whole << SLOT_BITS | u64::from(*slot)
    };
    let packed = keys.iter().zip(slots).map(one).collect();
    exact.then_some(packed)
}

/// A difference of two such is exact.
fn is_whole(key: f64) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "compared: equal only for integers"
    )]
    let same = (key as i64) as f64 == key;
    same && key.abs() < EXACT
}

/// By the keys alone.
fn sort(mut packed: Vec<u64>) -> Vec<u64> {
    if packed.len() <= SHORT {
        packed.sort_by_key(|packed| packed >> SLOT_BITS);
        return packed;
    }
    let all = packed.iter().fold(0, |all, packed| all | packed >> SLOT_BITS);
    let bits = u64::BITS - all.leading_zeros();
    let passes = bits.div_ceil(DIGIT_BITS);
    let mut other = vec![0; packed.len()];
    for pass in 0..passes {
        let width = bits.div_ceil(passes);
        let (shift, mask) = (SLOT_BITS + pass * width, (1_usize << width) - 1);
        let digit = |packed: u64| usize::try_from(packed >> shift).unwrap_or(0) & mask;
        let mut starts = [0_u32; DIGITS];
        for packed in &packed {
            starts[digit(*packed)] += 1;
        }
        let mut next = 0;
        for start in &mut starts[..=mask] {
            next += std::mem::replace(start, next);
        }
        for packed in &packed {
            let start = &mut starts[digit(*packed)];
            other[*start as usize] = *packed;
            *start += 1;
        }
        std::mem::swap(&mut packed, &mut other);
    }
    packed
}

fn by_comparison(slots: &[u32], keys: &[f64]) -> Vec<u32> {
    let mut sorted: Vec<(f64, u32)> = keys.iter().copied().zip(slots.iter().copied()).collect();
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
