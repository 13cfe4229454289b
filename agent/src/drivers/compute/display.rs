//! What a guest shows.

use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;

use crate::drivers::DriverError;
use crate::vm_record::VmRecord;

/// Longest picture of a display, bytes.
pub const MAX_PICTURE_BYTES: usize = 700 * 1024;
/// How a PNG file begins, up to its size.
const PNG_START: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
/// The last chunk of a PNG file, without its checksum.
const PNG_END: &[u8] = b"\0\0\0\0IEND";
/// Length and name, and a checksum, of a chunk.
const CHUNK_FRAME_BYTES: usize = 12;

/// Looks at displays, and says who else may.
#[async_trait]
pub trait GuestDisplay: fmt::Debug + Send + Sync + 'static {
    /// What a running guest shows now.
    ///
    /// # Errors
    /// `VmNotRunning`; `NotSupported` by a driver without displays; the hypervisor failed.
    async fn screenshot(&self, vm: VmUuid) -> Result<Picture, DriverError>;

    /// Gives the display of a running VM the password of its record, if that has one: viewers that come
    /// from now on need it. Only a display that asks for a password can be given another one.
    ///
    /// # Errors
    /// The hypervisor refused.
    async fn set_password(&self, vm: &VmRecord) -> Result<(), DriverError>;
}

/// A picture in the format PNG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
    /// The file.
    pub png: Vec<u8>,
}

impl Picture {
    /// The picture at the begin of `bytes`; `None` if there is no whole one.
    #[must_use]
    pub fn read(mut bytes: Vec<u8>) -> Option<Self> {
        let size = bytes.strip_prefix(PNG_START)?.first_chunk::<8>()?;
        let [w0, w1, w2, w3, h0, h1, h2, h3] = *size;
        let mut at = PNG_START.len() - b"\0\0\0\rIHDR".len();
        loop {
            let chunk = bytes.get(at..)?;
            let length = usize::try_from(u32::from_be_bytes(*chunk.first_chunk()?)).ok()?;
            let next = at.checked_add(CHUNK_FRAME_BYTES)?.checked_add(length)?;
            if next > bytes.len() {
                return None;
            }
            let last = chunk.starts_with(PNG_END);
            at = next;
            if last {
                break;
            }
        }
        bytes.truncate(at);
        Some(Self {
            width: u32::from_be_bytes([w0, w1, w2, w3]),
            height: u32::from_be_bytes([h0, h1, h2, h3]),
            png: bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[..], name, content, b"sum!"].concat()
    }

    /// 640 × 480, as far as the frame of the format goes.
    fn png(content: &[u8]) -> Vec<u8> {
        let size = [0, 0, 2, 128, 0, 0, 1, 224, 8, 2, 0, 0, 0];
        let chunks = [chunk(b"IHDR", &size), chunk(b"IDAT", content), chunk(b"IEND", b"")];
        [&PNG_START[..8], &chunks.concat()].concat()
    }

    #[test]
    fn a_file_of_another_kind_is_no_picture() {
        assert_eq!(Picture::read(b"P6\n640 480\n255\n".to_vec()), None);
        assert_eq!(Picture::read(vec![0; 4096]), None);
        let huge = [&PNG_START[..8], &[0xff; 64]].concat();
        assert_eq!(Picture::read(huge), None);
    }

    proptest! {
        #[test]
        fn what_follows_the_picture_is_cut_off(
            content in prop::collection::vec(any::<u8>(), 0..99), zeros in 0_usize..99,
        ) {
            let file = png(&content);
            let picture = Picture::read([&file[..], &vec![0; zeros]].concat()).unwrap();
            prop_assert_eq!((picture.width, picture.height), (640, 480));
            prop_assert_eq!(picture.png, file);
        }

        #[test]
        fn half_a_picture_is_none(
            content in prop::collection::vec(any::<u8>(), 0..99), part in 0.0..1.0,
        ) {
            let file = png(&content);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place")]
            let cut = (file.len() as f64 * part) as usize;
            prop_assert_eq!(Picture::read(file[..cut].to_vec()), None);
        }
    }
}
