//! Servers in the order of a value, kept ready: sorting would be the most expensive thing that an
//! allocation does.

use std::fmt::Debug;
use std::ops::Add;
use std::sync::Arc;

use crate::slot_set::SlotSet;

/// Most servers of a part: few enough that a snapshot that is kept holds some kilobytes more, many enough
/// that going through all is not a wait for the memory at each part.
const PART: usize = 512;

/// What servers are kept in order of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SortKey {
    /// Percent of a core left.
    Cpu,
    /// MiB of memory left.
    Ram,
    /// MiB of the pool left.
    Disk,
    /// When a planned reboot is, ms since 1970.
    NextReboot,
    /// When the platform that it runs was built, ms since 1970.
    Platform,
}

impl SortKey {
    /// How many there are.
    pub(crate) const COUNT: usize = 5;
}

/// Servers by value, the least first; equal ones by slot. A server whose value is no number is not
/// among them. A change copies the part concerned if a snapshot has it, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    parts: Arc<Vec<Arc<Part>>>,
    len: usize,
}

impl Order {
    /// How many servers have a value.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Notes that a server's value changed; NaN stands for none.
    pub(crate) fn change(&mut self, slot: u32, before: f64, after: f64) {
        if before == after || before.is_nan() && after.is_nan() {
            return;
        }
        if !before.is_nan() {
            self.remove(positive_zero(before), slot);
        }
        if !after.is_nan() {
            self.insert(positive_zero(after), slot);
        }
    }

    /// The part that has the entry, or in which it belongs.
    fn part_of(&self, value: f64, slot: u32) -> usize {
        let found = self.parts.partition_point(|part| part.ends_before(value, slot));
        found.min(self.parts.len().saturating_sub(1))
    }

    fn insert(&mut self, value: f64, slot: u32) {
        let at = self.part_of(value, slot);
        let parts = Arc::make_mut(&mut self.parts);
        self.len += 1;
        let Some(part) = parts.get_mut(at) else {
            return parts.push(Arc::new(Part::of([(value, slot)])));
        };
        let part = Arc::make_mut(part);
        part.insert(value, slot);
        if part.slots.len() > PART {
            let (lower, upper) =
                (Part::of(part.entries().take(PART / 2)), Part::of(part.entries().skip(PART / 2)));
            *part = lower;
            parts.insert(at + 1, Arc::new(upper));
        }
    }

    fn remove(&mut self, value: f64, slot: u32) {
        let at = self.part_of(value, slot);
        let parts = Arc::make_mut(&mut self.parts);
        let part = parts.get_mut(at).expect("what has a value is in a part");
        Arc::make_mut(part).remove(value, slot);
        self.len -= 1;
        let left = part.slots.len();
        if left == 0 {
            parts.remove(at);
        } else if parts.get(at + 1).is_some_and(|next| left + next.slots.len() <= PART / 2) {
            // Parts that only ever got smaller would become as many as there are servers.
            let next = parts.remove(at + 1);
            parts[at] = Arc::new(Part::of(parts[at].entries().chain(next.entries())));
        }
    }

    /// The servers whose value is not enough, the least first. `is_enough` holds from some value on.
    pub(crate) fn below(&self, is_enough: impl Fn(f64) -> bool) -> impl Iterator<Item = u32> {
        let entries = self.parts.iter().flat_map(|part| part.entries());
        entries.take_while(move |(value, _)| !is_enough(*value)).map(|(_, slot)| slot)
    }

    /// The least and the greatest value of some servers, if any has one.
    pub(crate) fn span(&self, of: &SlotSet) -> Option<(f64, f64)> {
        let is_one = |(_, slot): &(f64, u32)| of.has(*slot);
        let (least, _) = self.parts.iter().flat_map(|part| part.entries()).find(is_one)?;
        let mut greatest_first = self.parts.iter().rev().flat_map(|part| part.entries().rev());
        Some((least, greatest_first.find(is_one)?.0))
    }

    /// The distinct values, the least first.
    fn values(&self) -> impl Iterator<Item = f64> {
        let parts = self.parts.iter().zip(self.goes_on());
        parts.flat_map(|(part, goes_on)| part.values[usize::from(goes_on)..].iter().copied())
    }

    /// For each part, whether its first value is the last one of the part before it, too.
    fn goes_on(&self) -> impl Iterator<Item = bool> {
        let last = |part: &Arc<Part>| part.values.last().copied();
        let before = [None].into_iter().chain(self.parts.iter().map(last));
        self.parts.iter().zip(before).map(|(part, last)| part.values.first().copied() == last)
    }

    /// For each of these servers, its place once they are sorted; equal ones keep their order, and
    /// those without a value come last. The set has the same servers.
    pub(crate) fn ranks(&self, slots: &[u32], set: &SlotSet, most_first: bool) -> Vec<u32> {
        let slots = slots.iter().copied();
        // Lists are in any order, so each look is a wait for the memory unless all levels are in the
        // processor's second cache.
        if Levels::<u16>::fit(self) {
            slots.map(Levels::<u16>::ranks(self, set, most_first)).collect()
        } else {
            slots.map(Levels::<u32>::ranks(self, set, most_first)).collect()
        }
    }

    /// Servers and what stands for each: the latter, at the place that [`Order::ranks`] says. The set has
    /// the same servers.
    pub(crate) fn sorted(
        &self,
        items: impl Iterator<Item = (u32, u32)>,
        set: &SlotSet,
        most_first: bool,
    ) -> Vec<u32> {
        if Levels::<u16>::fit(self) {
            by_rank(items, set.len(), Levels::<u16>::ranks(self, set, most_first))
        } else {
            by_rank(items, set.len(), Levels::<u32>::ranks(self, set, most_first))
        }
    }

    /// What follows from the value of each of these servers, or from NaN if it has none; all are in slots
    /// below `capacity`.
    pub(crate) fn map(&self, slots: &[u32], capacity: usize, f: impl Fn(f64) -> f64) -> Vec<f64> {
        let by_level: Vec<f64> = self.values().chain([f64::NAN]).map(f).collect();
        let slots = slots.iter().copied();
        if Levels::<u16>::fit(self) {
            let levels = Levels::<u16>::of(self, capacity, |_, _| ());
            slots.map(|slot| by_level[levels.level(slot)]).collect()
        } else {
            let levels = Levels::<u32>::of(self, capacity, |_, _| ());
            slots.map(|slot| by_level[levels.level(slot)]).collect()
        }
    }
}

fn by_rank(
    items: impl Iterator<Item = (u32, u32)>,
    len: usize,
    mut rank: impl FnMut(u32) -> u32,
) -> Vec<u32> {
    let mut sorted = vec![0; len];
    items.for_each(|(slot, item)| sorted[rank(slot) as usize] = item);
    sorted
}

/// By slot: how many distinct values are less than the server's. Those without a value come after all
/// others.
struct Levels<N>(Vec<N>);

impl<N> Levels<N>
where
    N: Copy + From<u16> + TryFrom<u32, Error: Debug> + Into<u32> + Add<Output = N>,
{
    /// Whether there are few enough values.
    fn fit(order: &Order) -> bool {
        N::try_from(number(order.values().count())).is_ok()
    }

    /// Of all servers, in slots below `capacity`; `note` is told the level and the slot of each, the least
    /// level first.
    fn of(order: &Order, capacity: usize, mut note: impl FnMut(usize, u32)) -> Self {
        let narrow = |level: u32| N::try_from(level).expect("there are few enough");
        let mut by_slot = vec![narrow(number(order.values().count())); capacity];
        let mut end = 0;
        for (part, goes_on) in order.parts.iter().zip(order.goes_on()) {
            let first = end - u32::from(goes_on);
            end = first + number(part.values.len());
            let (start, first) = (first as usize, narrow(first));
            for (slot, level) in part.slots.iter().zip(&part.levels) {
                by_slot[*slot as usize] = first + N::from(*level);
                note(start + usize::from(*level), *slot);
            }
        }
        Self(by_slot)
    }

    fn level(&self, slot: u32) -> usize {
        self.0[slot as usize].into() as usize
    }

    /// The ranks of the set's servers, each asked for once, in their order.
    fn ranks(order: &Order, set: &SlotSet, most_first: bool) -> impl FnMut(u32) -> u32 {
        // By level: how many servers of the set have a lower one; then, how many have a value.
        let mut next = vec![0; order.values().count() + 1];
        let (mut count, after) = (0, &mut next[1..]);
        let levels = Self::of(order, set.capacity(), |level, slot| {
            // Without a branch, which a processor would have to guess.
            count += u32::from(set.has(slot));
            after[level] = count;
        });
        if most_first {
            let values = next.len() - 1;
            for level in 0..values {
                next[level] = count - next[level + 1];
            }
        }
        move |slot| {
            let next = &mut next[levels.level(slot)];
            *next += 1;
            *next - 1
        }
    }
}

/// Some servers that follow each other.
#[derive(Clone, Debug)]
struct Part {
    slots: Vec<u32>,
    /// By place in `slots`: which one of `values` the server has.
    levels: Vec<u16>,
    /// Ascending, no two equal, none without a server.
    values: Vec<f64>,
}

impl Part {
    /// Entries in order.
    fn of(entries: impl IntoIterator<Item = (f64, u32)>) -> Self {
        let mut part = Self { slots: Vec::new(), levels: Vec::new(), values: Vec::new() };
        for (value, slot) in entries {
            if part.values.last() != Some(&value) {
                part.values.push(value);
            }
            part.slots.push(slot);
            part.levels.push(level(part.values.len() - 1));
        }
        part
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = (f64, u32)> {
        let values = self.levels.iter().map(|level| self.values[usize::from(*level)]);
        values.zip(self.slots.iter().copied())
    }

    fn ends_before(&self, value: f64, slot: u32) -> bool {
        let last = self.values.last().zip(self.slots.last());
        last.is_some_and(|(last, last_slot)| (*last, *last_slot) < (value, slot))
    }

    /// Where the value is, or belongs, in `values`, and the slot in `slots`.
    fn find(&self, value: f64, slot: u32) -> (Result<usize, usize>, usize) {
        let found = self.values.binary_search_by(|known| known.total_cmp(&value));
        let at = level(found.unwrap_or_else(|at| at));
        let first = self.levels.partition_point(|level| *level < at);
        let equal = self.levels[first..].partition_point(|level| found.is_ok() && *level == at);
        (found, first + self.slots[first..first + equal].partition_point(|known| *known < slot))
    }

    fn insert(&mut self, value: f64, slot: u32) {
        let (found, place) = self.find(value, slot);
        // Room for one, not for as many again: snapshots keep parts.
        self.slots.reserve_exact(1);
        self.levels.reserve_exact(1);
        let at = found.unwrap_or_else(|at| {
            self.values.reserve_exact(1);
            self.values.insert(at, value);
            self.levels[place..].iter_mut().for_each(|level| *level += 1);
            at
        });
        self.slots.insert(place, slot);
        self.levels.insert(place, level(at));
    }

    fn remove(&mut self, value: f64, slot: u32) {
        let (_, place) = self.find(value, slot);
        let removed = self.slots.remove(place);
        debug_assert_eq!(removed, slot, "it has another value than it was said to have");
        let gone = self.levels.remove(place);
        let is_last =
            |place: Option<usize>| place.and_then(|place| self.levels.get(place)) != Some(&gone);
        if is_last(Some(place)) && is_last(place.checked_sub(1)) {
            self.values.remove(usize::from(gone));
            self.levels[place..].iter_mut().for_each(|level| *level -= 1);
        }
    }
}

/// Two zeros are one value.
fn positive_zero(value: f64) -> f64 {
    value + 0.0
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a fleet has fewer than 2^32 servers")
}

fn level(place: usize) -> u16 {
    u16::try_from(place).expect("a part is small")
}

#[cfg(test)]
mod tests;
