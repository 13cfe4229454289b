//! The header of a qcow2 file, as far as this agent must know it: QEMU docs/interop/qcow2.txt.

/// Bytes that [`parse`] needs.
pub const HEADER_BYTES: usize = 104;

const MAGIC: &[u8] = b"QFI\xfb";
/// Incompatible feature: the guest's data lies in another file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Largest virtual size that is believed, bytes (64 TiB).
const MAX_SIZE_BYTES: u64 = 64 << 40;
/// Longest name of the file it is based on, bytes.
const MAX_NAME_BYTES: usize = 1023;

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
        }
    }
}
