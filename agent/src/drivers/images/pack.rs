//! From a disk to the file of an image: its bytes, packed, in one file until it is published.

use std::path::{Path, PathBuf};

use async_compression::tokio::write::{BzEncoder, GzipEncoder, XzEncoder, ZstdEncoder};
use async_trait::async_trait;
use muster_shared::ids::TaskId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufWriter};

use super::manifest::Compression;
use super::room::Room;
use crate::drivers::{DriverError, files};

const BUFFER_BYTES: usize = 64 * 1024;

/// A stretch of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskBytes {
    /// So many zeros.
    Zeros(u64),
    /// These bytes.
    Data(Vec<u8>),
}

/// A disk from its first byte to its last.
#[async_trait]
pub trait DiskSource: Send {
    /// What comes next; `None` at its end.
    ///
    /// # Errors
    /// The disk could not be read.
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError>;
}

/// A packed disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Size of the file, bytes.
    pub size_bytes: u64,
    /// Its checksum, hexadecimal.
    pub sha256: String,
}

/// The file of a task; no task has that of another.
pub(super) fn path(folder: &Path, task: &TaskId) -> PathBuf {
    // Whatever characters an id has.
    let name = hex::encode(Sha256::digest(task.to_string()));
    folder.join(format!("packed-{}", &name[..32]))
}

/// Packs a disk into a file; durable when it returns. A failed one leaves none.
pub(super) async fn pack(
    to: &Path,
    compression: Compression,
    disk: &mut dyn DiskSource,
) -> Result<Packed, DriverError> {
    let written = write(to, compression, disk).await;
    if let Err(error) = written {
        files::remove(to).await?;
        return Err(error);
    }
    files::sync_file(to).await?;
    if let Some(folder) = to.parent() {
        files::sync_folder(folder).await?;
    }
    sum(to).await
}

async fn write(
    to: &Path,
    compression: Compression,
    disk: &mut dyn DiskSource,
) -> Result<(), DriverError> {
    let failed = |error| files::failed("write", to, error);
    let file = BufWriter::new(File::create(to).await.map_err(failed)?);
    let mut packer = packer(compression, file);
    // What is packed is seldom more than what goes in, which is what is counted.
    let mut room = Room::new(to);
    let zeros = vec![0; BUFFER_BYTES];
    while let Some(bytes) = disk.next().await? {
        match bytes {
            DiskBytes::Data(data) => {
                room.take(data.len())?;
                for part in data.chunks(BUFFER_BYTES) {
                    packer.write_all(part).await.map_err(failed)?;
                }
            }
            DiskBytes::Zeros(mut count) => {
                while count > 0 {
                    let length = usize::try_from(count).unwrap_or(usize::MAX).min(BUFFER_BYTES);
                    if compression == Compression::None {
                        room.take(length)?;
                    }
                    packer.write_all(&zeros[..length]).await.map_err(failed)?;
                    count -= u64::try_from(length).unwrap_or(count);
                }
            }
        }
        // Packing never waits, and others are to have their turns.
        tokio::task::yield_now().await;
    }
    packer.shutdown().await.map_err(failed)
}

fn packer(compression: Compression, file: BufWriter<File>) -> Box<dyn AsyncWrite + Send + Unpin> {
    match compression {
        Compression::None => Box::new(file),
        Compression::Bzip2 => Box::new(BzEncoder::new(file)),
        Compression::Gzip => Box::new(GzipEncoder::new(file)),
        Compression::Xz => Box::new(XzEncoder::new(file)),
        Compression::Zstd => Box::new(ZstdEncoder::new(file)),
    }
}

async fn sum(path: &Path) -> Result<Packed, DriverError> {
    let failed = |error| files::failed("read", path, error);
    let mut file = File::open(path).await.map_err(failed)?;
    let (mut hash, mut size_bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = file.read(&mut buffer).await.map_err(failed)?;
        if read == 0 {
            return Ok(Packed { size_bytes, sha256: hex::encode(hash.finalize()) });
        }
        hash.update(&buffer[..read]);
        size_bytes += u64::try_from(read).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pieces(Vec<DiskBytes>);

    #[async_trait]
    impl DiskSource for Pieces {
        async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
            Ok((!self.0.is_empty()).then(|| self.0.remove(0)))
        }
    }

    #[tokio::test]
    async fn holes_are_zeros_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let to = path(folder.path(), &"task-1".parse().unwrap());
        assert_eq!(to.parent(), Some(folder.path()));
        let mut pieces = Pieces(vec![
            DiskBytes::Zeros(100_000),
            DiskBytes::Data(vec![7; 3]),
            DiskBytes::Zeros(5),
        ]);
        let packed = pack(&to, Compression::None, &mut pieces).await.unwrap();
        let mut wanted = vec![0; 100_008];
        wanted[100_000..100_003].fill(7);
        assert!(std::fs::read(&to).unwrap() == wanted);
        let sha256 = hex::encode(Sha256::digest(&wanted));
        assert_eq!(packed, Packed { size_bytes: 100_008, sha256 });
    }

    #[tokio::test]
    async fn a_disk_that_can_not_be_read_leaves_no_file() {
        struct Broken;
        #[async_trait]
        impl DiskSource for Broken {
            async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
                Err(DriverError::failed("read a disk", "it is broken"))
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("packed");
        pack(&to, Compression::Zstd, &mut Broken).await.unwrap_err();
        assert!(!to.exists());
    }
}
