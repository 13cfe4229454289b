//! The number of the last acknowledged group, in a file beside the map: a map that ends before it
//! has lost commits, even if it takes itself for whole or for empty.
//!
//! It is written after each group and synced now and then, so after a power cut it may lag behind
//! the map; it is never ahead of what was synced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::{KvError, damaged, io_error, sync_dir};

/// Name of the file.
pub(super) const NAME: &str = "acknowledged";
/// The two slots lie on pages of their own, so that one torn write spares the other.
const SLOT_BYTES: u64 = 4_096;
/// The number and its checksum, 64 bits each.
const ENTRY_BYTES: usize = 16;
/// Groups between two syncs of the file.
const SYNC_EVERY: u64 = 64;

/// The open file.
#[derive(Debug)]
pub(super) struct Acknowledged {
    file: File,
}

impl Acknowledged {
    /// The number in a map's folder; `None`: no map was ever used there.
    ///
    /// # Errors
    /// [`KvError::Damaged`]: neither slot can be read. [`KvError::Io`].
    pub(super) fn read(folder: &Path) -> Result<Option<u64>, KvError> {
        let path = folder.join(NAME);
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read a file of", error)),
        };
        let slot = usize::try_from(SLOT_BYTES).unwrap_or(usize::MAX);
        let numbers = content.chunks(slot).filter_map(decode);
        let detail = format!("the file {NAME} can't be read");
        numbers.max().map(Some).ok_or_else(|| damaged(folder, &detail))
    }

    /// Opens the file, or makes it, and says `groups` there, durably.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub(super) fn open(folder: &Path, groups: u64) -> Result<Self, KvError> {
        let failed = |error| io_error("write to", error);
        let path = folder.join(NAME);
        if !path.exists() {
            // Whole from the moment it has its name.
            let partial = folder.join(format!("{NAME}.new"));
            let file = File::create(&partial).map_err(failed)?;
            file.set_len(2 * SLOT_BYTES).map_err(failed)?;
            let made = Self { file };
            made.put(groups).map_err(failed)?;
            made.file.sync_all().map_err(failed)?;
            std::fs::rename(&partial, &path).map_err(failed)?;
            sync_dir(folder)?;
        }
        let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
        let acknowledged = Self { file };
        // Both slots: the numbers of a map that was replaced must not stay.
        for number in [groups.saturating_sub(1), groups] {
            acknowledged.put(number).map_err(failed)?;
        }
        acknowledged.sync()?;
        Ok(acknowledged)
    }

    /// Says that a group is durable.
    ///
    /// # Errors
    /// [`KvError::Io`]; the file then says an earlier number.
    pub(super) fn advance(&self, groups: u64) -> Result<(), KvError> {
        self.put(groups).map_err(|error| io_error("write to", error))?;
        if groups.is_multiple_of(SYNC_EVERY) { self.sync() } else { Ok(()) }
    }

    /// # Errors
    /// [`KvError::Io`].
    pub(super) fn sync(&self) -> Result<(), KvError> {
        self.file.sync_data().map_err(|error| io_error("sync", error))
    }

    fn put(&self, groups: u64) -> io::Result<()> {
        let number = groups.to_be_bytes();
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&number);
        entry[8..].copy_from_slice(&xxh3_64(&number).to_be_bytes());
        self.file.write_all_at(&entry, groups % 2 * SLOT_BYTES)
    }
}

fn decode(slot: &[u8]) -> Option<u64> {
    let entry: &[u8; ENTRY_BYTES] = slot.first_chunk()?;
    let (number, own) = entry.split_at(8);
    let fits = xxh3_64(number).to_be_bytes() == own;
    fits.then(|| number.try_into().ok().map(u64::from_be_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_number_is_read_whichever_slot_is_torn() {
        let dir = tempfile::tempdir().unwrap();
        let read = || Acknowledged::read(dir.path());
        assert_eq!(read().unwrap(), None);
        let file = Acknowledged::open(dir.path(), 0).unwrap();
        for number in 1..=5 {
            file.advance(number).unwrap();
            assert_eq!(read().unwrap(), Some(number));
        }
        file.file.write_all_at(&[0; ENTRY_BYTES], SLOT_BYTES).unwrap();
        assert_eq!(read().unwrap(), Some(4));
        file.file.write_all_at(&[0; ENTRY_BYTES], 0).unwrap();
        assert!(read().unwrap_err().is_damage());
        drop(Acknowledged::open(dir.path(), 3).unwrap());
        assert_eq!(read().unwrap(), Some(3));
    }
}
