//! A guest that runs, as it is known in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::units::MIB;
use tokio::sync::watch;

use super::control::Control;
use super::facts::Vcpus;
use super::qmp::Qmp;
use crate::drivers::compute::{Activity, Live};
use crate::host::ProcessId;

/// No number of devices.
const UNSETTLED: u64 = u64::MAX;

/// A process that runs.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub(super) process: ProcessId,
    pub(super) started_at_ms: u64,
    /// Memory it was given, MiB.
    pub(super) ram_mib: Option<u64>,
    pub(super) started_by: Option<TaskId>,
    /// By this agent, so that it ends with 128 + 9.
    pub(super) killed: bool,
    pub(super) control: watch::Receiver<Control>,
    /// Its virtual CPUs.
    pub(super) vcpus: Arc<Vcpus>,
    /// How many network interfaces it had given up when it had those that it was to have;
    /// [`UNSETTLED`] since somebody changes them.
    pub(super) nics_settled: Arc<AtomicU64>,
    /// The same of its disks.
    pub(super) disks_settled: Arc<AtomicU64>,
}

impl Guest {
    pub(super) fn observed(&self) -> Live {
        let control = self.control.borrow();
        Live {
            pid: self.process.pid,
            started_at_ms: self.started_at_ms,
            booted_at_ms: control.rebooted_at_ms.unwrap_or(self.started_at_ms),
            reboots: control.reboots,
            activity: control.activity,
            reason: control.reason.clone(),
            nics_unsettled: control.nics_removed != self.nics_settled.load(Ordering::Relaxed),
            memory_mib: control.memory_bytes.map(|bytes| bytes / MIB),
            disks_unsettled: control.disks_removed != self.disks_settled.load(Ordering::Relaxed),
        }
    }

    /// What its CPUs do.
    pub(super) fn activity(&self) -> Activity {
        self.control.borrow().activity
    }

    /// How many network interfaces it has given up.
    fn nics_removed(&self) -> u64 {
        self.control.borrow().nics_removed
    }

    /// Notes that it has the network interfaces that it is to have; or that it may not, any more.
    pub(super) fn settle_nics(&self, settled: bool) {
        let removed = if settled { self.nics_removed() } else { UNSETTLED };
        self.nics_settled.store(removed, Ordering::Relaxed);
    }

    /// How many disks it has given up.
    fn disks_removed(&self) -> u64 {
        self.control.borrow().disks_removed
    }

    /// As [`Self::settle_nics`].
    pub(super) fn settle_disks(&self, settled: bool) {
        let removed = if settled { self.disks_removed() } else { UNSETTLED };
        self.disks_settled.store(removed, Ordering::Relaxed);
    }

    /// The connection to its hypervisor, once there is one; or why there is none. One that was given
    /// up a moment ago, and whose follower has not noticed yet, is none.
    pub(super) async fn qmp(&self, patience: Duration) -> Result<Arc<Qmp>, String> {
        let of_use = |qmp: &Arc<Qmp>| !qmp.given_up().is_cancelled();
        let control = self.wait(patience, |control| control.qmp.as_ref().is_some_and(of_use)).await;
        let qmp = control.qmp.filter(of_use);
        qmp.ok_or_else(|| control.reason.as_deref().unwrap_or("it ended").to_owned())
    }

    /// What is known of it once `done`, or when time is over or it has ended.
    pub(super) async fn wait(
        &self,
        patience: Duration,
        done: impl FnMut(&Control) -> bool + Send,
    ) -> Control {
        let mut control = self.control.clone();
        // Out of time, or ended: what is known then is the answer.
        drop(tokio::time::timeout(patience, control.wait_for(done)).await);
        control.borrow().clone()
    }
}
