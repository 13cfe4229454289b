//! Which flags the servers of a decision have in common.

use crate::server::flag;
use crate::slot_set::SlotSet;
use crate::snapshot::Snapshot;

/// Flags of many servers together: most filters find nothing to remove, and need not look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bits {
    all: u32,
    any: u32,
}

impl Default for Bits {
    /// Nothing is known.
    fn default() -> Self {
        Self { all: 0, any: u32::MAX }
    }
}

impl Bits {
    pub(crate) fn of(snapshot: &Snapshot, slots: &SlotSet) -> Self {
        let mut bits = Self { all: u32::MAX, any: 0 };
        for word in 0..slots.words() {
            let slots = slots.word(word);
            for bit in (0..flag::COUNT).map(|n| 1 << n) {
                let flagged = snapshot.flagged(word, bit);
                bits.any |= if slots & flagged != 0 { bit } else { 0 };
                bits.all &= if slots & !flagged != 0 { !bit } else { u32::MAX };
            }
        }
        bits
    }

    /// Whether every server has the flag, or none: then a filter for it keeps all of them.
    pub(crate) fn agree(self, bit: u32, wanted: bool) -> bool {
        if wanted { self.all & bit != 0 } else { self.any & bit == 0 }
    }
}
