//! The file of an incremental image: what differs between a disk and the image that it was made from.
//!
//! It is a qcow2 file that names no other ([`qcow2::difference`]), whatever keeps the disk: both that
//! image and its origin are installed anywhere, on files and in pools.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use super::manifest::Compression;
use super::pack::{self, DiskBytes, DiskSource, Packed};
use super::room::Room;
use super::snapshot::Stretch;
use crate::drivers::storage::qcow2::content::{Content, ContentError};
use crate::drivers::storage::qcow2::difference::{CLUSTER_BYTES, Difference};
use crate::drivers::storage::zfs::Device;
use crate::drivers::storage::{MAX_PIECE_BYTES, SnapshotPiece};
use crate::drivers::{DriverError, files};

/// Clusters that are compared before others have their turn: where both disks have zeros, none waits.
const AT_ONCE: u64 = 1024;

/// Packs what differs into the file of a task. What was written before it is packed goes at the end.
pub(super) async fn pack(
    to: &Path,
    compression: Compression,
    origin: &mut dyn DiskSource,
    disk: &mut dyn DiskSource,
) -> Result<Packed, DriverError> {
    let temporary = files::temporary(to);
    let packed = async {
        write(&temporary, origin, disk).await?;
        let mut file = FileSource::open(&temporary).await?;
        pack::pack(to, compression, &mut file).await
    };
    let packed = packed.await;
    files::remove(&temporary).await?;
    packed
}

async fn write(
    to: &Path,
    origin: &mut dyn DiskSource,
    disk: &mut dyn DiskSource,
) -> Result<(), DriverError> {
    let failed = |error| files::failed("write", to, error);
    let mut file = Difference::create(to).await.map_err(failed)?;
    let (mut origin, mut disk) = (Clusters::new(origin), Clusters::new(disk));
    let mut room = Room::new(to);
    let (mut cluster, mut size_bytes) = (0_u64, 0_u64);
    loop {
        let own = disk.next().await?;
        if own.length == 0 {
            break;
        }
        let theirs = origin.next().await?.of_length(own.length);
        size_bytes = size_bytes.saturating_add(u64::try_from(own.length).unwrap_or(u64::MAX));
        let own = own.content();
        if own != theirs {
            match &own {
                None => file.zeros(cluster).await.map_err(failed)?,
                Some(bytes) => {
                    room.take(CLUSTER_BYTES)?;
                    file.data(cluster, bytes).await.map_err(failed)?;
                }
            }
        }
        cluster += 1;
        if cluster.is_multiple_of(AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    file.finish(size_bytes).await.map_err(failed)
}

/// A disk cluster by cluster.
struct Clusters<'a> {
    source: &'a mut dyn DiskSource,
    /// What was read and not given yet; of data, from that byte on.
    ready: Option<(DiskBytes, usize)>,
}

/// A cluster; the last one of a disk may be shorter, and behind it they have no length.
#[derive(Debug, Default)]
struct Cluster {
    length: usize,
    /// The first bytes; those behind are zeros.
    data: Vec<u8>,
}

impl Cluster {
    /// What it has in so many bytes.
    fn of_length(mut self, length: usize) -> Option<Vec<u8>> {
        self.data.truncate(length);
        self.length = length;
        self.content()
    }

    /// `None`: only zeros.
    fn content(mut self) -> Option<Vec<u8>> {
        if self.data.iter().all(|byte| *byte == 0) {
            return None;
        }
        self.data.resize(self.length, 0);
        Some(self.data)
    }
}

impl<'a> Clusters<'a> {
    fn new(source: &'a mut dyn DiskSource) -> Self {
        Self { source, ready: None }
    }

    async fn next(&mut self) -> Result<Cluster, DriverError> {
        let mut cluster = Cluster::default();
        while cluster.length < CLUSTER_BYTES {
            let wanted = CLUSTER_BYTES - cluster.length;
            let (bytes, at) = match self.ready.take() {
                Some(ready) => ready,
                None => match self.source.next().await? {
                    Some(bytes) => (bytes, 0),
                    None => break,
                },
            };
            match bytes {
                DiskBytes::Zeros(count) => {
                    let taken = usize::try_from(count).unwrap_or(usize::MAX).min(wanted);
                    cluster.length += taken;
                    let left = count - u64::try_from(taken).unwrap_or(count);
                    self.ready = (left > 0).then_some((DiskBytes::Zeros(left), 0));
                }
                DiskBytes::Data(data) => {
                    let taken = (data.len() - at).min(wanted);
                    cluster.data.resize(cluster.length, 0);
                    cluster.data.extend_from_slice(&data[at..at + taken]);
                    cluster.length += taken;
                    let next = at + taken;
                    self.ready = (next < data.len()).then_some((DiskBytes::Data(data), next));
                }
            }
        }
        Ok(cluster)
    }
}

/// A file as it is, from its first byte to its last.
struct FileSource {
    file: File,
}

impl FileSource {
    async fn open(path: &Path) -> Result<Self, DriverError> {
        let file = File::open(path).await.map_err(|error| files::failed("open", path, error))?;
        Ok(Self { file })
    }
}

#[async_trait]
impl DiskSource for FileSource {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        let mut data = vec![0; MAX_PIECE_BYTES];
        let read = self.file.read(&mut data).await;
        let read = read.map_err(|error| DriverError::failed("read a difference", error))?;
        data.truncate(read);
        Ok((read > 0).then_some(DiskBytes::Data(data)))
    }
}

/// An image that is a file, with what it builds on.
pub(super) struct ContentSource {
    content: Content,
    stretch: Stretch,
}

impl ContentSource {
    pub(super) async fn open(path: &Path) -> Result<Self, DriverError> {
        let content = Content::open_as_it_is(path).await.map_err(failed)?;
        Ok(Self { content, stretch: Stretch::default() })
    }
}

#[async_trait]
impl DiskSource for ContentSource {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        loop {
            if let Some(bytes) = self.stretch.take() {
                return Ok(Some(bytes));
            }
            let piece = self.content.piece(self.stretch.at).await.map_err(failed)?;
            let (size_bytes, offset) = (piece.size_bytes, piece.offset);
            let piece = SnapshotPiece { size_bytes, offset, data: piece.data, next: piece.next };
            if !self.stretch.add(piece)? {
                return Ok(None);
            }
        }
    }
}

fn failed(error: ContentError) -> DriverError {
    DriverError::failed("read an image", error)
}

/// An image that is a volume.
pub(super) struct DeviceSource {
    device: Arc<dyn Device>,
    at: u64,
}

impl DeviceSource {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, at: 0 }
    }
}

#[async_trait]
impl DiskSource for DeviceSource {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        let left = self.device.size_bytes().saturating_sub(self.at);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(MAX_PIECE_BYTES);
        if length == 0 {
            return Ok(None);
        }
        let data = self.device.read(self.at, length).await?;
        self.at = self.at.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        Ok(Some(DiskBytes::Data(data)))
    }
}

/// Gives a volume that is as the origin what a difference says.
pub(super) async fn apply(difference: &Path, to: &dyn Device) -> Result<(), DriverError> {
    let mut content = Content::open_as_it_is(difference).await.map_err(failed)?;
    let zeros = vec![0; MAX_PIECE_BYTES];
    let mut from = 0;
    while let Some(own) = content.own(from).await.map_err(failed)? {
        from = own.offset.saturating_add(own.length);
        match own.data {
            Some(data) => to.write(own.offset, &data).await?,
            None => {
                let mut at = own.offset;
                while at < from {
                    let length = usize::try_from(from - at).unwrap_or(usize::MAX);
                    let length = length.min(zeros.len());
                    to.write(at, &zeros[..length]).await?;
                    at = at.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
                }
            }
        }
    }
    to.sync().await
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

    fn cluster(byte: u8) -> Vec<u8> {
        vec![byte; CLUSTER_BYTES]
    }

    /// The clusters that are in the difference: zeros, or their first and last byte.
    async fn differing(
        origin: Vec<DiskBytes>,
        disk: Vec<DiskBytes>,
    ) -> Vec<(u64, Option<(u8, u8)>)> {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("packed");
        let (mut origin, mut disk) = (Pieces(origin), Pieces(disk));
        pack(&to, Compression::None, &mut origin, &mut disk).await.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the packed file");
        let mut content = Content::open_as_it_is(&to).await.unwrap();
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some(own) = content.own(from).await.unwrap() {
            let ends = own.data.map(|data| (data[0], data[data.len() - 1]));
            found.push((own.offset / u64::try_from(CLUSTER_BYTES).unwrap(), ends));
            from = own.offset + own.length;
        }
        found
    }

    #[tokio::test]
    async fn only_clusters_that_differ_are_in_it() {
        let data = |bytes: Vec<Vec<u8>>| DiskBytes::Data(bytes.concat());
        let size = u64::try_from(CLUSTER_BYTES).unwrap();
        // Same, changed, now zeros, same zeros, and longer than the origin by zeros and by data.
        let origin = vec![data(vec![cluster(1), cluster(2), cluster(3)]), DiskBytes::Zeros(size)];
        let disk = vec![
            data(vec![cluster(1)]),
            data(vec![vec![9], cluster(2)]),
            DiskBytes::Zeros(3 * size - 1),
            data(vec![cluster(4), vec![5; 7]]),
        ];
        let found = differing(origin, disk).await;
        assert_eq!(
            found,
            [(1, Some((9, 2))), (2, Some((2, 0))), (5, Some((4, 4))), (6, Some((5, 5)))]
        );
        let same = || vec![data(vec![cluster(1), vec![2; 9]])];
        assert_eq!(differing(same(), same()).await, []);
        assert_eq!(
            differing(same(), vec![DiskBytes::Zeros(2 * size)]).await,
            [(0, None), (1, None)]
        );
    }
}
