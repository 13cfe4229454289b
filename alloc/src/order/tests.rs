use proptest::prelude::*;

use super::*;
use crate::sorting::places_by;

const SLOTS: u32 = 9_000;

/// Values by slot, and the order that came of giving them one after the other.
fn order_of(values: &[f64]) -> Order {
    let mut order = Order::default();
    for (slot, value) in (0..).zip(values) {
        order.change(slot, f64::NAN, *value);
    }
    order
}

fn check(order: &Order, values: &[f64]) {
    let mut known: Vec<(f64, u32)> = values
        .iter()
        .map(|value| value + 0.0)
        .zip(0..)
        .filter(|(value, _)| !value.is_nan())
        .collect();
    known.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    let entries: Vec<(f64, u32)> = order.parts.iter().flat_map(|part| part.entries()).collect();
    assert_eq!(entries, known);
    assert_eq!(order.len(), known.len());
    for part in order.parts.iter() {
        assert!((1..=PART).contains(&part.slots.len()), "{} of {PART}", part.slots.len());
        assert!(part.values.is_sorted_by(|a, b| a < b) && part.levels.is_sorted());
        assert_eq!(usize::from(part.levels[part.levels.len() - 1]) + 1, part.values.len());
    }
}

/// Ranks by levels against the places that comparing gives.
fn ranks_are_places(order: &Order, values: &[f64], list: &[u32]) {
    let capacity = values.len().div_ceil(64) * 64;
    let set = SlotSet::of(list, capacity);
    for most_first in [false, true] {
        let key =
            |slot: u32| if most_first { -values[slot as usize] } else { values[slot as usize] };
        let ranks = order.ranks(list, &set, most_first);
        let places = places_by(list, |slot| key(*slot));
        assert!(places.map(|place| ranks[place]).eq((0..).take(list.len())), "{most_first}");
        let sorted = order.sorted(list.iter().map(|slot| (*slot, slot + 1)), &set, most_first);
        assert!(places_by(list, |slot| key(*slot)).map(|place| list[place] + 1).eq(sorted));
    }
    let some = || list.iter().map(|slot| values[*slot as usize]).filter(|value| !value.is_nan());
    let span = some().reduce(f64::min).zip(some().reduce(f64::max));
    assert_eq!(order.span(&set), span);
}

#[test]
fn what_is_no_number_comes_last() {
    let values: Vec<f64> =
        (0..50_u8).map(|n| if n % 3 == 0 { f64::NAN } else { f64::from(n % 7) }).collect();
    let list: Vec<u32> = (0..50).rev().collect();
    ranks_are_places(&order_of(&values), &values, &list);
}

#[test]
fn the_zeros_are_one_value() {
    let values = [0.0, -0.0, 1.0, -0.0, -1.0];
    let mut order = order_of(&values);
    check(&order, &values);
    ranks_are_places(&order, &values, &[3, 0, 2, 1, 4]);
    order.change(1, -0.0, 0.0);
    order.change(1, 0.0, f64::NAN);
    check(&order, &[0.0, f64::NAN, 1.0, 0.0, -1.0]);
}

#[test]
fn there_may_be_as_many_values_as_servers() {
    // As many as fit in two bytes, and one more.
    for count in [65_535_u32, 65_536] {
        let values: Vec<f64> =
            (0..count).map(|slot| f64::from(slot.wrapping_mul(40_503))).collect();
        let list: Vec<u32> = (0..count).rev().collect();
        ranks_are_places(&order_of(&values), &values, &list);
    }
}

#[test]
fn a_snapshot_keeps_its_order() {
    let values: Vec<f64> = (0..SLOTS).map(|slot| f64::from(slot * 7 % 1_000)).collect();
    let mut order = order_of(&values);
    let before = order.clone();
    for slot in 0..SLOTS {
        order.change(slot, values[slot as usize], 5.0);
    }
    check(&before, &values);
    check(&order, &vec![5.0; values.len()]);
    assert!(
        order.below(|value| value >= 5.0).next().is_none()
            && order.below(|value| value > 5.0).eq(0..SLOTS)
    );
    // Parts that were emptied are gone.
    for slot in 10..SLOTS {
        order.change(slot, 5.0, f64::NAN);
    }
    assert_eq!((order.len(), order.parts.len()), (10, 1));
}

proptest! {
    #[test]
    fn an_order_is_what_sorting_gives(
        first in prop::collection::vec(-40..40_i32, 1..6_000),
        changes in prop::collection::vec((any::<prop::sample::Index>(), -40..44_i32), 0..6_000),
        scale in 0..3_usize, kept in any::<u64>(),
    ) {
        // Few distinct values or many; above 40 stands for none.
        let value = |n: i32, salt: usize| match (n, scale) {
            (41.., _) => f64::NAN,
            (n, 0) => f64::from(n / 10),
            (n, 1) => f64::from(n) / 3.0,
            (n, _) => f64::from(n) * 1e6 + f64::from(u16::try_from(salt % 9_999).expect("small")),
        };
        let mut values: Vec<f64> =
            first.iter().enumerate().map(|(salt, n)| value(*n, salt * 37)).collect();
        let mut order = order_of(&values);
        for (salt, (slot, n)) in changes.iter().enumerate() {
            let (slot, after) = (slot.index(values.len()), value(*n, salt * 53));
            let before = std::mem::replace(&mut values[slot], after);
            order.change(u32::try_from(slot).expect("small"), before, after);
        }
        check(&order, &values);
        let mut list: Vec<u32> = (0..).take(values.len()).filter(|slot| kept >> (slot % 64) & 1 != 0).collect();
        list.sort_by_key(|slot| slot.wrapping_mul(2_654_435_761));
        ranks_are_places(&order, &values, &list);
        for bound in [-1e9, -3.0, 0.5, 1e9] {
            let mut below: Vec<u32> = order.below(|value| value >= bound).collect();
            below.sort_unstable();
            let want = (0..).zip(&values).filter(|(_, value)| **value < bound).map(|(slot, _)| slot);
            prop_assert!(below.into_iter().eq(want));
        }
    }
}
