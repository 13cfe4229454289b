//! Servers in the order of a value, kept ready: sorting would be the most expensive thing that an
//! allocation does.

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
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        let parts = self.parts.iter().zip(self.goes_on());
        parts.flat_map(|(part, goes_on)| part.values[usize::from(goes_on)..].iter().copied())
    }

    /// For each part, whether its first value is the last one of the part before it, too.
    fn goes_on(&self) -> impl Iterator<Item = bool> {
        let last = |part: &Arc<Part>| part.values.last().copied();
        let before = [None].into_iter().chain(self.parts.iter().map(last));
        self.parts.iter().zip(before).map(|(part, last)| part.values.first().copied() == last)
    }

    /// The level of each server, for slots below `capacity`.
    pub(crate) fn levels(&self, capacity: usize) -> Levels {
        let (mut firsts, mut count) = (Vec::new(), 0);
        for (part, goes_on) in self.parts.iter().zip(self.goes_on()) {
            let first = count - u32::from(goes_on);
            firsts.push(first);
            count = first + number(part.values.len());
        }
        let mut of = vec![count; capacity];
        for (part, first) in self.parts.iter().zip(&firsts) {
            for (slot, level) in part.slots.iter().zip(&part.levels) {
                of[*slot as usize] = first + u32::from(*level);
            }
        }
        Levels { of, firsts, count: count as usize }
    }

    /// For each of these servers, its place once they are sorted; equal ones keep their order, and
    /// those without a value come last. The set has the same servers, the levels are this order's.
    pub(crate) fn ranks(
        &self,
        levels: &Levels,
        slots: &[u32],
        set: &SlotSet,
        most_first: bool,
    ) -> Vec<u32> {
        let mut next = self.starts(levels, set);
        if most_first {
            let known = next[levels.count];
            for level in 0..levels.count {
                next[level] = known - next[level + 1];
            }
        }
        let rank = |slot: &u32| {
            let next = &mut next[levels.of(*slot)];
            *next += 1;
            *next - 1
        };
        slots.iter().map(rank).collect()
    }

    /// By level: how many servers of a set have a lower one. Without a branch or a look at what is not
    /// next in memory.
    fn starts(&self, levels: &Levels, set: &SlotSet) -> Vec<u32> {
        let (mut starts, mut count) = (vec![0; levels.count + 1], 0);
        for (part, first) in self.parts.iter().zip(&levels.firsts) {
            let after = &mut starts[*first as usize + 1..];
            for (slot, level) in part.slots.iter().zip(&part.levels) {
                count += u32::from(set.has(*slot));
                after[usize::from(*level)] = count;
            }
        }
        starts
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

/// By slot: how many distinct values are less than the server's. Those without a value come after all
/// others.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    of: Vec<u32>,
    /// Of each part's first server.
    firsts: Vec<u32>,
    /// How many there are.
    count: usize,
}

impl Levels {
    pub(crate) fn of(&self, slot: u32) -> usize {
        self.of[slot as usize] as usize
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
