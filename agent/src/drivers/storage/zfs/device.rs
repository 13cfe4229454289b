//! An opened device, whose content is read and written piece by piece.

use std::fmt;
use std::io::{self, SeekFrom};
use std::path::PathBuf;

use async_trait::async_trait;
use nix::libc;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;

use crate::drivers::zfs::Name;
use crate::drivers::zfs::sim::SimPools;
use crate::drivers::{DriverError, files};

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read.
    Read,
    /// To be written.
    Write,
}

/// A device. As long as it is open, what it belongs to is not destroyed.
#[async_trait]
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// Its size, bytes.
    fn size_bytes(&self) -> u64;

    /// What stands there; the range must lie within the device.
    ///
    /// # Errors
    /// It could not be read.
    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DriverError>;

    /// Writes within the device. What can't be kept after all is told by [`Self::sync`].
    ///
    /// # Errors
    /// `StoreFull`; or it could not be written.
    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), DriverError>;

    /// Makes everything durable that was written to the device.
    ///
    /// # Errors
    /// `StoreFull`, or something could not be written, here or before.
    async fn sync(&self) -> Result<(), DriverError>;
}

/// A block device of this host.
#[derive(Debug)]
pub(super) struct HostDevice {
    path: PathBuf,
    /// One piece at a time: each begins by seeking.
    file: Mutex<File>,
    size_bytes: u64,
}

impl HostDevice {
    /// Opens it; `None` when it is not there.
    pub(super) async fn open(path: PathBuf, access: Access) -> Result<Option<Self>, DriverError> {
        let mut options = OpenOptions::new();
        options.read(access == Access::Read).write(access == Access::Write);
        let mut file = match options.open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
            Err(error) => return Err(files::failed("open", &path, error)),
        };
        // The metadata of a block device do not tell.
        let end = file.seek(SeekFrom::End(0)).await;
        let size_bytes = end.map_err(|error| files::failed("look at the size of", &path, error))?;
        Ok(Some(Self { path, file: Mutex::new(file), size_bytes }))
    }
}

#[async_trait]
impl Device for HostDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DriverError> {
        let mut file = self.file.lock().await;
        let mut data = vec![0; length];
        let read = async {
            file.seek(SeekFrom::Start(offset)).await?;
            file.read_exact(&mut data).await
        };
        read.await.map_err(|error| files::failed("read", &self.path, error))?;
        Ok(data)
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), DriverError> {
        let mut file = self.file.lock().await;
        let write = async {
            file.seek(SeekFrom::Start(offset)).await?;
            file.write_all(data).await?;
            file.flush().await
        };
        write.await.map_err(|error| files::failed("write", &self.path, error))
    }

    async fn sync(&self) -> Result<(), DriverError> {
        let synced = self.file.lock().await.sync_data().await;
        synced.map_err(|error| files::failed("sync", &self.path, error))
    }
}

/// A simulated one.
#[derive(Debug)]
pub(super) struct SimDevice {
    pools: SimPools,
    name: Name,
    size_bytes: u64,
}

impl SimDevice {
    /// Opens it; `None` when it is not there, or can't be seen.
    pub(super) fn open(pools: &SimPools, name: &str) -> Result<Option<Self>, DriverError> {
        let name: Name = name.parse()?;
        let size_bytes = pools.device_bytes(&name);
        Ok(size_bytes.map(|size_bytes| Self { pools: pools.clone(), name, size_bytes }))
    }
}

#[async_trait]
impl Device for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DriverError> {
        Ok(self.pools.read_piece(&self.name, offset, length))
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Result<(), DriverError> {
        self.pools.write_piece(self.name.dataset(), offset, data);
        Ok(())
    }

    async fn sync(&self) -> Result<(), DriverError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file stands in: both are read and written alike.
    #[tokio::test]
    async fn pieces_are_read_where_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0");
        assert!(HostDevice::open(path.clone(), Access::Read).await.unwrap().is_none());
        std::fs::write(&path, [0; 8192]).unwrap();
        let writer = HostDevice::open(path.clone(), Access::Write).await.unwrap().unwrap();
        writer.write(4096, &[7; 512]).await.unwrap();
        writer.sync().await.unwrap();
        let reader = HostDevice::open(path, Access::Read).await.unwrap().unwrap();
        assert_eq!(reader.size_bytes(), 8192);
        let mut wanted = vec![0; 1024];
        wanted[512..].fill(7);
        assert_eq!(reader.read(3584, 1024).await.unwrap(), wanted);
        reader.read(8000, 512).await.unwrap_err();
    }
}
