//! How entries lie in sled: each value in chunks, all in one tree, in the order of their keys.
//!
//! A chunk's key is the entry's key escaped (`00` becomes `00 ff`), `00 00`, and the chunk's
//! number (two bytes, big-endian). The escape keeps the order of keys and makes no key a prefix of
//! another, so the chunks of an entry are neighbours. The first chunk starts with the length of
//! the value (four bytes, big-endian) with its highest bit set, and the entry's checksum (eight
//! bytes). The first format had no checksum, and the bit is clear; such entries are still read.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::super::KvError;
use super::super::ledger::{Ledger, checksum};
use super::sled_error;

/// Where the map's ledger lies: shorter than the key of any chunk, and before all of them.
pub(super) const LEDGER_KEY: &[u8] = &[0];

/// Bytes of a chunk. sled moves a page over 128 KiB to a file of its own, which it does not sync.
/// It splits a leaf past 16 records, but merges one of up to 3 into its neighbour: a page can
/// hold 20. That many chunks with the longest keys are about 100 KiB. (7,000 bytes, which 16
/// records allow, made such a file in one of some hundred thousand writes.)
pub(super) const CHUNK_BYTES: usize = 4_096;
/// The length and the checksum at the start of the first chunk.
const HEADER_BYTES: usize = 12;
/// The length alone, in the first format.
const OLD_HEADER_BYTES: usize = 4;
/// Set in the length when a checksum follows.
const HAS_CHECKSUM: u32 = 1 << 31;

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

/// Chunks of a value of `len` bytes behind a header of `header` bytes.
fn chunks(len: usize, header: usize) -> u16 {
    let count = (len + header).div_ceil(CHUNK_BYTES).max(1);
    u16::try_from(count).expect("limits of the trait keep values far below 65,535 chunks")
}

fn corrupt(key: &[u8], detail: impl Into<String>) -> KvError {
    KvError::Corrupt { key: key.escape_ascii().to_string(), detail: detail.into() }
}

/// What a first chunk says of its entry.
struct Header {
    len: usize,
    checksum: Option<u64>,
    bytes: usize,
}

impl Header {
    fn parse(key: &[u8], first: &[u8]) -> Result<Self, KvError> {
        let short = || corrupt(key, "the first chunk is too short");
        let (word, rest) = first.split_first_chunk::<4>().ok_or_else(short)?;
        let word = u32::from_be_bytes(*word);
        let (checksum, bytes) = if word & HAS_CHECKSUM == 0 {
            (None, OLD_HEADER_BYTES)
        } else {
            let (sum, _) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            (Some(u64::from_be_bytes(*sum)), HEADER_BYTES)
        };
        let len = usize::try_from(word & !HAS_CHECKSUM)
            .ok()
            .filter(|len| *len <= super::super::MAX_VALUE_BYTES)
            .ok_or_else(|| corrupt(key, "the length is over the limit"))?;
        Ok(Self { len, checksum, bytes })
    }

    fn chunks(&self) -> u16 {
        chunks(self.len, self.bytes)
    }
}

/// Puts chunks together.
struct Assembly {
    key: Vec<u8>,
    header: Header,
    seen: u16,
    value: BytesMut,
}

impl Assembly {
    fn start(key: Vec<u8>, first: &[u8]) -> Result<Self, KvError> {
        let header = Header::parse(&key, first)?;
        let mut value = BytesMut::with_capacity(header.len);
        value.extend_from_slice(&first[header.bytes..]);
        Ok(Self { key, header, seen: 1, value })
    }

    fn add(&mut self, number: u16, chunk: &[u8]) -> Result<(), KvError> {
        if number != self.seen || number >= self.header.chunks() {
            return Err(corrupt(&self.key, format!("chunk {number} after {}", self.seen)));
        }
        self.seen += 1;
        self.value.extend_from_slice(chunk);
        Ok(())
    }

    fn finish(self) -> Result<(Bytes, Bytes), KvError> {
        let Header { len, checksum: written, .. } = self.header;
        if self.seen != self.header.chunks() || self.value.len() != len {
            let detail = format!("{} of {len} bytes", self.value.len());
            return Err(corrupt(&self.key, detail));
        }
        if written.is_some_and(|written| written != checksum(&self.key, &self.value)) {
            return Err(corrupt(&self.key, "its checksum does not fit"));
        }
        Ok((self.key.into(), self.value.freeze()))
    }
}

pub(super) fn get(db: &sled::Db, key: &[u8]) -> Result<Option<Bytes>, KvError> {
    let stem = stem(key);
    let read = |number| db.get(chunk_key(&stem, number)).map_err(|e| sled_error("read", e));
    let Some(first) = read(0)? else { return Ok(None) };
    let mut assembly = Assembly::start(key.to_vec(), &first)?;
    for number in 1..assembly.header.chunks() {
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
        if raw == LEDGER_KEY {
            continue;
        }
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
/// included, and counts it in `ledger`. A key may be added once per batch.
pub(super) fn change(
    db: &sled::Db,
    batch: &mut sled::Batch,
    ledger: &mut Ledger,
    key: &[u8],
    value: Option<&Bytes>,
) -> Result<(), KvError> {
    let stem = stem(key);
    let first = db.get(chunk_key(&stem, 0)).map_err(|e| sled_error("read", e))?;
    let old = first.map(|first| Header::parse(key, &first)).transpose()?;
    let old_sum = match &old {
        Some(Header { checksum: None, .. }) => get(db, key)?.map(|value| checksum(key, &value)),
        Some(Header { checksum, .. }) => *checksum,
        None => None,
    };
    ledger.replace(old_sum, value.map(|value| checksum(key, value)));
    let mut new = 0;
    if let Some(value) = value {
        new = chunks(value.len(), HEADER_BYTES);
        let len = u32::try_from(value.len()).expect("limits of the trait fit 31 bits");
        let head = value.len().min(CHUNK_BYTES - HEADER_BYTES);
        let mut chunk = BytesMut::with_capacity(HEADER_BYTES + head);
        chunk.put_u32(len | HAS_CHECKSUM);
        chunk.put_u64(checksum(key, value));
        chunk.put_slice(&value[..head]);
        batch.insert(chunk_key(&stem, 0), &chunk[..]);
        for (number, rest) in (1..).zip(value[head..].chunks(CHUNK_BYTES)) {
            batch.insert(chunk_key(&stem, number), rest);
        }
    }
    for number in new..old.map_or(0, |old| old.chunks()) {
        batch.remove(chunk_key(&stem, number));
    }
    Ok(())
}

/// The ledger; `None` in a map of the first format, and in an empty one.
pub(super) fn ledger(db: &sled::Db) -> Result<Option<Ledger>, KvError> {
    let Some(raw) = db.get(LEDGER_KEY).map_err(|e| sled_error("read", e))? else { return Ok(None) };
    Ledger::decode(&raw).map(Some).ok_or_else(|| corrupt(LEDGER_KEY, "not a ledger"))
}

/// Reads every entry, tells `each`, and counts what is there: a ledger of 0 groups.
pub(super) fn count(db: &sled::Db, mut each: impl FnMut(&[u8], &[u8])) -> Result<Ledger, KvError> {
    const STEP: usize = 256;
    let mut found = Ledger::default();
    let mut after: Option<Bytes> = None;
    loop {
        let entries = scan(db, b"", after.as_deref(), STEP)?;
        for (key, value) in &entries {
            found.replace(None, Some(checksum(key, value)));
            each(key, value);
        }
        if entries.len() < STEP {
            return Ok(found);
        }
        after = entries.into_iter().next_back().map(|(key, _)| key);
    }
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
            assert_eq!(chunks(len, HEADER_BYTES), count, "{len}");
        }
    }

    /// A map of the first format: read, counted, and overwritten with fewer and more chunks.
    #[test]
    fn entries_without_a_checksum_are_read_and_replaced() {
        let db = sled::Config::new().temporary(true).open().unwrap();
        let old = |key: &[u8], value: &[u8]| {
            let head = value.len().min(CHUNK_BYTES - OLD_HEADER_BYTES);
            let mut first = u32::try_from(value.len()).unwrap().to_be_bytes().to_vec();
            first.extend(&value[..head]);
            db.insert(chunk_key(&stem(key), 0), first).unwrap();
            for (number, rest) in (1..).zip(value[head..].chunks(CHUNK_BYTES)) {
                db.insert(chunk_key(&stem(key), number), rest).unwrap();
            }
        };
        let (long, short) = (vec![7; 10_000], b"short".to_vec());
        old(b"a", &long);
        old(b"b", &short);
        assert_eq!(get(&db, b"a").unwrap(), Some(Bytes::from(long.clone())));
        let mut found = count(&db, |_, _| {}).unwrap();
        assert_eq!(found.records, 2);
        for (key, value) in [(b"a", Some(Bytes::from(short))), (b"b", Some(Bytes::from(long)))] {
            let mut batch = sled::Batch::default();
            change(&db, &mut batch, &mut found, key, value.as_ref()).unwrap();
            db.apply_batch(batch).unwrap();
            assert_eq!(get(&db, key).unwrap(), value);
        }
        assert_eq!(count(&db, |_, _| {}).unwrap(), found);
    }
}
