//! How records lie in redb: each value behind its checksum, and the ledger in a table of its own.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::super::KvError;
use super::super::committer::Changes;
use super::super::ledger::{Ledger, checksum};

/// Keys and, each behind a checksum of eight bytes, their values.
const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");
/// The ledger, under an empty key, and the id of the log.
const LEDGER: TableDefinition<&[u8], &[u8]> = TableDefinition::new("ledger");
const LOG_ID: &[u8] = b"log";

/// A failure of redb's, or a record that is not what was written.
#[derive(Debug)]
pub(super) enum Failure {
    Engine(redb::Error),
    Record { key: Vec<u8>, detail: &'static str },
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

/// Parts a stored value into its checksum and the value, checked.
fn parse<'a>(key: &[u8], stored: &'a [u8]) -> Result<(u64, &'a [u8]), Failure> {
    let failed = |detail| Failure::Record { key: key.to_vec(), detail };
    let (sum, value) = stored.split_first_chunk().ok_or_else(|| failed("it has no checksum"))?;
    let sum = u64::from_be_bytes(*sum);
    if sum != checksum(key, value) {
        return Err(failed("its checksum does not fit"));
    }
    Ok((sum, value))
}

/// Makes the tables of a new map.
pub(super) fn initialize(txn: &WriteTransaction) -> Result<(), Failure> {
    txn.open_table(RECORDS)?;
    write_ledger(txn, Ledger::default())
}

pub(super) fn get(db: &impl ReadableDatabase, key: &[u8]) -> Result<Option<Bytes>, Failure> {
    let table = db.begin_read()?.open_table(RECORDS)?;
    let Some(stored) = table.get(key)? else { return Ok(None) };
    parse(key, stored.value()).map(|(_, value)| Some(Bytes::copy_from_slice(value)))
}

/// Where the keys begin that start with `prefix` and are greater than `after`.
pub(super) fn start<'a>(prefix: &'a [u8], after: Option<&'a [u8]>) -> Bound<&'a [u8]> {
    match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    }
}

/// A moment of the database, for a [`scan`].
pub(super) fn moment(db: &impl ReadableDatabase) -> Result<ReadTransaction, Failure> {
    Ok(db.begin_read()?)
}

/// At most `limit` entries whose key starts with `prefix` and is greater than `after`, with `newer`
/// changes of such keys laid over them.
pub(super) fn scan(
    txn: &ReadTransaction,
    newer: Changes,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, Failure> {
    let table = txn.open_table(RECORDS)?;
    let start = start(prefix, after);
    let mut newer = newer.into_iter().peekable();
    let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
    for entry in table.range::<&[u8]>((start, Bound::Unbounded))? {
        let (key, stored) = entry?;
        let key = key.value();
        if entries.len() >= limit || !key.starts_with(prefix) {
            break;
        }
        while let Some((new, value)) = newer.next_if(|(new, _)| new.as_ref() < key) {
            entries.extend(value.map(|value| (new, value)));
        }
        match newer.next_if(|(new, _)| new.as_ref() == key) {
            Some((new, value)) => entries.extend(value.map(|value| (new, value))),
            None => {
                let (_, value) = parse(key, stored.value())?;
                entries.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
        }
    }
    // Keys behind the last one of the table, or behind what is wanted.
    let more = newer.filter_map(|(key, value)| Some((key, value?)));
    entries.extend(more.take(limit.saturating_sub(entries.len())));
    entries.truncate(limit);
    Ok(entries)
}

/// Applies the changes of the groups up to one of this number; `ledger` is that before them, and is
/// returned as it is after them.
pub(super) fn apply(
    txn: &WriteTransaction,
    changes: &Changes,
    group: u64,
    mut ledger: Ledger,
) -> Result<Ledger, Failure> {
    let mut table = txn.open_table(RECORDS)?;
    let mut stored = Vec::new();
    for (key, value) in changes {
        let (old, new) = match value {
            Some(value) => {
                let sum = checksum(key, value);
                stored.clear();
                stored.extend(sum.to_be_bytes());
                stored.extend_from_slice(value);
                let old = table.insert(key.as_ref(), stored.as_slice())?;
                (old.map(|old| parse(key, old.value()).map(|(sum, _)| sum)), Some(sum))
            }
            None => {
                let old = table.remove(key.as_ref())?;
                (old.map(|old| parse(key, old.value()).map(|(sum, _)| sum)), None)
            }
        };
        ledger.replace(old.transpose()?, new);
    }
    drop(table);
    ledger.groups = group;
    write_ledger(txn, ledger)?;
    Ok(ledger)
}

fn write_ledger(txn: &WriteTransaction, ledger: Ledger) -> Result<(), Failure> {
    txn.open_table(LEDGER)?.insert([].as_slice(), ledger.encode().as_slice())?;
    Ok(())
}

/// The id of the map's log; `None`: it never had one.
pub(super) fn log_id(txn: &ReadTransaction) -> Result<Option<u64>, Failure> {
    let stored = txn.open_table(LEDGER)?.get(LOG_ID)?;
    Ok(stored.and_then(|stored| stored.value().try_into().ok().map(u64::from_be_bytes)))
}

/// Has the map's log have another id.
pub(super) fn write_log_id(txn: &WriteTransaction, id: u64) -> Result<(), Failure> {
    txn.open_table(LEDGER)?.insert(LOG_ID, id.to_be_bytes().as_slice())?;
    Ok(())
}

/// The ledger; `None` if there is none that can be read.
pub(super) fn ledger(txn: &ReadTransaction) -> Result<Option<Ledger>, Failure> {
    let table = txn.open_table(LEDGER)?;
    Ok(table.get([].as_slice())?.and_then(|stored| Ledger::decode(stored.value())))
}

/// What all records come to: a ledger of 0 groups, and their bytes.
pub(super) struct Count {
    pub(super) ledger: Ledger,
    /// Of keys and values.
    pub(super) bytes: u64,
}

/// In which order records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// That of their keys.
    Forward,
    /// The last first.
    Backward,
}

/// Reads all records. `each` gets every sound one, and the failure of every other; it decides
/// whether to go on.
pub(super) fn walk(
    txn: &ReadTransaction,
    way: Direction,
    mut each: impl FnMut(Result<(&[u8], &[u8]), Failure>) -> Result<ControlFlow<()>, Failure>,
) -> Result<Count, Failure> {
    let mut found = Count { ledger: Ledger::default(), bytes: 0 };
    let table = txn.open_table(RECORDS)?;
    let mut entries = table.iter()?;
    let mut next = || match way {
        Direction::Forward => entries.next(),
        Direction::Backward => entries.next_back(),
    };
    while let Some(entry) = next() {
        let (key, stored) = entry?;
        let (key, stored) = (key.value(), stored.value());
        let more = match parse(key, stored) {
            Ok((sum, value)) => {
                found.ledger.replace(None, Some(sum));
                let bytes = key.len() + value.len();
                found.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
                each(Ok((key, value)))?
            }
            Err(failure) => each(Err(failure))?,
        };
        if more.is_break() {
            break;
        }
    }
    Ok(found)
}

impl Failure {
    /// The failure, said of one record or of the files in `folder`.
    pub(super) fn in_folder(self, action: &'static str, folder: &std::path::Path) -> KvError {
        match self {
            Self::Engine(error) => super::engine_error(action, folder, error),
            Self::Record { key, detail } => {
                KvError::Corrupt { key: key.escape_ascii().to_string(), detail: detail.to_owned() }
            }
        }
    }
}
