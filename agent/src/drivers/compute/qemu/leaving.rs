//! Ending all guests with their host, beside their agent or without one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::ids::VmUuid;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::qmp;
use super::table::{Follower, Guest, GuestTable, TableConfig};
use crate::drivers::DriverError;
use crate::drivers::compute::Activity;
use crate::host::procfs;

/// A guest that is still booting misses its power button, so it is pressed again.
const BUTTON_AGAIN: Duration = Duration::from_secs(30);
/// Time a killed process has to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a hypervisor has to take a command.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

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
    _closing: DropGuard,
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
        Ok(Self { table, _closing: closing.drop_guard() })
    }

    /// Those that still run.
    #[must_use]
    pub fn running(&self) -> Vec<VmUuid> {
        self.table.running()
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
    let told = async {
        // CPUs that stand still see no button.
        if guest.activity() == Activity::Paused {
            qmp.execute::<qmp::Cont>().await?;
        }
        qmp.execute::<qmp::PowerDown>().await
    };
    told.await.map(drop).map_err(|error| muster_shared::error_chain::Chain(&error).to_string())
}
