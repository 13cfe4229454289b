//! Reads an export, frame by frame.

use std::io::{self, Read};

use super::Place;
use super::frame::{
    DIGEST_BYTES, FORM, HEAD_BYTES, Head, Kind, MAGIC, START_BYTES, digest, first_digest,
};
use super::header::{Header, Volume};

/// Why an export can't be used. `at` is the byte at which the frame at fault begins.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream itself could not be read.
    #[error("read the export at byte {at}")]
    Io {
        /// Where.
        at: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It begins with something else.
    #[error("this is not an export of a VM")]
    NotAnExport,
    /// A later Muster wrote it.
    #[error("the export has form {0}, and this version of Muster reads form {FORM}")]
    Form(u32),
    /// It ends before its end.
    #[error("the export is cut: it ends in the frame at byte {at}")]
    Cut {
        /// Where.
        at: u64,
    },
    /// What is there is not what was written.
    #[error("the export is damaged: the frame at byte {at}, {content}, has another checksum")]
    Damaged {
        /// Where.
        at: u64,
        /// What it should hold.
        content: String,
    },
    /// It is what somebody wrote, and nothing that Muster would.
    #[error("the export can't be used: the frame at byte {at} {problem}")]
    Bad {
        /// Where.
        at: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// What comes out of an export.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// First.
    Header(Box<Header>),
    /// A piece of a volume. They come in order; what no piece covers is zeros.
    Data {
        /// Of the header's volumes, from 0.
        volume: usize,
        /// Where it belongs, bytes.
        offset: u64,
        /// What stands there.
        data: Vec<u8>,
    },
    /// Last: all of it was read, and is as it was written.
    End {
        /// Bytes of data in all.
        data_bytes: u64,
    },
}

/// Reads an export. Holds one frame at a time.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    place: Place,
    begun: bool,
    ended: bool,
    volumes: Vec<Volume>,
}

impl<R: Read> Reader<R> {
    /// Of a stream from its first byte on.
    pub fn new(from: R) -> Self {
        let place = Place { at: 0, digest: first_digest(), volume: 0, offset: 0, data_bytes: 0 };
        Self { from, place, begun: false, ended: false, volumes: Vec::new() }
    }

    /// After the last whole frame.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// The next one; `None` after the end.
    ///
    /// # Errors
    /// [`ReadError`]; reading on makes no sense then. Where it can be told, nothing of a frame is
    /// taken into memory before its length is known to be one that frames have.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        if !self.begun {
            self.begin()?;
        }
        let at = self.place.at;
        let head = Head::read(self.take()?).ok_or_else(|| bad(at, "is none that there is"))?;
        let before = self.check_head(head);
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        if length > head.most() {
            return Err(bad(at, format!("is too long: {length} bytes")));
        }
        let wanted: [u8; DIGEST_BYTES] = self.take()?;
        let mut content = vec![0; length];
        self.fill(&mut content)?;
        let found = digest(&self.place.digest, head, &content);
        if found != wanted {
            return Err(ReadError::Damaged { at, content: self.named(head) });
        }
        // Only now it is known that somebody meant it.
        before.map_err(|problem| bad(at, problem))?;
        let event = self.event(head, content).map_err(|problem| bad(at, problem))?;
        let bytes = u64::try_from(HEAD_BYTES + DIGEST_BYTES + length).unwrap_or(u64::MAX);
        self.place.at = at.saturating_add(bytes);
        self.place.digest = found;
        Ok(Some(event))
    }

    /// Reads what every export begins with.
    fn begin(&mut self) -> Result<(), ReadError> {
        let start: [u8; START_BYTES] = match self.take() {
            Err(ReadError::Cut { .. }) => return Err(ReadError::NotAnExport),
            other => other?,
        };
        let (magic, form) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(ReadError::NotAnExport);
        }
        let form = u32::from_be_bytes(form.try_into().unwrap_or_default());
        if form != FORM {
            return Err(ReadError::Form(form));
        }
        self.begun = true;
        self.place.at = u64::try_from(START_BYTES).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Whether such a frame may stand here.
    fn check_head(&self, head: Head) -> Result<(), String> {
        let is_first = self.volumes.is_empty();
        match head.kind {
            Kind::Header if !is_first => Err("is a second header".to_owned()),
            Kind::Header if (head.volume, head.offset) != (0, 0) => {
                Err("is a header with a place".to_owned())
            }
            Kind::Header => Ok(()),
            _ if is_first => Err("comes before the header".to_owned()),
            Kind::End if head.volume != 0 => Err("is an end with a volume".to_owned()),
            Kind::End if head.offset != self.place.data_bytes => {
                let there = self.place.data_bytes;
                Err(format!("says that there were {} bytes of data, not {there}", head.offset))
            }
            Kind::End => Ok(()),
            Kind::Data => self.check_data(head),
        }
    }

    fn check_data(&self, head: Head) -> Result<(), String> {
        let volume = usize::from(head.volume);
        let Some(known) = self.volumes.get(volume) else {
            return Err(format!("is of volume {volume}, which there is not"));
        };
        let end = head.offset.checked_add(u64::from(head.length));
        if head.length == 0 || end.is_none_or(|end| end > known.size_bytes) {
            return Err(format!("is not within its volume of {} bytes", known.size_bytes));
        }
        let earliest = (self.place.volume, self.place.offset);
        if (volume, head.offset) < earliest {
            return Err("is not in order".to_owned());
        }
        Ok(())
    }

    fn event(&mut self, head: Head, content: Vec<u8>) -> Result<Event, String> {
        match head.kind {
            Kind::Header => {
                let header: Header = serde_json::from_slice(&content)
                    .map_err(|error| format!("is no header: {error}"))?;
                if let Some(problem) = header.problem() {
                    return Err(format!("is no header: {problem}"));
                }
                self.volumes.clone_from(&header.volumes);
                Ok(Event::Header(Box::new(header)))
            }
            Kind::Data => {
                let volume = usize::from(head.volume);
                let length = u64::from(head.length);
                self.place.volume = volume;
                self.place.offset = head.offset.saturating_add(length);
                self.place.data_bytes = self.place.data_bytes.saturating_add(length);
                Ok(Event::Data { volume, offset: head.offset, data: content })
            }
            Kind::End => {
                if !matches!(self.from.read(&mut [0]), Ok(0)) {
                    return Err("is the end, and more follows".to_owned());
                }
                self.ended = true;
                Ok(Event::End { data_bytes: self.place.data_bytes })
            }
        }
    }

    /// For people.
    fn named(&self, head: Head) -> String {
        match (head.kind, self.volumes.get(usize::from(head.volume))) {
            (Kind::Header, _) => "the header".to_owned(),
            (Kind::End, _) => "the end".to_owned(),
            (Kind::Data, None) => "data".to_owned(),
            (Kind::Data, Some(volume)) => {
                format!("{} bytes of {} from byte {} on", head.length, volume.role, head.offset)
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        let at = self.place.at;
        self.from.read_exact(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::Cut { at },
            _ => ReadError::Io { at, source },
        })
    }
}

fn bad(at: u64, problem: impl Into<String>) -> ReadError {
    ReadError::Bad { at, problem: problem.into() }
}
