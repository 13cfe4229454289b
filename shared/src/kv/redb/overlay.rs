//! A file that can be written without being changed: what is written stays in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Bound;

use parking_lot::RwLock;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

const PAGE_BYTES: u64 = 4_096;

/// The file, the pages that were written, and the length that was set.
pub(super) struct Overlay {
    file: FileBackend,
    top: RwLock<Top>,
}

struct Top {
    /// Bytes of the file that still count: it may have been cut and grown again.
    file_bytes: u64,
    bytes: u64,
    /// By page number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Overlay {
    /// Takes the lock of `file`, which must be open for writing because of that.
    pub(super) fn new(file: File) -> Result<Self, redb::DatabaseError> {
        let bytes = file.metadata()?.len();
        let top = RwLock::new(Top { file_bytes: bytes, bytes, pages: BTreeMap::new() });
        Ok(Self { file: FileBackend::new(file)?, top })
    }

    /// What a page holds without what was written.
    fn below(&self, top: &Top, page: u64) -> io::Result<Vec<u8>> {
        let start = page * PAGE_BYTES;
        let there = top.file_bytes.saturating_sub(start).min(PAGE_BYTES);
        let mut content = vec![0; index(PAGE_BYTES)];
        if there > 0 {
            self.file.read(start, &mut content[..index(there)])?;
        }
        Ok(content)
    }
}

/// The parts of the pages that `bytes` bytes from `offset` cover: page, offset in it, length.
fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + u64::try_from(bytes).unwrap_or(u64::MAX - offset);
    let mut at = offset;
    std::iter::from_fn(move || {
        let (page, within) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let length = (PAGE_BYTES - within).min(end - at);
        at += length;
        (length > 0).then(|| (page, index(within), index(length)))
    })
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.top.read().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let top = self.top.read();
        if offset + u64::try_from(out.len()).unwrap_or(u64::MAX - offset) > top.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        for (page, within, length) in parts(offset, out.len()) {
            let target = &mut out[done..done + length];
            match top.pages.get(&page) {
                Some(content) => target.copy_from_slice(&content[within..within + length]),
                None => {
                    target.copy_from_slice(&self.below(&top, page)?[within..within + length]);
                }
            }
            done += length;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut top = self.top.write();
        top.bytes = len;
        top.file_bytes = top.file_bytes.min(len);
        top.pages.split_off(&len.div_ceil(PAGE_BYTES));
        if let Some(last) = top.pages.get_mut(&(len / PAGE_BYTES)) {
            last[index(len % PAGE_BYTES)..].fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut top = self.top.write();
        let mut done = 0;
        for (page, within, length) in parts(offset, data.len()) {
            if !top.pages.contains_key(&page) {
                let content = self.below(&top, page)?;
                top.pages.insert(page, content);
            }
            if let Some(content) = top.pages.get_mut(&page) {
                content[within..within + length].copy_from_slice(&data[done..done + length]);
            }
            done += length;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &content).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let overlay = Overlay::new(file).unwrap();
        let mut model = content.clone();
        let all = |model: &Vec<u8>| {
            let mut read = vec![0; model.len()];
            overlay.read(0, &mut read).unwrap();
            read
        };
        assert_eq!(all(&model), model);
        for (at, bytes) in [(4_000, vec![1; 300]), (9_990, vec![2; 10]), (0, vec![3; 9_000])] {
            overlay.write(u64::try_from(at).unwrap(), &bytes).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(all(&model), model);
        }
        for length in [9_500, 20_000, 4_096, 8_192] {
            overlay.set_len(u64::try_from(length).unwrap()).unwrap();
            model.resize(length, 0);
            assert_eq!(all(&model), model, "{length}");
        }
        assert!(overlay.read(8_000, &mut [0; 193]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}
