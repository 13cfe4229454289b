//! One at a time works on a root: a copy that was given up may take a moment to stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// The turns at the roots of VMs.
#[derive(Debug, Default)]
pub(super) struct RootTurns(Mutex<BTreeMap<VmUuid, Arc<tokio::sync::Mutex<()>>>>);

impl RootTurns {
    /// Waits for the turn; it ends when it is dropped. Whoever renames as well takes it before the lock
    /// of those: a copy that takes its time to stop would hold up all who wait for that.
    pub(super) async fn take(&self, vm: VmUuid) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(self.0.lock().entry(vm).or_default());
        turn.lock_owned().await
    }

    /// The VM is gone. Whoever waits for its turn still gets it.
    pub(super) fn forget(&self, vm: VmUuid) {
        self.0.lock().remove(&vm);
    }
}
