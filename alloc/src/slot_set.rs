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
        let mut words = vec![0_u64; capacity.div_ceil(WORD)];
        for slot in slots {
            words[*slot as usize / WORD] |= 1 << (*slot as usize % WORD);
        }
        Self(words)
    }

    /// The slots that a function says, word by word.
    pub(crate) fn by_word(words: usize, word: impl Fn(usize) -> u64) -> Self {
        Self((0..words).map(word).collect())
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.0[slot as usize / WORD] >> (slot as usize % WORD) & 1 != 0
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
    }
}
