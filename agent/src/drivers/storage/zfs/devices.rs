//! The block devices of volumes. ZFS makes them, and udev their names, some time after the volume.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::arrival::Arrival;
use super::device::{Access, Device, HostDevice, SimDevice};
use crate::drivers::storage::{lock, store_full};
use crate::drivers::zfs::sim::SimPools;
use crate::drivers::{DriverError, files};
use crate::host::{Command, SharedExec, zvol};

/// Where the names are.
const FOLDER: &str = "/dev/zvol";
/// From the volume to its device and name; a host that needs longer is broken.
const PATIENCE: Duration = Duration::from_secs(30);
/// To read which volume a device is.
const LOOK: Duration = Duration::from_secs(10);
/// How many are looked at at a time: a pool that does not answer keeps a thread for each.
const LOOKS: usize = 16;
/// Writing a whole image; slower than this is a broken disk.
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);

/// What a volume is filled from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// A file or block device.
    pub path: &'a Path,
    /// As QEMU names it.
    pub format: &'a str,
}

/// Devices of volumes, by the names of these.
#[async_trait]
pub trait Devices: fmt::Debug + Send + Sync + 'static {
    /// Where a volume's device is, whether or not it is there.
    fn path(&self, volume: &str) -> PathBuf;

    /// Waits until a volume's device is there under its name, and is this volume.
    ///
    /// # Errors
    /// It did not come.
    async fn wait(&self, volume: &str) -> Result<(), DriverError>;

    /// Whether a process has a volume open, or the kernel uses it. A volume without a device is not.
    ///
    /// # Errors
    /// The host could not be read.
    fn is_held(&self, volume: &str) -> Result<bool, DriverError>;

    /// Writes a fresh volume's content; durable when it returns.
    ///
    /// # Errors
    /// `StoreFull`; or it could not be written.
    async fn fill(
        &self,
        volume: &str,
        source: Source<'_>,
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError>;

    /// Opens the device of a volume, or of a snapshot; `None` when it is not there.
    ///
    /// # Errors
    /// The host could not be read.
    async fn open(
        &self,
        name: &str,
        access: Access,
    ) -> Result<Option<Arc<dyn Device>>, DriverError>;
}

/// Those of this host.
#[derive(Debug)]
pub struct HostDevices {
    exec: SharedExec,
    looks: Arc<Semaphore>,
}

impl HostDevices {
    /// They are filled through `exec`.
    #[must_use]
    pub fn new(exec: SharedExec) -> Self {
        Self { exec, looks: Arc::new(Semaphore::new(LOOKS)) }
    }

    /// Whether the device under a volume's name is that volume: a name outlives a volume that was
    /// renamed until udev hears of it.
    #[expect(clippy::disallowed_methods, reason = "a device of a pool that hangs keeps its thread")]
    async fn is_volume(&self, path: &Path, volume: &str) -> Result<bool, DriverError> {
        let failed = |error| files::failed("look at", path, error);
        let device = path.to_owned();
        let look = async {
            let place = Arc::clone(&self.looks).acquire_owned().await;
            let look = move || {
                let name = zvol::name(&device);
                drop(place);
                name
            };
            tokio::task::spawn_blocking(look).await.map_err(io::Error::from)?
        };
        match tokio::time::timeout(LOOK, look).await {
            Ok(name) => Ok(name.map_err(failed)?.is_some_and(|name| name == volume)),
            Err(late) => Err(failed(late.into())),
        }
    }
}

#[async_trait]
impl Devices for HostDevices {
    fn path(&self, volume: &str) -> PathBuf {
        Path::new(FOLDER).join(volume)
    }

    async fn wait(&self, volume: &str) -> Result<(), DriverError> {
        let path = self.path(volume);
        let appears = async {
            let mut arrival = Arrival::default();
            loop {
                // In this order: what comes after the look is told.
                arrival.watch_for(&path);
                if self.is_volume(&path, volume).await? {
                    return Ok(());
                }
                arrival.news().await;
            }
        };
        match tokio::time::timeout(PATIENCE, appears).await {
            Ok(appeared) => appeared,
            Err(late) => Err(files::failed("wait for the device", &path, late.into())),
        }
    }

    fn is_held(&self, volume: &str) -> Result<bool, DriverError> {
        let path = self.path(volume);
        lock::is_device_held(&path).map_err(|error| files::failed("look at", &path, error))
    }

    async fn fill(
        &self,
        volume: &str,
        source: Source<'_>,
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        self.wait(volume).await?;
        let path = self.path(volume);
        // Only what is not zero is written, and flushed at the end.
        let options = "convert -q -n --target-is-zero -t writeback -O raw -f";
        let argv = ["qemu-img"].into_iter().chain(options.split(' ')).map(str::to_owned);
        let files = [source.path, &path].map(|file| file.display().to_string());
        let argv = argv.chain([source.format.to_owned()]).chain(files);
        let ran = self.exec.run(&Command::new(argv, FILL_TIMEOUT), cancelled).await;
        match ran.and_then(|output| output.checked("qemu-img convert")) {
            Ok(_) => Ok(()),
            Err(error) if error.to_string().contains("No space left on device") => {
                Err(store_full(format!("no space left to fill {volume}")))
            }
            Err(error) => Err(DriverError::failed(format!("fill {volume}"), error)),
        }
    }

    async fn open(
        &self,
        name: &str,
        access: Access,
    ) -> Result<Option<Arc<dyn Device>>, DriverError> {
        let path = self.path(name);
        if !self.is_volume(&path, name).await? {
            return Ok(None);
        }
        let opened = HostDevice::open(path, access).await?;
        Ok(opened.map(|device| Arc::new(device) as _))
    }
}

/// Those of simulated pools: there as soon as their volumes are. What [fills](Devices::fill) them is
/// forgotten.
#[derive(Debug)]
pub struct SimDevices {
    pools: SimPools,
    held: Mutex<Vec<String>>,
}

impl SimDevices {
    /// Those of the volumes in these pools.
    #[must_use]
    pub fn new(pools: SimPools) -> Self {
        Self { pools, held: Mutex::default() }
    }

    /// From now on a process has this volume open.
    pub fn hold(&self, volume: &str) {
        self.held.lock().push(volume.to_owned());
    }

    /// Nobody has anything open any more.
    pub fn release(&self) {
        self.held.lock().clear();
    }
}

#[async_trait]
impl Devices for SimDevices {
    fn path(&self, volume: &str) -> PathBuf {
        Path::new("/sim/zvol").join(volume)
    }

    async fn wait(&self, _volume: &str) -> Result<(), DriverError> {
        Ok(())
    }

    fn is_held(&self, volume: &str) -> Result<bool, DriverError> {
        Ok(self.held.lock().iter().any(|held| held == volume))
    }

    async fn fill(
        &self,
        _volume: &str,
        _source: Source<'_>,
        _cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        Ok(())
    }
    async fn open(
        &self,
        name: &str,
        _access: Access,
    ) -> Result<Option<Arc<dyn Device>>, DriverError> {
        let opened = SimDevice::open(&self.pools, name)?;
        Ok(opened.map(|device| Arc::new(device) as _))
    }
}
