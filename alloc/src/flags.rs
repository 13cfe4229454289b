//! The yes-or-no answers of a chunk's servers.

use crate::server::flag;
use crate::slot_set::{CHUNK, WORD};

/// By flag, one bit for each server: a filter asks one question of many servers, and reads the
/// answers of a word of them at once.
#[derive(Clone, Debug)]
pub(crate) struct Flags([[u64; CHUNK / WORD]; flag::COUNT]);

impl Flags {
    /// No server has any.
    pub(crate) const NONE: Self = Self([[0; CHUNK / WORD]; flag::COUNT]);

    /// Notes which flags the chunk's `i`-th server has.
    pub(crate) fn set(&mut self, i: usize, flags: u32) {
        for (n, words) in self.0.iter_mut().enumerate() {
            let (word, bit) = (&mut words[i / WORD], 1 << (i % WORD));
            *word = if flags >> n & 1 != 0 { *word | bit } else { *word & !bit };
        }
    }

    /// Whether the chunk's `i`-th server has the flag.
    pub(crate) fn has(&self, i: usize, bit: u32) -> bool {
        self.word(i / WORD, bit) >> (i % WORD) & 1 != 0
    }

    /// Which servers of a word of the chunk have the flag, the first one in the lowest bit.
    pub(crate) fn word(&self, word: usize, bit: u32) -> u64 {
        self.0[bit.trailing_zeros() as usize][word]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_the_flags_that_were_set_last() {
        let mut flags = Flags::NONE;
        flags.set(0, flag::SETUP);
        flags.set(CHUNK - 1, flag::SETUP | flag::CONTAINERS);
        flags.set(0, flag::CONTAINERS);
        assert!(!flags.has(0, flag::SETUP) && flags.has(0, flag::CONTAINERS));
        assert!(flags.has(CHUNK - 1, flag::SETUP) && flags.has(CHUNK - 1, flag::CONTAINERS));
        assert_eq!(flags.word(0, flag::CONTAINERS), 1);
        assert_eq!(flags.word(CHUNK / WORD - 1, flag::SETUP), 1 << (WORD - 1));
    }
}
