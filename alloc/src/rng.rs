//! The allocator's own generator. A decision is replayed from its seed years later, so the
//! sequence must not depend on the version of a crate.

/// SplitMix64: every seed is a good one, and a shuffle needs no more.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; 0 for an empty range.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        // The bias of multiply-shift is below n/2^64.
        let wide = (u128::from(self.next()) * n as u128) >> 64;
        usize::try_from(wide).unwrap_or(0)
    }

    /// Fisher-Yates.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed_for_ever() {
        let mut items: Vec<u32> = (0..10).collect();
        Rng::new(42).shuffle(&mut items);
        let mut again: Vec<u32> = (0..10).collect();
        Rng::new(42).shuffle(&mut again);
        assert_eq!(items, again);
        assert_eq!(Rng::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }
}
