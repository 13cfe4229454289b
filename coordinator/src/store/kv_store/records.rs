//! How records, leases and the store's own state lie in the map.
//!
//! | map key | value |
//! | --- | --- |
//! | `m/state` | format, epoch, counter, last lease (8 bytes each, big-endian) |
//! | `r/<key>` | epoch, counter, lease or 0 (8 bytes each), then the value |
//! | `l/<lease>` | ttl, ms (8 bytes) |
//! | `k/<lease><key>` | nothing: the record `key` is bound to the lease |

use bytes::{BufMut as _, Bytes, BytesMut};
use muster_shared::kv::{Change, Kv};

use super::super::{LeaseId, Record, Revision, StoreError};
use super::unavailable;

/// Where records are.
pub(super) const RECORDS: &[u8] = b"r/";
const STATE_KEY: &[u8] = b"m/state";
/// Version of the layout above.
const FORMAT: u64 = 1;
const RECORD_HEADER_BYTES: usize = 24;
/// Where leases are listed.
pub(super) const LEASES: &[u8] = b"l/";
/// Where the records of leases are listed.
pub(super) const LEASED_KEYS: &[u8] = b"k/";

/// The data is not this store's.
#[derive(Clone, Debug, thiserror::Error)]
enum FormatError {
    #[error("the entry {key} is damaged")]
    Damaged { key: String },
    #[error("the data has format {found}, this version reads format {FORMAT}")]
    Version { found: u64 },
}

fn damaged(key: &[u8]) -> StoreError {
    unavailable("read", FormatError::Damaged { key: key.escape_ascii().to_string() })
}

/// What the store must remember besides its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// The last commit.
    pub(super) revision: Revision,
    /// The last lease granted.
    pub(super) last_lease: u64,
}

impl Default for Meta {
    fn default() -> Self {
        Self { revision: Revision { epoch: 1, counter: 0 }, last_lease: 0 }
    }
}

impl Meta {
    pub(super) async fn load(kv: &dyn Kv) -> Result<Option<Self>, StoreError> {
        let raw = kv.get(STATE_KEY).await.map_err(|e| unavailable("read", e))?;
        let Some(raw) = raw else { return Ok(None) };
        let mut numbers = raw
            .chunks_exact(8)
            .map(|chunk| u64::from_be_bytes(chunk.try_into().expect("chunks_exact gives 8 bytes")));
        let mut next = || numbers.next().ok_or_else(|| damaged(STATE_KEY));
        let found = next()?;
        if found != FORMAT {
            return Err(unavailable("read", FormatError::Version { found }));
        }
        let revision = Revision { epoch: next()?, counter: next()? };
        Ok(Some(Self { revision, last_lease: next()? }))
    }

    pub(super) fn change(&self) -> Change {
        let mut value = BytesMut::with_capacity(32);
        for number in [FORMAT, self.revision.epoch, self.revision.counter, self.last_lease] {
            value.put_u64(number);
        }
        Change::Put(Bytes::from_static(STATE_KEY), value.freeze())
    }
}

pub(super) fn record_key(key: &str) -> Vec<u8> {
    [RECORDS, key.as_bytes()].concat()
}

/// The record's key in a map key.
pub(super) fn key_text(raw: &[u8]) -> Result<String, StoreError> {
    let text = raw.strip_prefix(RECORDS).and_then(|key| std::str::from_utf8(key).ok());
    text.map(str::to_owned).ok_or_else(|| damaged(raw))
}

pub(super) fn encode(revision: Revision, lease: Option<LeaseId>, value: &[u8]) -> Bytes {
    let mut raw = BytesMut::with_capacity(RECORD_HEADER_BYTES + value.len());
    raw.put_u64(revision.epoch);
    raw.put_u64(revision.counter);
    raw.put_u64(lease.map_or(0, |lease| lease.0));
    raw.put_slice(value);
    raw.freeze()
}

pub(super) fn decode(key: String, raw: &Bytes) -> Result<(Record, Option<LeaseId>), StoreError> {
    if raw.len() < RECORD_HEADER_BYTES {
        return Err(damaged(key.as_bytes()));
    }
    let number = |at: usize| {
        u64::from_be_bytes(raw[at..at + 8].try_into().expect("the length was checked above"))
    };
    let revision = Revision { epoch: number(0), counter: number(8) };
    let lease = Some(number(16)).filter(|&id| id != 0).map(LeaseId);
    Ok((Record { key, value: raw.slice(RECORD_HEADER_BYTES..), revision }, lease))
}

pub(super) fn lease_key(lease: LeaseId) -> Bytes {
    Bytes::from([LEASES, &lease.0.to_be_bytes()].concat())
}

pub(super) fn lease_change(lease: LeaseId, ttl_ms: u64) -> Change {
    Change::Put(lease_key(lease), Bytes::copy_from_slice(&ttl_ms.to_be_bytes()))
}

pub(super) fn parse_lease(key: &[u8], value: &[u8]) -> Result<(LeaseId, u64), StoreError> {
    let id = key.strip_prefix(LEASES).and_then(|id| id.try_into().ok());
    let ttl = value.try_into().ok();
    match (id, ttl) {
        (Some(id), Some(ttl)) => Ok((LeaseId(u64::from_be_bytes(id)), u64::from_be_bytes(ttl))),
        _ => Err(damaged(key)),
    }
}

pub(super) fn leased_key(lease: LeaseId, key: &str) -> Bytes {
    Bytes::from([LEASED_KEYS, &lease.0.to_be_bytes()[..], key.as_bytes()].concat())
}

pub(super) fn parse_leased_key(raw: &[u8]) -> Result<(LeaseId, String), StoreError> {
    let parts = raw.strip_prefix(LEASED_KEYS).and_then(|rest| rest.split_first_chunk::<8>());
    let parsed = parts.and_then(|(id, key)| Some((id, std::str::from_utf8(key).ok()?)));
    let (id, key) = parsed.ok_or_else(|| damaged(raw))?;
    Ok((LeaseId(u64::from_be_bytes(*id)), key.to_owned()))
}
