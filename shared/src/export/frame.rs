//! How a frame looks: a head of 16 bytes, the checksum, what it carries.

use sha2::{Digest as _, Sha256};

/// What every export begins with; the number of the form follows.
pub(super) const MAGIC: [u8; 8] = *b"MUSTERVM";
/// The form that is written and read.
pub(super) const FORM: u32 = 1;
/// Magic and form.
pub(super) const START_BYTES: usize = 12;

/// Most that a frame carries of a volume, bytes.
pub const MAX_DATA_BYTES: usize = 512 * 1024;
/// Largest header, bytes of JSON.
pub const MAX_HEADER_BYTES: usize = 4 * 1024 * 1024;

pub(super) const HEAD_BYTES: usize = 16;
pub(super) const DIGEST_BYTES: usize = 32;

/// Checksum of a frame and of all before it.
pub(super) type Digest = [u8; DIGEST_BYTES];

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// JSON, once, first.
    Header,
    /// A piece of a volume.
    Data,
    /// Nothing comes after it.
    End,
}

/// The start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Of the header's volumes, from 0; 0 where there is none.
    pub(super) volume: u16,
    /// Bytes that it carries.
    pub(super) length: u32,
    /// Where they belong in the volume; of the end, how many bytes of data there were.
    pub(super) offset: u64,
}

impl Head {
    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = match self.kind {
            Kind::Header => 1,
            Kind::Data => 2,
            Kind::End => 3,
        };
        bytes[2..4].copy_from_slice(&self.volume.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// `None` of one that this version does not know. The second byte is always 0.
    pub(super) fn read(bytes: [u8; HEAD_BYTES]) -> Option<Self> {
        let [kind, 0, v0, v1, l0, l1, l2, l3, offset @ ..] = bytes else { return None };
        let kind = match kind {
            1 => Kind::Header,
            2 => Kind::Data,
            3 => Kind::End,
            _ => return None,
        };
        Some(Self {
            kind,
            volume: u16::from_be_bytes([v0, v1]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
            offset: u64::from_be_bytes(offset),
        })
    }

    /// Most that a frame of its kind may carry.
    pub(super) fn most(self) -> usize {
        match self.kind {
            Kind::Header => MAX_HEADER_BYTES,
            Kind::Data => MAX_DATA_BYTES,
            Kind::End => 0,
        }
    }
}

pub(super) fn start() -> [u8; START_BYTES] {
    let mut start = [0; START_BYTES];
    start[..8].copy_from_slice(&MAGIC);
    start[8..].copy_from_slice(&FORM.to_be_bytes());
    start
}

/// What the first frame's checksum covers beside the frame.
pub(super) fn first_digest() -> Digest {
    Sha256::digest(start()).into()
}

/// The checksum of a frame after the one with the checksum `before`.
pub(super) fn digest(before: &Digest, head: Head, content: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(head.bytes());
    hash.update(content);
    hash.finalize().into()
}
