//! What stands in the header and the tables of a qcow2 file. Pure.

use super::super::{BadHeader, HEADER_BYTES, be32, be64, check, parse};

/// Bytes of a snapshot's entry before what varies.
const SNAPSHOT_BYTES: usize = 40;
/// Largest table of snapshots that is read, bytes; QEMU's own limit is 64 MiB.
pub(super) const MAX_SNAPSHOTS_BYTES: usize = 1024 * 1024;

/// Where a cluster is, in an entry of the tables.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;
const SECTOR_BYTES: u64 = 512;

/// Incompatible features: data elsewhere, compression that is named, entries of double length.
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// Bytes of a header with everything that is read here.
pub(super) const FULL_HEADER_BYTES: usize = HEADER_BYTES + 8;

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Deflate,
    Zstd,
}

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) version: u32,
    pub(super) size_bytes: u64,
    pub(super) cluster_bits: u32,
    pub(super) packing: Packing,
    pub(super) first_table: FirstTable,
    pub(super) snapshots: u32,
    pub(super) snapshots_at: u64,
}

/// The table that leads to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstTable {
    pub(super) at: u64,
    pub(super) entries: u32,
}

/// What an entry of a second table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Ask the file that this one is based on.
    Nothing,
    /// It reads as zeros.
    Zeros,
    /// The cluster lies there.
    At(u64),
    /// So many bytes from there on unpack to it.
    Packed { at: u64, bytes: u64 },
}

impl Layout {
    /// From the start of a file of `file_bytes`.
    pub(super) fn read(start: &[u8], file_bytes: u64) -> Result<Self, String> {
        let in_words = |error: BadHeader| error.to_string();
        let header = parse(start).map_err(in_words)?.ok_or("it is not a qcow2 file")?;
        check(start, file_bytes).map_err(in_words)?;
        let word = |at| be32(start, at).map_err(in_words);
        let long = |at| be64(start, at).map_err(in_words);
        let version = word(4)?;
        let features = if version >= 3 { long(72)? } else { 0 };
        if features & EXTERNAL_DATA != 0 {
            return Err("its data lies in another file".to_owned());
        }
        if features & EXTENDED_L2 != 0 {
            return Err("it has extended table entries, which can't be read here".to_owned());
        }
        let packing = match features & COMPRESSION_TYPE {
            0 => Packing::Deflate,
            _ => match start.get(HEADER_BYTES) {
                Some(0) => Packing::Deflate,
                Some(1) => Packing::Zstd,
                other => return Err(format!("its compression {other:?} is not known")),
            },
        };
        Ok(Self {
            version,
            size_bytes: header.size_bytes,
            cluster_bits: word(20)?,
            packing,
            first_table: FirstTable { at: long(40)?, entries: word(36)? },
            snapshots: word(60)?,
            snapshots_at: long(64)?,
        })
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Entries of a second table, as a power of two.
    pub(super) fn entry_bits(&self) -> u32 {
        self.cluster_bits - 3
    }

    /// Where a second table is, by its entry in the first; `None`: there is none.
    pub(super) fn second_table(entry: u64) -> Option<u64> {
        Some(entry & OFFSET_MASK).filter(|at| *at != 0)
    }

    /// What an entry of a second table says.
    pub(super) fn entry(&self, entry: u64) -> Entry {
        if entry & COMPRESSED != 0 {
            let offset_bits = 62 - (self.cluster_bits - 8);
            let at = entry & ((1 << offset_bits) - 1);
            let sectors = ((entry & (COMPRESSED - 1)) >> offset_bits) + 1;
            return Entry::Packed { at, bytes: sectors * SECTOR_BYTES - at % SECTOR_BYTES };
        }
        // Version 2 does not know clusters of zeros.
        if self.version >= 3 && entry & ZEROS != 0 {
            return Entry::Zeros;
        }
        match entry & OFFSET_MASK {
            0 => Entry::Nothing,
            at => Entry::At(at),
        }
    }
}

/// A snapshot in the table of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) name: Vec<u8>,
    pub(super) first_table: FirstTable,
    /// Virtual size at its time, bytes; none in old tables.
    pub(super) size_bytes: Option<u64>,
}

/// The first `count` entries of a table of snapshots.
pub(super) fn snapshots(table: &[u8], count: u32) -> Result<Vec<Snapshot>, String> {
    let short = |_| "its table of snapshots is cut".to_owned();
    let mut found = Vec::new();
    let mut at = 0_usize;
    for _ in 0..count {
        let entry = table.get(at..).unwrap_or_default();
        let word = |at| be32(entry, at).map_err(short);
        let first_table = FirstTable { at: be64(entry, 0).map_err(short)?, entries: word(8)? };
        // Two lengths of 16 bits: of its identifier and of its name.
        let lengths = word(12)?;
        let (id_bytes, name_bytes) = ((lengths >> 16) as usize, (lengths & 0xffff) as usize);
        let extra_bytes = word(36)? as usize;
        let size_bytes = match extra_bytes {
            16.. => Some(be64(entry, SNAPSHOT_BYTES + 8).map_err(short)?),
            _ => None,
        };
        let name_at = SNAPSHOT_BYTES.saturating_add(extra_bytes).saturating_add(id_bytes);
        let end = name_at.saturating_add(name_bytes);
        let name = entry.get(name_at..end).ok_or_else(|| short(BadHeader::Short))?;
        found.push(Snapshot { name: name.to_vec(), first_table, size_bytes });
        at = at.saturating_add(end.next_multiple_of(8));
    }
    Ok(found)
}

/// Entries of a table, of 8 bytes each.
pub(super) fn entries(bytes: &[u8]) -> Vec<u64> {
    let entry = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).unwrap_or_default();
    bytes.chunks_exact(8).map(entry).collect()
}
