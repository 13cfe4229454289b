//! The header of a qcow2 file, as far as this agent must know it: QEMU docs/interop/qcow2.txt.

pub mod content;
pub mod difference;

/// Bytes that [`parse`] needs.
pub const HEADER_BYTES: usize = 104;
/// Of version 2.
const OLD_HEADER_BYTES: usize = 72;

const MAGIC: &[u8] = b"QFI\xfb";
/// Incompatible feature: the guest's data lies in another file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Largest virtual size that is believed, bytes (64 TiB).
const MAX_SIZE_BYTES: u64 = 64 << 40;
/// Longest name of the file it is based on, bytes.
const MAX_NAME_BYTES: usize = 1023;
/// Incompatible features that QEMU can work with: dirty, external data, compression type, extended
/// L2 entries. One that it marked as corrupt (bit 1) it opens no more.
const USABLE: u64 = 1 | EXTERNAL_DATA | 1 << 3 | EXTENDED_L2;
/// Incompatible feature: entries of the second table are twice as long.
const EXTENDED_L2: u64 = 1 << 4;
/// Largest tables that QEMU reads, bytes.
const MAX_L1_BYTES: u64 = 32 << 20;
const MAX_REFCOUNTS_BYTES: u64 = 8 << 20;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Virtual size, bytes.
    pub size_bytes: u64,
    /// The file names another file as its base or as its data.
    pub refers_to_files: bool,
}

/// Reads the start of a file; `None` when it is no qcow2 image (then it is a raw one).
///
/// # Errors
/// It claims to be qcow2 but can't be used.
pub fn parse(start: &[u8]) -> Result<Option<Header>, BadHeader> {
    if !start.starts_with(MAGIC) {
        return Ok(None);
    }
    let version = be32(start, 4)?;
    if !(2..=3).contains(&version) {
        return Err(BadHeader::Version(version));
    }
    let size_bytes = be64(start, 24)?;
    if size_bytes == 0 || size_bytes > MAX_SIZE_BYTES {
        return Err(BadHeader::Size(size_bytes));
    }
    let incompatible = if version >= 3 { be64(start, 72)? } else { 0 };
    let refers_to_files = be64(start, 8)? != 0 || incompatible & EXTERNAL_DATA != 0;
    Ok(Some(Header { size_bytes, refers_to_files }))
}

/// Refuses what [`parse`] reads and QEMU would not open: an image that is installed must be one of
/// which VMs can be made. `file_bytes` is the length of the file.
///
/// # Errors
/// [`BadHeader::Field`] for the first unusable field.
pub fn check(start: &[u8], file_bytes: u64) -> Result<(), BadHeader> {
    let field = |holds: bool, name: &'static str, value: u64| {
        if holds { Ok(()) } else { Err(BadHeader::Field { name, value }) }
    };
    // The oldest header is this long; no field below is at its end.
    if start.len() < OLD_HEADER_BYTES {
        return Err(BadHeader::Short);
    }
    let version = be32(start, 4)?;
    let incompatible = if version >= 3 { be64(start, 72)? } else { 0 };
    field(incompatible & !USABLE == 0, "set of incompatible features", incompatible)?;
    let extended = incompatible & EXTENDED_L2 != 0;
    let bits = be32(start, 20)?;
    let least = if extended { 14 } else { 9 };
    field((least..=21).contains(&bits), "number of cluster bits", bits.into())?;
    let cluster = 1_u64 << bits;
    let encryption = be32(start, 32)?;
    field(encryption == 0, "method of encryption", encryption.into())?;
    if version >= 3 {
        let order = be32(start, 96)?;
        field(order <= 6, "order of reference counts", order.into())?;
        let length = u64::from(be32(start, 100)?);
        field((104..=cluster).contains(&length), "length of the header", length)?;
    }
    let table = |offset: u64, bytes: u64| {
        offset != 0
            && offset.is_multiple_of(cluster)
            && offset.checked_add(bytes).is_some_and(|end| end <= file_bytes)
    };
    let l1_bytes = u64::from(be32(start, 36)?) * 8;
    let (l1_at, size_bytes) = (be64(start, 40)?, be64(start, 24)?);
    // One entry of the first table leads to a cluster of the second, whose entries are clusters.
    let entries = cluster / if extended { 16 } else { 8 };
    let needed = size_bytes.div_ceil(cluster).div_ceil(entries);
    let holds_all = l1_bytes / 8 >= needed && l1_bytes <= MAX_L1_BYTES;
    field(holds_all, "length of the first table", l1_bytes)?;
    field(l1_bytes == 0 || table(l1_at, l1_bytes), "place of the first table", l1_at)?;
    let counts_at = be64(start, 48)?;
    let counts_bytes = u64::from(be32(start, 56)?) * cluster;
    let usable = counts_bytes != 0 && counts_bytes <= MAX_REFCOUNTS_BYTES.max(cluster);
    field(usable, "length of the reference counts", counts_bytes)?;
    // The last cluster of a file may be shorter than others.
    field(table(counts_at, 8), "place of the reference counts", counts_at)
}

/// Where a qcow2 file names the file it is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseName {
    /// Where the name starts, bytes.
    pub offset_bytes: u64,
    /// How long it is, bytes.
    pub length_bytes: usize,
}

/// Reads the start of a qcow2 file; `None` when it is based on nothing.
///
/// # Errors
/// It is no qcow2 file, or can't be used.
pub fn base_name(start: &[u8]) -> Result<Option<BaseName>, BadHeader> {
    if parse(start)?.is_none() {
        return Err(BadHeader::NoHeader);
    }
    let offset_bytes = be64(start, 8)?;
    if offset_bytes == 0 {
        return Ok(None);
    }
    let length = be32(start, 16)?;
    match usize::try_from(length) {
        Ok(length_bytes @ 1..=MAX_NAME_BYTES) => Ok(Some(BaseName { offset_bytes, length_bytes })),
        _ => Err(BadHeader::NameLength(length)),
    }
}

/// A qcow2 header that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// The file ends in its header.
    #[error("the file ends within its header")]
    Short,
    /// Unknown version.
    #[error("qcow2 version {0} is not supported")]
    Version(u32),
    /// It is something else.
    #[error("it is not a qcow2 file")]
    NoHeader,
    /// Nonsense length of the name of its base.
    #[error("the name of its base has {0} bytes")]
    NameLength(u32),
    /// A field with which QEMU does not open the file.
    #[error("its {name} can't be used ({value})")]
    Field {
        /// What it is.
        name: &'static str,
        /// What stands there.
        value: u64,
    },
    /// Nonsense size.
    #[error("a virtual size of {0} bytes can't be used")]
    Size(u64),
}

fn be32(bytes: &[u8], at: usize) -> Result<u32, BadHeader> {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map(u32::from_be_bytes).ok_or(BadHeader::Short)
}

fn be64(bytes: &[u8], at: usize) -> Result<u64, BadHeader> {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map(u64::from_be_bytes).ok_or(BadHeader::Short)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(version: u32, backing: u64, size: u64, incompatible: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&version.to_be_bytes());
        bytes[8..16].copy_from_slice(&backing.to_be_bytes());
        bytes[24..32].copy_from_slice(&size.to_be_bytes());
        bytes[72..80].copy_from_slice(&incompatible.to_be_bytes());
        bytes
    }

    #[test]
    fn a_plain_header_gives_the_size() {
        let plain = Header { size_bytes: 1 << 20, refers_to_files: false };
        assert_eq!(parse(&header(3, 0, 1 << 20, 1)), Ok(Some(plain)));
        // Version 2 has no feature bits; what stands there is something else.
        assert_eq!(parse(&header(2, 0, 1 << 20, EXTERNAL_DATA)), Ok(Some(plain)));
    }

    #[test]
    fn references_to_other_files_are_seen() {
        assert!(parse(&header(3, 512, 1 << 20, 0)).unwrap().unwrap().refers_to_files);
        assert!(parse(&header(3, 0, 1 << 20, EXTERNAL_DATA)).unwrap().unwrap().refers_to_files);
    }

    #[test]
    fn the_name_of_the_base_is_found() {
        let named = |offset, length: u32| {
            let mut bytes = header(3, offset, 1 << 20, 0);
            bytes[16..20].copy_from_slice(&length.to_be_bytes());
            base_name(&bytes)
        };
        assert_eq!(named(0, 7), Ok(None));
        assert_eq!(named(512, 7), Ok(Some(BaseName { offset_bytes: 512, length_bytes: 7 })));
        assert_eq!(named(512, 0), Err(BadHeader::NameLength(0)));
        assert_eq!(named(512, 1 << 20), Err(BadHeader::NameLength(1 << 20)));
        assert_eq!(base_name(b"raw"), Err(BadHeader::NoHeader));
    }

    /// A header of version 3 as `qemu-img create` writes it for 1 GiB, then changed.
    fn whole(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = header(3, 0, 1 << 30, 0);
        let fields: [(usize, u32); 8] = [
            (20, 16),
            (36, 2),
            (44, 0x3_0000),
            (52, 0x1_0000),
            (56, 1),
            (96, 4),
            (100, 104),
            (60, 0),
        ];
        for (at, value) in fields {
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        change(&mut bytes);
        bytes
    }

    #[track_caller]
    fn check_field(name: &str, at: usize, value: u32) {
        let bytes = whole(|bytes| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes()));
        assert!(parse(&bytes).unwrap().is_some(), "it has a size");
        match check(&bytes, 0x4_0000) {
            Err(BadHeader::Field { name: found, .. }) => assert_eq!(found, name),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn what_qemu_would_not_open_is_refused() {
        assert_eq!(check(&whole(|_| ()), 0x4_0000), Ok(()));
        let version_2 = whole(|bytes| {
            bytes[7] = 2;
            bytes.truncate(OLD_HEADER_BYTES);
        });
        assert_eq!(check(&version_2, 0x4_0000), Ok(()));
        assert_eq!(check(&version_2[..70], 0x4_0000), Err(BadHeader::Short));
        check_field("set of incompatible features", 72, 1 << 9);
        check_field("set of incompatible features", 76, 2);
        check_field("number of cluster bits", 20, 63);
        check_field("number of cluster bits", 20, 8);
        check_field("method of encryption", 32, 1);
        check_field("order of reference counts", 96, 7);
        check_field("length of the header", 100, 80);
        check_field("length of the first table", 36, 1 << 31);
        check_field("length of the first table", 36, 1);
        check_field("place of the first table", 44, 0x3_0001);
        check_field("place of the first table", 40, 1);
        check_field("length of the reference counts", 56, 0);
        check_field("place of the reference counts", 52, 0x5_0000);
        // The tables are beyond the end of a file that was cut.
        let cut = check(&whole(|_| ()), 104);
        assert!(matches!(cut, Err(BadHeader::Field { .. })), "{cut:?}");
    }

    #[test]
    fn what_is_not_qcow2_is_told_from_what_is_broken() {
        assert_eq!(parse(b"\xeb\x58\x90 a boot sector"), Ok(None));
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(&header(3, 0, 1 << 20, 0)[..40]), Err(BadHeader::Short));
        assert_eq!(parse(&header(9, 0, 1 << 20, 0)), Err(BadHeader::Version(9)));
        assert_eq!(parse(&header(3, 0, 0, 0)), Err(BadHeader::Size(0)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(mut bytes: Vec<u8>, claims: bool) {
            if claims {
                bytes.splice(0..0, MAGIC.iter().copied());
            }
            if let Ok(Some(header)) = parse(&bytes) {
                prop_assert!((1..=MAX_SIZE_BYTES).contains(&header.size_bytes));
            }
            prop_assert!(check(&bytes, 1 << 20).is_err() || bytes.len() >= 72);
        }
    }
}
