//! How entries lie in sled: each value in chunks, all in one tree, in the order of their keys.
//!
//! A chunk's key is the entry's key escaped (`00` becomes `00 ff`), `00 00`, and the chunk's
//! number (two bytes, big-endian). The escape keeps the order of keys and makes no key a prefix of
//! another, so the chunks of an entry are neighbours. The first chunk starts with the length of
//! the value (four bytes, big-endian).

use bytes::{BufMut as _, Bytes, BytesMut};

use super::super::KvError;
use super::sled_error;

/// Bytes of a chunk. sled moves a page over 128 KiB to a file of its own, which it does not sync.
/// It splits a leaf past 16 records, but merges one of up to 3 into its neighbour: a page can
/// hold 20. That many chunks with the longest keys are about 100 KiB. (7,000 bytes, which 16
/// records allow, made such a file in one of some hundred thousand writes.)
pub(super) const CHUNK_BYTES: usize = 4_096;
/// The length at the start of the first chunk.
const HEADER_BYTES: usize = 4;

/// The common start of the keys of an entry's chunks.
fn stem(key: &[u8]) -> Vec<u8> {
    let mut out = escape(key);
    out.extend([0, 0]);
    out
}

fn escape(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 4);
    for &byte in key {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out
}

fn chunk_key(stem: &[u8], number: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(stem.len() + 2);
    out.extend_from_slice(stem);
    out.extend(number.to_be_bytes());
    out
}

/// The entry's key and the chunk's number; `None` for what this module did not write.
fn parse(raw: &[u8]) -> Option<(Vec<u8>, u16)> {
    let (escaped, number) = raw.split_last_chunk::<2>()?;
    let escaped = escaped.strip_suffix(&[0, 0])?;
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(&byte) = bytes.next() {
        key.push(byte);
        if byte == 0 && bytes.next() != Some(&0xff) {
            return None;
        }
    }
    Some((key, u16::from_be_bytes(*number)))
}

/// Chunks of a value of `len` bytes.
fn chunks(len: usize) -> u16 {
    let count = (len + HEADER_BYTES).div_ceil(CHUNK_BYTES).max(1);
    u16::try_from(count).expect("limits of the trait keep values far below 65,535 chunks")
}

fn corrupt(key: &[u8], detail: impl Into<String>) -> KvError {
    KvError::Corrupt { key: key.escape_ascii().to_string(), detail: detail.into() }
}

/// The length in a first chunk.
fn declared_len(key: &[u8], first: &[u8]) -> Result<usize, KvError> {
    let (len, _) = first
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(|| corrupt(key, "the first chunk is too short"))?;
    usize::try_from(u32::from_be_bytes(*len)).map_err(|_| corrupt(key, "impossible length"))
}

/// Puts chunks together.
struct Assembly {
    key: Vec<u8>,
    len: usize,
    expected: u16,
    seen: u16,
    value: BytesMut,
}

impl Assembly {
    fn start(key: Vec<u8>, first: &[u8]) -> Result<Self, KvError> {
        let len = declared_len(&key, first)?;
        if len > super::super::MAX_VALUE_BYTES {
            return Err(corrupt(&key, "the length is over the limit"));
        }
        let mut value = BytesMut::with_capacity(len);
        value.extend_from_slice(&first[HEADER_BYTES..]);
        Ok(Self { key, len, expected: chunks(len), seen: 1, value })
    }

    fn add(&mut self, number: u16, chunk: &[u8]) -> Result<(), KvError> {
        if number != self.seen || number >= self.expected {
            return Err(corrupt(&self.key, format!("chunk {number} after {}", self.seen)));
        }
        self.seen += 1;
        self.value.extend_from_slice(chunk);
        Ok(())
    }

    fn finish(self) -> Result<(Bytes, Bytes), KvError> {
        if self.seen != self.expected || self.value.len() != self.len {
            let detail = format!("{} of {} bytes", self.value.len(), self.len);
            return Err(corrupt(&self.key, detail));
        }
        Ok((self.key.into(), self.value.freeze()))
    }
}

pub(super) fn get(db: &sled::Db, key: &[u8]) -> Result<Option<Bytes>, KvError> {
    let stem = stem(key);
    let read = |number| db.get(chunk_key(&stem, number)).map_err(|e| sled_error("read", e));
    let Some(first) = read(0)? else { return Ok(None) };
    let mut assembly = Assembly::start(key.to_vec(), &first)?;
    for number in 1..assembly.expected {
        let chunk = read(number)?.ok_or_else(|| corrupt(key, format!("no chunk {number}")))?;
        assembly.add(number, &chunk)?;
    }
    assembly.finish().map(|(_, value)| Some(value))
}

pub(super) fn scan(
    db: &sled::Db,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, KvError> {
    let prefix = escape(prefix);
    // Past every chunk of `after`, which can't have the number 65,535.
    let past = after.map(|key| chunk_key(&stem(key), u16::MAX));
    let start = past.unwrap_or_default().max(prefix.clone());
    let mut entries = Vec::new();
    let mut current: Option<Assembly> = None;
    for item in db.range(start..) {
        let (raw, chunk) = item.map_err(|e| sled_error("read", e))?;
        if !raw.starts_with(&prefix) {
            break;
        }
        let (key, number) = parse(&raw).ok_or_else(|| corrupt(&raw, "not an entry's key"))?;
        if number == 0 {
            if let Some(done) = current.take() {
                entries.push(done.finish()?);
            }
            if entries.len() >= limit {
                return Ok(entries);
            }
            current = Some(Assembly::start(key, &chunk)?);
        } else {
            let open = current.as_mut().filter(|a| a.key == key);
            open.ok_or_else(|| corrupt(&key, "no first chunk"))?.add(number, &chunk)?;
        }
    }
    if let Some(done) = current {
        entries.push(done.finish()?);
    }
    Ok(entries)
}

/// Adds to `batch` what sets an entry (`None`: removes it), the old value's surplus chunks
/// included. A key may be added once per batch.
pub(super) fn change(
    db: &sled::Db,
    batch: &mut sled::Batch,
    key: &[u8],
    value: Option<&Bytes>,
) -> Result<(), KvError> {
    let stem = stem(key);
    let first = db.get(chunk_key(&stem, 0)).map_err(|e| sled_error("read", e))?;
    let old = first.map_or(Ok(0), |f| declared_len(key, &f).map(chunks))?;
    let mut new = 0;
    if let Some(value) = value {
        new = chunks(value.len());
        let len = u32::try_from(value.len()).expect("limits of the trait fit 32 bits");
        let head = value.len().min(CHUNK_BYTES - HEADER_BYTES);
        let mut chunk = BytesMut::with_capacity(HEADER_BYTES + head);
        chunk.put_u32(len);
        chunk.put_slice(&value[..head]);
        batch.insert(chunk_key(&stem, 0), &chunk[..]);
        for (number, rest) in (1..).zip(value[head..].chunks(CHUNK_BYTES)) {
            batch.insert(chunk_key(&stem, number), rest);
        }
    }
    for number in new..old {
        batch.remove(chunk_key(&stem, number));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunk_keys_keep_the_order_and_parse(
            a in proptest::collection::vec(any::<u8>(), 0..12),
            b in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 0..12),
            n in any::<u16>(),
        ) {
            let (ka, kb) = (chunk_key(&stem(&a), n), chunk_key(&stem(&b), 0));
            if a != b {
                prop_assert_eq!(a.cmp(&b), ka.cmp(&kb));
            }
            prop_assert_eq!(parse(&ka), Some((a.clone(), n)));
            prop_assert_eq!(stem(&b).starts_with(&escape(&a)), b.starts_with(&a));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(raw in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some((key, number)) = parse(&raw) {
                prop_assert_eq!(chunk_key(&stem(&key), number), raw);
            }
        }
    }

    #[test]
    fn a_value_has_as_many_chunks_as_it_needs() {
        let fits = CHUNK_BYTES - HEADER_BYTES;
        for (len, count) in [(0, 1), (fits, 1), (fits + 1, 2), (fits + CHUNK_BYTES, 2)] {
            assert_eq!(chunks(len), count, "{len}");
        }
    }
}
