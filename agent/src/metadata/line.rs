//! Lines of bounded length from a guest that may send anything.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::protocol::MAX_LINE_BYTES;

/// Bytes read at a time. Every guest has a reader, and most of them say nothing.
const CHUNK_BYTES: usize = 512;

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line of more than [`MAX_LINE_BYTES`], which is gone.
    TooLong,
    /// No more.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    /// Read and not given out.
    pending: Vec<u8>,
    /// How much of it has no line's end.
    searched: usize,
    /// The line that is being read is too long already.
    skips: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Of what comes from here.
    #[must_use]
    pub fn new(reader: R) -> Self {
        Self { reader, pending: Vec::new(), searched: 0, skips: false }
    }

    /// The next line, or what is in its place.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn next(&mut self) -> std::io::Result<Read> {
        loop {
            if let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at;
                let mut line: Vec<u8> = self.pending.drain(..=end).collect();
                line.pop();
                self.searched = 0;
                let too_long = std::mem::take(&mut self.skips) || line.len() > MAX_LINE_BYTES;
                return Ok(if too_long { Read::TooLong } else { Read::Line(line) });
            }
            self.searched = self.pending.len();
            if self.pending.len() > MAX_LINE_BYTES {
                self.skips = true;
                self.searched = 0;
                self.pending = Vec::new();
            }
            if self.pending.is_empty() {
                // A long line has made it large.
                self.pending = Vec::with_capacity(CHUNK_BYTES);
            }
            self.pending.reserve(CHUNK_BYTES);
            if self.reader.read_buf(&mut self.pending).await? == 0 {
                return Ok(Read::End);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped() {
        let mut sent = b"one\n".to_vec();
        sent.extend(vec![b'x'; MAX_LINE_BYTES + CHUNK_BYTES + 1]);
        sent.push(b'\n');
        sent.extend(vec![b'y'; MAX_LINE_BYTES + 1]);
        sent.extend(b"\n\ntwo\nrest");
        let mut lines = Lines::new(&sent[..]);
        let mut read = Vec::new();
        loop {
            match lines.next().await.unwrap() {
                Read::End => break,
                other => read.push(other),
            }
        }
        let line = |text: &str| Read::Line(text.as_bytes().to_vec());
        assert_eq!(read, [line("one"), Read::TooLong, Read::TooLong, line(""), line("two")]);
    }
}
