//! A set of slots, one bit each: filters go through it in the order of slots, in which a snapshot
//! lies in memory.

/// Slots in a word.
pub(crate) const WORD: usize = 64;
/// Servers in a chunk: large enough that a snapshot is few pointers, small enough that copying one
/// takes about a microsecond.
pub(crate) const CHUNK: usize = 128;

/// Some slots of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotSet(Vec<u64>);

impl SlotSet {
    /// These slots, all below `capacity`.
    pub(crate) fn of(slots: &[u32], capacity: usize) -> Self {
        let mut set = Self::none(capacity);
        slots.iter().for_each(|slot| set.insert(*slot));
        set
    }

    /// The slots that a function says, word by word.
    pub(crate) fn by_word(words: usize, word: impl Fn(usize) -> u64) -> Self {
        Self((0..words).map(word).collect())
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.0[slot as usize / WORD] >> (slot as usize % WORD) & 1 != 0
    }

    /// None of the slots below `capacity`.
    pub(crate) fn none(capacity: usize) -> Self {
        Self(vec![0; capacity.div_ceil(WORD)])
    }

    pub(crate) fn insert(&mut self, slot: u32) {
        self.0[slot as usize / WORD] |= 1 << (slot as usize % WORD);
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.0[slot as usize / WORD] &= !(1 << (slot as usize % WORD));
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The slots, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(word, bits)| slots_of(word, *bits))
    }

    /// [`SlotSet::iter`] as a list.
    pub(crate) fn to_vec(&self) -> Vec<u32> {
        let (mut slots, mut end) = (vec![0; self.len()], 0);
        for (word, bits) in self.0.iter().enumerate() {
            for slot in slots_of(word, *bits) {
                slots[end] = slot;
                end += 1;
            }
        }
        slots
    }

    /// Those of a list that are in the set, which has no others, in the order of the list.
    pub(crate) fn of_list(&self, list: &[u32]) -> Vec<u32> {
        let len = self.len();
        let (mut slots, mut end) = (vec![0; len + 1], 0);
        for slot in list {
            // Without a branch, which a processor would have to guess.
            slots[end] = *slot;
            end += usize::from(self.has(*slot));
        }
        slots.truncate(len);
        slots
    }

    /// How many slots of the set are below a slot.
    pub(crate) fn ranks(&self) -> impl Fn(u32) -> usize {
        let mut below = 0;
        let before = |word: &u64| {
            below += word.count_ones() as usize;
            below - word.count_ones() as usize
        };
        let before: Vec<usize> = self.0.iter().map(before).collect();
        move |slot| {
            let (word, bit) = (slot as usize / WORD, slot as usize % WORD);
            before[word] + (self.0[word] & ((1 << bit) - 1)).count_ones() as usize
        }
    }

    /// Slots that the set can have.
    pub(crate) fn capacity(&self) -> usize {
        self.0.len() * WORD
    }

    /// How many words there are.
    pub(crate) fn words(&self) -> usize {
        self.0.len()
    }

    /// Which of the slots from `word * WORD` on are in the set, the first one in the lowest bit.
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.0[word]
    }
}

/// The slots of one word, in order.
pub(crate) fn slots_of(word: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    let first = u32::try_from(word * WORD).expect("a fleet has fewer than 2^32 servers");
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let slot = first + bits.trailing_zeros();
            bits &= bits - 1;
            slot
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in_and_not_removed() {
        let slots = [0, 1, 63, 64, 130, 191];
        let mut set = SlotSet::of(&slots, 192);
        set.remove(64);
        let all = (0..set.words()).flat_map(|word| slots_of(word, set.word(word)));
        assert_eq!(all.collect::<Vec<_>>(), [0, 1, 63, 130, 191]);
        assert!(set.has(63) && !set.has(64) && !set.has(65));
        set.insert(64);
        assert_eq!(set.of_list(&[130, 7, 64, 191, 63, 1, 0]), [130, 64, 191, 63, 1, 0]);
        assert!(slots.map(set.ranks()).into_iter().eq(0..slots.len()));
    }
}
