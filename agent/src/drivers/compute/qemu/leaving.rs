//! Ending all guests with their host, beside their agent or without one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::ids::VmUuid;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::guest::Guest;
use super::qmp;
use super::table::{Follower, GuestTable, TableConfig};
use crate::drivers::DriverError;
use crate::drivers::compute::Activity;
use crate::host::procfs;

/// A guest that is still booting misses its power button, so it is pressed again.
const BUTTON_AGAIN: Duration = Duration::from_secs(30);
/// Time a killed process has to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a hypervisor has to take a command.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// In the run folder, see [`Marker`].
const MARKER: &str = "leaving";
/// The host ends the agent at the latest this long after its last guest.
const LINGER: Duration = Duration::from_secs(120);

/// How a guest left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It shut down.
    ByItself,
    /// Its time was over.
    Killed,
    /// Not even then.
    Not,
}

/// The guests that run under one agent's folders.
#[derive(Debug)]
pub struct Leaving {
    table: Arc<GuestTable>,
    _marker: Marker,
    _closing: DropGuard,
}

/// Says that the guests are leaving: locked as long as they do. The file's time is that of the end,
/// so that it holds for the while that the host has left.
#[derive(Debug)]
struct Marker(File);

impl Marker {
    fn set(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join(MARKER);
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(Self(file))
    }
}

impl Drop for Marker {
    #[expect(clippy::disallowed_methods, reason = "a file's time is the kernel's wall clock")]
    fn drop(&mut self) {
        if let Err(error) = self.0.set_modified(SystemTime::now()) {
            tracing::warn!(%error, "guests may be started again while the host goes down");
        }
    }
}

/// Whether the guests are leaving, or have left a moment ago.
pub(super) fn is_under_way(run_dir: &Path) -> bool {
    let Ok(file) = File::open(run_dir.join(MARKER)) else { return false };
    let age = file.metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
    let fresh = age.is_ok_and(|age| age.is_ok_and(|age| age < LINGER));
    fresh || file.try_lock_shared().is_err()
}

impl Leaving {
    /// Finds them.
    ///
    /// # Errors
    /// The process table can't be read.
    pub fn find(data_dir: &Path, run_dir: &Path) -> Result<Self, DriverError> {
        let clock: SharedClock = Arc::new(SystemClock::new());
        let boot_id =
            procfs::boot_id().map_err(|error| DriverError::failed("read the boot id", error))?;
        let config = TableConfig {
            data_dir: PathBuf::from(data_dir),
            run_dir: PathBuf::from(run_dir),
            follower: Follower::Helper,
        };
        let closing = CancellationToken::new();
        let table = GuestTable::new(config, clock, boot_id, closing.clone());
        table.look()?;
        let marker = Marker::set(run_dir);
        let marker = marker.map_err(|error| DriverError::failed("say that guests leave", error))?;
        Ok(Self { table, _marker: marker, _closing: closing.drop_guard() })
    }

    /// Those that still run.
    #[must_use]
    pub fn running(&self) -> Vec<VmUuid> {
        self.table.running().into_iter().map(|guest| guest.vm).collect()
    }

    /// Presses a guest's power button and waits for its end; kills it when its time is over.
    pub async fn power_down(&self, vm: VmUuid, patience: Duration) -> Left {
        let asked = async {
            loop {
                let Some(guest) = self.table.get(vm) else { return };
                if let Err(why) = press(&guest).await {
                    tracing::warn!(vm_uuid = %vm, why, "a guest can't be asked to shut down");
                }
                if tokio::time::timeout(BUTTON_AGAIN, self.table.gone(vm)).await.is_ok() {
                    return;
                }
            }
        };
        if tokio::time::timeout(patience, asked).await.is_ok() {
            return Left::ByItself;
        }
        let Some(process) = self.table.to_kill(vm) else { return Left::ByItself };
        if let Err(error) = process.kill() {
            tracing::error!(vm_uuid = %vm, pid = process.pid, %error, "a guest can't be killed");
            return Left::Not;
        }
        let gone = tokio::time::timeout(KILL_TIMEOUT, self.table.gone(vm)).await;
        if gone.is_ok() { Left::Killed } else { Left::Not }
    }
}

async fn press(guest: &Guest) -> Result<(), String> {
    let qmp = guest.qmp(CONTROL_TIMEOUT).await?;
    let asked = async {
        // CPUs that stand still see no button.
        if guest.activity() == Activity::Paused {
            qmp.execute::<qmp::Cont>().await?;
        }
        qmp.execute::<qmp::PowerDown>().await
    };
    asked.await.map(drop).map_err(|error| muster_shared::error_chain::Chain(&error).to_string())
}
