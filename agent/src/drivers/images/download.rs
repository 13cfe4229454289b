//! One resumable download: bytes go to `<image>.partial`, what they must become to
//! `<image>.partial.json`.

use std::io;
use std::path::{Path, PathBuf};

use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter};

use super::manifest::{Compression, Expected, Format, ImageFile};
use super::repository::{self, FetchError, MAX_ATTEMPTS, Repository, Transfer};
use super::room::{self, Room};
use crate::drivers::{DriverError, files};

const BUFFER_BYTES: usize = 256 * 1024;

/// A download of one image's file.
pub(super) struct Download<'a> {
    pub(super) repository: &'a Repository,
    pub(super) image: ImageUuid,
    pub(super) file: &'a ImageFile,
    /// The source that gave the manifest.
    pub(super) source: usize,
    /// Where the bytes go.
    pub(super) partial: PathBuf,
    /// Gets 0 to 100.
    pub(super) progress: &'a (dyn Fn(u8) + Send + Sync),
}

/// The partial file and the checksums of what it holds.
struct Sink {
    file: BufWriter<fs::File>,
    // Others take room as well while this one is fetched.
    room: Room,
    sums: Sums,
}

#[derive(Clone, Default)]
struct Sums {
    bytes: u64,
    sha1: Sha1,
    sha256: Sha256,
}

impl Sums {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.sha1.update(bytes);
        self.sha256.update(bytes);
    }

    /// What is wrong with the whole file.
    fn problem(&self, expected: &Expected) -> Option<String> {
        if self.bytes != expected.size_bytes {
            return Some(format!("{} bytes in place of {}", self.bytes, expected.size_bytes));
        }
        let differs = |name: &str, wanted: &Option<String>, found: String| match wanted {
            Some(wanted) if *wanted != found => {
                Some(format!("{name} {found} in place of {wanted}"))
            }
            _ => None,
        };
        differs("sha256", &expected.sha256, hex::encode(self.sha256.clone().finalize()))
            .or_else(|| differs("sha1", &expected.sha1, hex::encode(self.sha1.clone().finalize())))
    }
}

impl Download<'_> {
    /// The record beside the partial file.
    pub(super) fn record(partial: &Path) -> PathBuf {
        let name = partial.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        partial.with_file_name(format!("{name}.json"))
    }

    /// Brings the partial file to its full, verified content.
    pub(super) async fn run(&self) -> Result<(), DriverError> {
        let mut sink = self.open().await?;
        let resumed = sink.sums.bytes > 0;
        if resumed {
            tracing::info!(image_uuid = %self.image, at_bytes = sink.sums.bytes,
                "resuming the download of an image");
        }
        let fetched = self.fetch(&mut sink).await;
        self.give_up_if_full(fetched).await?;
        let Some(problem) = sink.sums.problem(&self.file.expected) else { return Ok(()) };
        self.discard().await?;
        if !resumed {
            return Err(checksum(self.image, &problem));
        }
        // The older part may be what was damaged: once more, from the start.
        tracing::warn!(image_uuid = %self.image, problem, "a resumed download is damaged");
        let mut sink = self.open().await?;
        let fetched = self.fetch(&mut sink).await;
        self.give_up_if_full(fetched).await?;
        match sink.sums.problem(&self.file.expected) {
            Some(problem) => {
                self.discard().await?;
                Err(checksum(self.image, &problem))
            }
            None => Ok(()),
        }
    }

    /// A partial file on a full disk would keep it full.
    async fn give_up_if_full(&self, done: Result<(), DriverError>) -> Result<(), DriverError> {
        if let Err(DriverError::Refused { code: Code::StoreFull, .. }) = &done {
            self.discard().await?;
        }
        done
    }

    async fn discard(&self) -> Result<(), DriverError> {
        files::remove(&self.partial).await?;
        files::remove(&Self::record(&self.partial)).await
    }

    /// Opens what an earlier attempt left if it belongs to the same file, else an empty one.
    async fn open(&self) -> Result<Sink, DriverError> {
        let record_path = Self::record(&self.partial);
        let record = files::read(&record_path).await?;
        let same = record
            .and_then(|content| serde_json::from_slice::<Expected>(&content).ok())
            .is_some_and(|record| record == self.file.expected);
        if !same {
            self.discard().await?;
            let record = serde_json::to_vec(&self.file.expected).expect("it has only string keys");
            files::write(&record_path, &record).await?;
        }
        let sums = self.sums_of_partial().await?;
        let needed_bytes = needed_bytes(self.file, sums.bytes);
        if let Err(full) = room::check(&record_path, needed_bytes, &format!("image {}", self.image))
        {
            self.discard().await?;
            return Err(full);
        }
        let opened = fs::OpenOptions::new().create(true).append(true).open(&self.partial).await;
        let file = opened.map_err(|e| files::failed("open", &self.partial, e))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Sink { file, room: Room::new(&self.partial), sums })
    }

    async fn sums_of_partial(&self) -> Result<Sums, DriverError> {
        let failed = |e| files::failed("read", &self.partial, e);
        let mut sums = Sums::default();
        let mut file = match fs::File::open(&self.partial).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(sums),
            Err(error) => return Err(failed(error)),
        };
        if !file.metadata().await.map_err(failed)?.is_file() {
            return Ok(sums);
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = file.read(&mut buffer).await.map_err(failed)?;
            if read == 0 {
                return Ok(sums);
            }
            sums.add(&buffer[..read]);
        }
    }

    /// Transfers until the size is reached; attempts that bring bytes are not counted.
    async fn fetch(&self, sink: &mut Sink) -> Result<(), DriverError> {
        let (mut attempt, mut turn) = (0, 0);
        while sink.sums.bytes < self.file.expected.size_bytes {
            self.repository.pause(attempt).await;
            let before = sink.sums.bytes;
            let opened = self.repository.file(self.image, self.source, turn, before).await;
            let error = match opened {
                Ok(transfer) => match self.receive(sink, transfer).await? {
                    None => continue,
                    Some(error) => error,
                },
                Err(error) => error,
            };
            let progressed = sink.sums.bytes > before;
            tracing::warn!(image_uuid = %self.image, attempt, error = %Chain(&error),
                "the download of an image was interrupted");
            attempt = if progressed { 1 } else { attempt + 1 };
            turn += 1;
            if attempt >= MAX_ATTEMPTS {
                return Err(repository::unavailable(self.image, &error));
            }
        }
        Ok(())
    }

    /// Takes what one transfer brings. `Some` is an interruption after which to try again.
    async fn receive(
        &self,
        sink: &mut Sink,
        mut transfer: Transfer,
    ) -> Result<Option<FetchError>, DriverError> {
        let failed = |e| files::failed("write", &self.partial, e);
        if transfer.offset_bytes != sink.sums.bytes {
            sink.file.flush().await.map_err(failed)?;
            sink.file.get_ref().set_len(0).await.map_err(failed)?;
            sink.sums = Sums::default();
            if transfer.offset_bytes != 0 {
                let status = transfer.response.status();
                return Ok(Some(FetchError::Status { url: transfer.url, status }));
            }
        }
        let mut shown = None;
        let interruption = loop {
            match transfer.response.chunk().await {
                Ok(Some(chunk)) => {
                    sink.sums.add(&chunk);
                    if sink.sums.bytes > self.file.expected.size_bytes {
                        break None;
                    }
                    sink.room.take(chunk.len())?;
                    sink.file.write_all(&chunk).await.map_err(failed)?;
                    let percent = percent(sink.sums.bytes, self.file.expected.size_bytes);
                    if shown.replace(percent) != Some(percent) {
                        (self.progress)(percent);
                    }
                }
                // The end, although bytes are missing: a file shorter than the manifest says.
                Ok(None) => break None,
                Err(source) => break Some(FetchError::Transport { url: transfer.url, source }),
            }
        };
        sink.file.flush().await.map_err(failed)?;
        if interruption.is_none() && sink.sums.bytes != self.file.expected.size_bytes {
            let problem = sink.sums.problem(&self.file.expected).unwrap_or_default();
            self.discard().await?;
            return Err(checksum(self.image, &problem));
        }
        Ok(interruption)
    }
}

fn percent(done: u64, all: u64) -> u8 {
    let percent = u128::from(done) * 100 / u128::from(all.max(1));
    u8::try_from(percent.min(100)).unwrap_or(100)
}

fn checksum(image: ImageUuid, problem: &str) -> DriverError {
    DriverError::refused(
        Code::ImageChecksum,
        format!("the file of image {image} is damaged: {problem}"),
    )
}

/// Space that it takes at least to download and unpack a file of which so much is there already.
/// A copy that is made by a conversion is not counted: nobody knows how much of it is holes, and it
/// looks for room by itself then.
fn needed_bytes(file: &ImageFile, there_bytes: u64) -> u64 {
    let packed_bytes = file.expected.size_bytes;
    let unpacked_bytes = match (file.compression, file.format) {
        // Its layers look for room themselves.
        (Compression::None, Format::Container) => packed_bytes,
        // It is used as it came.
        (Compression::None, _) => 0,
        (_, Format::Raw) => file.disk_bytes.unwrap_or(0).max(packed_bytes),
        // At least as large as what it is made from.
        (_, Format::Qcow2 | Format::Unknown | Format::Container) => packed_bytes,
    };
    packed_bytes.saturating_sub(there_bytes).saturating_add(unpacked_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(compression: Compression, format: Format, there_bytes: u64, needed: u64) {
        let expected = Expected { size_bytes: 100, sha1: None, sha256: None };
        let disk_bytes = Some(1000);
        let file = ImageFile { expected, compression, format, origin: None, disk_bytes };
        assert_eq!(needed_bytes(&file, there_bytes), needed, "{file:?}");
        let unsaid = ImageFile { disk_bytes: None, ..file };
        assert!(needed_bytes(&unsaid, there_bytes) <= needed, "{unsaid:?}");
    }

    #[test]
    fn a_file_that_is_not_packed_needs_no_room_for_a_copy() {
        check(Compression::None, Format::Qcow2, 0, 100);
        check(Compression::None, Format::Raw, 30, 70);
    }

    #[test]
    fn a_packed_disk_needs_room_for_all_of_it() {
        check(Compression::Gzip, Format::Qcow2, 0, 200);
        check(Compression::Gzip, Format::Unknown, 30, 170);
        check(Compression::Zstd, Format::Raw, 0, 1100);
        check(Compression::Zstd, Format::Raw, 30, 1070);
    }
}
