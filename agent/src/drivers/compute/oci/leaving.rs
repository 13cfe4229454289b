//! Ending all containers with their host, beside their agent or without one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SystemClock;
use muster_shared::ids::VmUuid;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::table::Table;
use crate::drivers::DriverError;
use crate::drivers::compute::qemu::Left;
use crate::host::procfs;

/// Time a killed container has to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Asks a container to stop of which nothing else is noted.
const SIGTERM: i32 = 15;

/// The containers that run under one agent's folders.
#[derive(Debug)]
pub struct LeavingContainers {
    table: Arc<Table>,
    _closing: DropGuard,
}

impl LeavingContainers {
    /// Finds them.
    ///
    /// # Errors
    /// The process table can't be read.
    pub fn find(data_dir: &Path, run_dir: &Path) -> Result<Self, DriverError> {
        let boot_id =
            procfs::boot_id().map_err(|error| DriverError::failed("read the boot id", error))?;
        let (clock, closing) = (Arc::new(SystemClock::new()), CancellationToken::new());
        let (data_dir, run_dir) = (data_dir.to_owned(), run_dir.to_owned());
        let table = Table::new(data_dir, run_dir, clock, boot_id, closing.clone());
        table.look()?;
        Ok(Self { table, _closing: closing.drop_guard() })
    }

    /// Those that still run.
    #[must_use]
    pub fn running(&self) -> Vec<VmUuid> {
        self.table.running().into_iter().map(|container| container.vm).collect()
    }

    /// Asks a container to stop and waits for its end; kills it when its time is over. `None`: it is none
    /// of these.
    pub async fn power_down(&self, vm: VmUuid, patience: Duration) -> Option<Left> {
        let process = self.table.get(vm)?;
        let Some(init) = process.ready.map(|ready| ready.init).or(process.monitor) else {
            return Some(Left::ByItself);
        };
        let started = self.table.folder(vm).started().ok().flatten();
        let signal = started.map_or(SIGTERM, |started| started.stop_signal);
        if let Err(error) = init.signal(signal) {
            tracing::warn!(vm_uuid = %vm, %error, "a container can't be asked to stop");
        }
        if tokio::time::timeout(patience, self.table.gone(vm)).await.is_ok() {
            return Some(Left::ByItself);
        }
        if let Err(error) = init.kill() {
            tracing::error!(vm_uuid = %vm, pid = init.pid, %error, "a container can't be killed");
            return Some(Left::Not);
        }
        let gone = tokio::time::timeout(KILL_TIMEOUT, self.table.gone(vm)).await;
        Some(if gone.is_ok() { Left::Killed } else { Left::Not })
    }
}
