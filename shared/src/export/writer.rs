//! Writes an export, frame by frame.

use std::io::{self, Write};

use super::Header;
use super::frame::{
    DIGEST_BYTES, Digest, HEAD_BYTES, Head, Kind, MAX_DATA_BYTES, START_BYTES, digest,
    first_digest, start,
};

/// After a whole frame: where an export that was cut goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes of the stream up to there.
    pub at: u64,
    /// Checksum of the frame, and so of all before it.
    pub(super) digest: Digest,
    /// The volume that was being written, of the header's from 0.
    pub volume: usize,
    /// Up to where, bytes.
    pub offset: u64,
    /// Bytes of data so far.
    pub data_bytes: u64,
}

/// Writes an export. What it writes is not yet durable: that is up to whoever holds the other end.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    place: Place,
}

impl<W: Write> Writer<W> {
    /// Begins an export.
    ///
    /// # Errors
    /// It could not be written.
    pub fn begin(mut to: W, header: &Header) -> io::Result<Self> {
        to.write_all(&start())?;
        let at = u64::try_from(START_BYTES).unwrap_or(u64::MAX);
        let place = Place { at, digest: first_digest(), volume: 0, offset: 0, data_bytes: 0 };
        let mut writer = Self { to, place };
        let content = serde_json::to_vec(header)?;
        writer.frame(Kind::Header, 0, 0, &content)?;
        Ok(writer)
    }

    /// Goes on with one of which everything up to `place` is written.
    pub fn go_on(to: W, place: Place) -> Self {
        Self { to, place }
    }

    /// After the last frame.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Writes a piece of a volume, of at most [`MAX_DATA_BYTES`]. Pieces come in the order of the
    /// header's volumes and of their offsets.
    ///
    /// # Errors
    /// It could not be written, or is too long.
    pub fn data(&mut self, volume: usize, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() || data.len() > MAX_DATA_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a piece of no usual length"));
        }
        let number = u16::try_from(volume).map_err(io::Error::other)?;
        self.frame(Kind::Data, number, offset, data)?;
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.place.volume = volume;
        self.place.offset = offset.saturating_add(length);
        self.place.data_bytes = self.place.data_bytes.saturating_add(length);
        Ok(())
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// It could not be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Ends the export and gives back what it was written to.
    ///
    /// # Errors
    /// It could not be written.
    pub fn end(mut self) -> io::Result<W> {
        self.frame(Kind::End, 0, self.place.data_bytes, &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn frame(&mut self, kind: Kind, volume: u16, offset: u64, content: &[u8]) -> io::Result<()> {
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let head = Head { kind, volume, length, offset };
        let digest = digest(&self.place.digest, head, content);
        self.to.write_all(&head.bytes())?;
        self.to.write_all(&digest)?;
        self.to.write_all(content)?;
        let bytes = u64::try_from(HEAD_BYTES + DIGEST_BYTES + content.len()).unwrap_or(u64::MAX);
        self.place.at = self.place.at.saturating_add(bytes);
        self.place.digest = digest;
        Ok(())
    }
}
