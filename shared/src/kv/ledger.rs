//! What a map writes about itself with every group of commits, so that it knows when records are
//! missing that it acknowledged.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of an encoded ledger.
const BYTES: usize = 32;

/// The checksum of a record. It covers the key too: a value found under another key is damage.
pub(super) fn checksum(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

/// The state of a map after a group, stored in the same atomic write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Groups written since the map was made.
    pub(super) groups: u64,
    /// Records there are.
    pub(super) records: u64,
    /// Sum of their checksums, modulo 2^64: the same in whatever order they are added.
    pub(super) sum: u64,
}

impl Ledger {
    /// Counts a record that replaced another; both are checksums, `None` if there was or is none.
    pub(super) fn replace(&mut self, old: Option<u64>, new: Option<u64>) {
        if let Some(old) = old {
            self.records = self.records.wrapping_sub(1);
            self.sum = self.sum.wrapping_sub(old);
        }
        if let Some(new) = new {
            self.records = self.records.wrapping_add(1);
            self.sum = self.sum.wrapping_add(new);
        }
    }

    pub(super) fn encode(self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        for (slot, number) in out.chunks_mut(8).zip([self.groups, self.records, self.sum]) {
            slot.copy_from_slice(&number.to_be_bytes());
        }
        let own = xxh3_64(&out[..BYTES - 8]);
        out[BYTES - 8..].copy_from_slice(&own.to_be_bytes());
        out
    }

    /// `None`: not what [`Self::encode`] wrote.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut numbers = bytes.chunks(8).filter_map(|chunk| chunk.try_into().ok());
        let mut next = || numbers.next().map(u64::from_be_bytes);
        let (groups, records, sum, own) = (next()?, next()?, next()?, next()?);
        (own == xxh3_64(&bytes[..BYTES - 8])).then_some(Self { groups, records, sum })
    }

    /// What is wrong when a map says `self`, its records are `found`, and group `acknowledged` was
    /// acknowledged.
    pub(super) fn shortfall(&self, found: &Self, acknowledged: Option<u64>) -> Option<String> {
        if let Some(last) = acknowledged.filter(|last| *last > self.groups) {
            Some(format!("it ends at group {} of {last}", self.groups))
        } else if self.records != found.records {
            Some(format!("{} records are there of {}", found.records, self.records))
        } else if self.sum != found.sum {
            Some("the records are not those that were written last".to_owned())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_survives_its_encoding_and_no_flipped_bit() {
        let ledger = Ledger { groups: 7, records: 3, sum: u64::MAX };
        let bytes = ledger.encode();
        assert_eq!(Ledger::decode(&bytes), Some(ledger));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Ledger::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(Ledger::decode(&bytes[1..]), None);
    }

    #[test]
    fn the_order_of_changes_does_not_matter() {
        let (a, b) = (checksum(b"a", b"1"), checksum(b"b", b"1"));
        assert_ne!(a, b);
        let mut first = Ledger::default();
        first.replace(None, Some(a));
        first.replace(None, Some(b));
        let mut second = Ledger::default();
        second.replace(None, Some(b));
        second.replace(Some(b), Some(a));
        assert_eq!(first.shortfall(&second, None), Some("1 records are there of 2".to_owned()));
        second.replace(None, Some(b));
        assert_eq!(first.shortfall(&second, None), None);
        assert_eq!(first.shortfall(&second, Some(0)), None);
        assert_eq!(first.shortfall(&second, Some(1)), Some("it ends at group 0 of 1".to_owned()));
    }
}
