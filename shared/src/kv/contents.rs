//! All that a map holds, in figures.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Kv, KvError};

/// Records read at a time.
const STEP: usize = 256;
/// Damages that are named in a report; more are only counted.
const NAMED: usize = 1_000;

/// What a map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// How many records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// SHA-256 over all keys and values in the order of the keys, each after its length (four
    /// bytes, big-endian), in hexadecimal.
    pub digest: String,
}

impl Contents {
    /// Reads all of an open map.
    ///
    /// # Errors
    /// See [`Kv::scan`].
    pub async fn of(kv: &dyn Kv) -> Result<Self, KvError> {
        let mut sum = Sum::default();
        let mut after: Option<Bytes> = None;
        loop {
            let entries = kv.scan(b"", after.as_deref(), STEP).await?;
            for (key, value) in &entries {
                sum.add(key, value);
            }
            if entries.len() < STEP {
                return Ok(sum.finish());
            }
            after = entries.into_iter().next_back().map(|(key, _)| key);
        }
    }
}

/// [`Contents`] while they are read.
#[derive(Default)]
pub(super) struct Sum {
    records: u64,
    bytes: u64,
    hash: Sha256,
}

impl Sum {
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        for part in [key, value] {
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            self.bytes += u64::from(length);
            self.hash.update(length.to_be_bytes());
            self.hash.update(part);
        }
    }

    pub(super) fn finish(self) -> Contents {
        let digest = hex::encode(self.hash.finalize());
        Contents { records: self.records, bytes: self.bytes, digest }
    }
}

/// What a check of a map found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The records that are sound.
    pub contents: Contents,
    /// What is wrong, at most 1,000 of it; nothing for a sound map.
    pub damages: Vec<String>,
}

impl Report {
    pub(super) fn new(sum: Sum, mut damages: Vec<String>) -> Self {
        damages.truncate(NAMED);
        Self { contents: sum.finish(), damages }
    }
}
