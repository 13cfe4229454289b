//! What a guest has on a qcow2 file, at one of its snapshots, or as it is if nobody writes to it:
//! QEMU docs/interop/qcow2.txt.
//!
//! A snapshot's tables and clusters stay as they are for as long as it exists, so that it can be
//! read while its guest runs and writes.

mod layer;
mod table;

use std::path::Path;

use self::layer::{Layer, Mapping};

/// Most that is read at a time, bytes.
pub const MAX_PIECE_BYTES: usize = 512 * 1024;
/// Images that an image may build on, one on another.
pub const MAX_ORIGINS: usize = 32;
/// Files that may be based on one another: a disk, its image, and those that this builds on.
const MAX_DEPTH: usize = MAX_ORIGINS + 2;
/// Look-ups of one call: after so many the next call goes on.
const MAX_LOOKUPS: usize = 100_000;

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The host failed.
    #[error("read {path}")]
    Io {
        /// Which file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is damaged, or made in a way that is not read here.
    #[error("{path}: {problem}")]
    Bad {
        /// Which file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It has no snapshot of that name.
    #[error("{path} has no snapshot {name:?}")]
    NoSnapshot {
        /// Which file.
        path: String,
        /// The name.
        name: String,
    },
}

/// A piece of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Virtual size of the volume, bytes.
    pub size_bytes: u64,
    /// Where the data belongs, bytes.
    pub offset: u64,
    /// What stands there; nothing when there are only zeros up to [`Piece::next`].
    pub data: Vec<u8>,
    /// Where to go on; at the end, the size.
    pub next: u64,
}

/// What a file itself holds, whatever it is based on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Where it belongs, bytes.
    pub offset: u64,
    /// How much it is, bytes.
    pub length: u64,
    /// What stands there; `None` when these are zeros.
    pub data: Option<Vec<u8>>,
}

/// A file and those that it is based on, opened to be read.
#[derive(Debug)]
pub struct Content {
    /// The first one is the file itself.
    layers: Vec<Layer>,
    size_bytes: u64,
}

impl Content {
    /// Opens a file as it was at a snapshot.
    ///
    /// # Errors
    /// [`ContentError`].
    pub async fn open(path: &Path, snapshot: &str) -> Result<Self, ContentError> {
        Self::of(path, Layer::open(path, Some(snapshot)).await?).await
    }

    /// Opens a file as it is, also a raw one. Nobody may write to it meanwhile.
    ///
    /// # Errors
    /// [`ContentError`].
    pub async fn open_as_it_is(path: &Path) -> Result<Self, ContentError> {
        Self::of(path, Layer::open(path, None).await?).await
    }

    async fn of(path: &Path, first: Layer) -> Result<Self, ContentError> {
        let size_bytes = first.size_bytes;
        let mut layers = vec![first];
        while let Some(base) = layers.last().and_then(|layer| layer.base.clone()) {
            if layers.len() >= MAX_DEPTH {
                let problem = format!("it is based on more than {MAX_DEPTH} files");
                return Err(bad(path, problem));
            }
            layers.push(Layer::open(&base, None).await?);
        }
        Ok(Self { layers, size_bytes })
    }

    /// Virtual size, bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The first thing at or after `from` that the file itself holds, at most [`MAX_PIECE_BYTES`] of
    /// data; `None` at its end.
    ///
    /// # Errors
    /// [`ContentError`].
    pub async fn own(&mut self, from: u64) -> Result<Option<Own>, ContentError> {
        let size_bytes = self.size_bytes;
        let Some(layer) = self.layers.first_mut() else { return Ok(None) };
        let mut at = from;
        while at < size_bytes {
            let (mapping, span) = layer.look_up(at).await?;
            let data = match mapping {
                Mapping::Nothing => {
                    at = at.saturating_add(span);
                    continue;
                }
                Mapping::Zeros => None,
                Mapping::At(_) | Mapping::Packed { .. } => {
                    let length = usize::try_from(span).unwrap_or(usize::MAX).min(MAX_PIECE_BYTES);
                    let mut data = vec![0; length];
                    layer.read(&mapping, &mut data).await?;
                    Some(data)
                }
            };
            let read = data.as_ref().map(|data| u64::try_from(data.len()).unwrap_or(u64::MAX));
            return Ok(Some(Own { offset: at, length: read.unwrap_or(span), data }));
        }
        Ok(None)
    }

    /// The first piece at or after `from` that may be more than zeros, at most
    /// [`MAX_PIECE_BYTES`]. It ends where a multiple of that length does.
    ///
    /// # Errors
    /// [`ContentError`].
    pub async fn piece(&mut self, from: u64) -> Result<Piece, ContentError> {
        let size_bytes = self.size_bytes;
        let nothing = |next: u64| Piece { size_bytes, offset: next, data: Vec::new(), next };
        let mut at = from;
        for _ in 0..MAX_LOOKUPS {
            if at >= size_bytes {
                return Ok(nothing(size_bytes));
            }
            let (mapping, span) = self.look_up(at).await?;
            if matches!(mapping, Place::Zeros) {
                at = at.saturating_add(span).min(size_bytes);
                continue;
            }
            let data = self.read(at, size_bytes).await?;
            let next = at.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
            if data.iter().all(|byte| *byte == 0) {
                at = next;
                continue;
            }
            return Ok(Piece { size_bytes, offset: at, data, next });
        }
        Ok(nothing(at))
    }

    /// From `at` on, where there is something, up to where there is nothing, or the piece ends.
    async fn read(&mut self, at: u64, size_bytes: u64) -> Result<Vec<u8>, ContentError> {
        let piece = u64::try_from(MAX_PIECE_BYTES).unwrap_or(u64::MAX);
        let end = (at - at % piece).saturating_add(piece).min(size_bytes);
        let mut data = Vec::new();
        let mut next = at;
        while next < end {
            let (place, span) = self.look_up(next).await?;
            let length = usize::try_from(span.min(end - next)).unwrap_or(MAX_PIECE_BYTES);
            let filled = data.len();
            match place {
                Place::Zeros => break,
                Place::In(number, mapping) => {
                    data.resize(filled + length, 0);
                    self.layers[number].read(&mapping, &mut data[filled..]).await?;
                }
            }
            next = next.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        }
        Ok(data)
    }

    /// What stands at a byte, and for how many more the same can be said.
    async fn look_up(&mut self, at: u64) -> Result<(Place, u64), ContentError> {
        let mut span = self.size_bytes.saturating_sub(at);
        for (number, layer) in self.layers.iter_mut().enumerate() {
            if at >= layer.size_bytes {
                // Nothing below is any longer.
                return Ok((Place::Zeros, span));
            }
            let (mapping, of_layer) = layer.look_up(at).await?;
            span = span.min(of_layer);
            match mapping {
                Mapping::Nothing => {}
                Mapping::Zeros => return Ok((Place::Zeros, span)),
                found => return Ok((Place::In(number, found), span)),
            }
        }
        Ok((Place::Zeros, span))
    }
}

/// Where what a guest sees lies.
#[derive(Debug)]
enum Place {
    Zeros,
    /// In the layer of that number.
    In(usize, Mapping),
}

fn bad(path: &Path, problem: impl Into<String>) -> ContentError {
    ContentError::Bad { path: path.display().to_string(), problem: problem.into() }
}

#[cfg(test)]
mod tests;
