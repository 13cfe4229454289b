//! Writes a qcow2 file that holds only what differs from another disk: QEMU docs/interop/qcow2.txt.
//!
//! A cluster that is not in it is as the other disk has it. The file names no other: where that is,
//! who installs it knows. Clusters come in order, so that one second table at a time is in memory,
//! and the header, which leads to all of it, is written last: a file that was not finished is none.

use std::io::{self, SeekFrom};
use std::path::Path;

use tokio::fs::File;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _, BufWriter};

use super::{HEADER_BYTES, MAGIC};

const CLUSTER_BITS: u32 = 16;
/// Unit of what differs, bytes.
pub const CLUSTER_BYTES: usize = 1 << CLUSTER_BITS;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Entries of a second table, and of a table of reference counts.
const ENTRIES: u64 = CLUSTER / 8;
/// Reference counts have 16 bits.
const COUNTS_PER_BLOCK: u64 = CLUSTER / 2;
const COUNT_ORDER: u32 = 4;
/// Flag of an entry: nothing else refers to what it leads to.
const ONLY_ONE: u64 = 1 << 63;
/// Entry of a cluster that reads as zeros, whatever the other disk has there.
const ZEROS: u64 = 1;

/// A file that is being written.
#[derive(Debug)]
pub struct Difference {
    file: BufWriter<File>,
    /// Clusters that were written, the one of the header among them.
    written: u64,
    first: Vec<u64>,
    /// The second table that is being filled: its place in the first one, and its entries.
    second: Option<(usize, Vec<u64>)>,
}

impl Difference {
    /// Begins a file, in place of one that is there.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(4 * CLUSTER_BYTES, File::create(path).await?);
        file.write_all(&[0; CLUSTER_BYTES]).await?;
        Ok(Self { file, written: 1, first: Vec::new(), second: None })
    }

    /// A cluster has these bytes; at the end of the disk they may be fewer.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn data(&mut self, cluster: u64, bytes: &[u8]) -> io::Result<()> {
        self.turn_to(cluster).await?;
        let mut whole = bytes.to_vec();
        whole.resize(CLUSTER_BYTES, 0);
        let entry = self.append(&whole).await? | ONLY_ONE;
        self.enter(cluster, entry);
        Ok(())
    }

    /// A cluster has only zeros.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn zeros(&mut self, cluster: u64) -> io::Result<()> {
        self.turn_to(cluster).await?;
        self.enter(cluster, ZEROS);
        Ok(())
    }

    /// Ends the file of a disk of this size; durable when it returns.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn finish(mut self, size_bytes: u64) -> io::Result<()> {
        self.put_second().await?;
        let entries = size_bytes.div_ceil(CLUSTER).div_ceil(ENTRIES).max(1);
        self.first.resize(usize::try_from(entries).map_err(io::Error::other)?, 0);
        let first = std::mem::take(&mut self.first);
        let first_at = self.append_table(&first).await?;
        // They count themselves as well.
        let (mut blocks, mut tables) = (0, 0);
        loop {
            let needed = (self.written + blocks + tables).div_ceil(COUNTS_PER_BLOCK);
            let table = needed.div_ceil(ENTRIES);
            if (needed, table) == (blocks, tables) {
                break;
            }
            (blocks, tables) = (needed, table);
        }
        let all = self.written + blocks + tables;
        let blocks_at = (self.written + tables) * CLUSTER;
        let table: Vec<u64> = (0..blocks).map(|block| blocks_at + block * CLUSTER).collect();
        let counts_at = self.append_table(&table).await?;
        for block in 0..blocks {
            let used = (all - block * COUNTS_PER_BLOCK).min(COUNTS_PER_BLOCK);
            let count = |n: u64| u16::from(n < used).to_be_bytes();
            let bytes: Vec<u8> = (0..COUNTS_PER_BLOCK).flat_map(count).collect();
            self.append(&bytes).await?;
        }
        let first_entries = u32::try_from(first.len()).map_err(io::Error::other)?;
        let tables = u32::try_from(tables).map_err(io::Error::other)?;
        let header = header(size_bytes, (first_at, first_entries), (counts_at, tables));
        self.file.seek(SeekFrom::Start(0)).await?;
        self.file.write_all(&header).await?;
        self.file.flush().await?;
        self.file.get_ref().sync_all().await
    }

    /// Clusters come in order: a second table is done when one of another comes.
    async fn turn_to(&mut self, cluster: u64) -> io::Result<()> {
        let place = usize::try_from(cluster / ENTRIES).map_err(io::Error::other)?;
        if self.second.as_ref().is_some_and(|(known, _)| *known == place) {
            return Ok(());
        }
        self.put_second().await?;
        let entries = usize::try_from(ENTRIES).map_err(io::Error::other)?;
        self.second = Some((place, vec![0; entries]));
        Ok(())
    }

    fn enter(&mut self, cluster: u64, entry: u64) {
        let index = usize::try_from(cluster % ENTRIES).unwrap_or_default();
        if let Some((_, entries)) = &mut self.second {
            entries[index] = entry;
        }
    }

    async fn put_second(&mut self) -> io::Result<()> {
        let Some((place, entries)) = self.second.take() else { return Ok(()) };
        let at = self.append_table(&entries).await?;
        if self.first.len() <= place {
            self.first.resize(place + 1, 0);
        }
        self.first[place] = at | ONLY_ONE;
        Ok(())
    }

    async fn append_table(&mut self, entries: &[u64]) -> io::Result<u64> {
        let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(CLUSTER_BYTES), 0);
        self.append(&bytes).await
    }

    /// Whole clusters; where they are.
    async fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.written * CLUSTER;
        self.file.write_all(bytes).await?;
        self.written += u64::try_from(bytes.len() / CLUSTER_BYTES).map_err(io::Error::other)?;
        Ok(at)
    }
}

/// Of version 3, with the end of its extensions behind it.
fn header(size_bytes: u64, first: (u64, u32), counts: (u64, u32)) -> [u8; HEADER_BYTES + 8] {
    let mut header = [0; HEADER_BYTES + 8];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(4, &3_u32.to_be_bytes());
    put(20, &CLUSTER_BITS.to_be_bytes());
    put(24, &size_bytes.to_be_bytes());
    put(36, &first.1.to_be_bytes());
    put(40, &first.0.to_be_bytes());
    put(48, &counts.0.to_be_bytes());
    put(56, &counts.1.to_be_bytes());
    put(96, &COUNT_ORDER.to_be_bytes());
    let length = u32::try_from(HEADER_BYTES).unwrap_or_default();
    put(100, &length.to_be_bytes());
    header
}

#[cfg(test)]
mod tests;
