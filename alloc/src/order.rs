//! Sorting servers by a figure: the most expensive thing an allocation does.

/// Whole numbers below this are exact, and fit an integer with the place beside them.
const LIMIT: f64 = 549_755_813_888.0;
/// Bits of a place in the list.
const PLACE_BITS: u32 = 24;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// Bits that one pass sorts by.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Shorter lists are sorted by comparing.
const SHORT: usize = 512;

/// The slots in ascending order of their keys; equal ones (and whatever is not a number) keep
/// their order.
pub(crate) fn stable_order(slots: &[u32], key: impl Fn(u32) -> f64) -> Vec<u32> {
    let keys: Vec<f64> = slots.iter().map(|slot| key(*slot)).collect();
    let Some(packed) = pack(&keys) else { return by_comparison(slots, &keys) };
    let sorted = sort(packed);
    let place = |packed: u64| usize::try_from(packed & PLACE).unwrap_or(0);
    sorted.into_iter().map(|packed| slots[place(packed)]).collect()
}

/// Megabytes, VMs and times are whole numbers: what they are above the least, beside the place.
fn pack(keys: &[f64]) -> Option<Vec<u64>> {
    if keys.len() >= 1 << PLACE_BITS {
        return None;
    }
    let least = keys.iter().copied().fold(f64::INFINITY, f64::min);
    let one = |(key, place): (&f64, u64)| {
        let above = key - least;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked right after: an integer in 0..2^39"
        )]
        let whole = above as u64;
        #[expect(clippy::cast_precision_loss, reason = "below 2^39 it is exact")]
        let exact = whole as f64 == above && above < LIMIT && is_whole(*key);
        exact.then_some(whole << PLACE_BITS | place)
    };
    keys.iter().zip(0..).map(one).collect()
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

/// By the keys; the places in the lowest bits are in order already.
fn sort(mut packed: Vec<u64>) -> Vec<u64> {
    if packed.len() <= SHORT {
        packed.sort_unstable();
        return packed;
    }
    let bits = packed.iter().fold(0, |all, packed| all | packed >> PLACE_BITS);
    let mut other = vec![0; packed.len()];
    let mut shift = PLACE_BITS;
    while bits >> (shift - PLACE_BITS) != 0 {
        let digit = |packed: u64| usize::try_from(packed >> shift).unwrap_or(0) & (DIGITS - 1);
        let mut starts = [0_usize; DIGITS];
        for packed in &packed {
            starts[digit(*packed)] += 1;
        }
        let mut next = 0;
        for start in &mut starts {
            next += std::mem::replace(start, next);
        }
        for packed in &packed {
            let start = &mut starts[digit(*packed)];
            other[*start] = *packed;
            *start += 1;
        }
        std::mem::swap(&mut packed, &mut other);
        shift += DIGIT_BITS;
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
