//! What an agent does about its VMs when it starts: find the guests that outlived its predecessor,
//! and mend the records that it left half changed. And what it does from then on: notice guests that
//! end by themselves. What they need is in [`crate::vms::reconcile`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use tokio_util::sync::CancellationToken;

use super::Drivers;
use crate::drivers::DriverError;
use crate::vms::restart::Power;
use crate::vms::{StorageState, VmRecord, volumes};

/// Longest wait for the disks of one VM.
const DISKS_TIMEOUT: Duration = Duration::from_secs(10);

/// Loads all records and finds the guests that run. Those without a record are left running and
/// reported, see [`crate::vms::VmTable::orphans`].
///
/// # Errors
/// The records could not be read.
pub async fn find(drivers: &Drivers) -> Result<(), DriverError> {
    drivers.vms.load().await?;
    drivers.vms.observe_all(drivers.compute.as_ref()).await;
    Ok(())
}

/// Mends the records that an earlier agent left half changed. VMs in `busy` belong to tasks that go
/// on by themselves. Call after [`find`] and after the journal was recovered.
pub async fn mend(drivers: &Drivers, busy: &BTreeSet<VmUuid>) {
    for entry in drivers.vms.entries() {
        if !busy.contains(&entry.record.uuid) {
            mend_one(drivers, &entry.record).await;
            note_volumes(drivers, entry.record.uuid).await;
        }
    }
}

/// Follows the guests until cancelled: one that ends or starts is seen at once.
pub async fn watch(drivers: Arc<Drivers>, cancelled: CancellationToken) {
    let mut changes = drivers.compute.changes();
    // Since they were looked for, something may have happened.
    changes.mark_changed();
    loop {
        let changed = tokio::select! {
            biased;
            () = cancelled.cancelled() => return,
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        drivers.vms.observe_all(drivers.compute.as_ref()).await;
    }
}

/// No task works on this VM: nothing is under way any more.
async fn mend_one(drivers: &Drivers, record: &VmRecord) {
    let boot_id = drivers.vms.boot_id().to_owned();
    let mend = |record: &mut VmRecord| {
        record.stopping_until = None;
        // An import goes on when its client comes back.
        if record.provisioning && record.importing.is_none() {
            // Its task is lost. What it made stays, for a destroy to find.
            record.provisioning = false;
            record.failed = true;
        }
        if !record.flag("autoboot") && record.boot_id.as_ref() != Some(&boot_id) {
            // Not to start with the host, whatever it did before.
            record.boot_id = Some(boot_id);
            record.power = Power::Unknown;
            record.start_when_rolled_back = false;
        }
    };
    if let Err(error) = drivers.vms.update(record.uuid, mend).await {
        tracing::warn!(vm_uuid = %record.uuid, error = %Chain(&error), "cannot mend a record");
    }
}

/// Tells a record that is older than volumes what its disks are known by. While that can't be told
/// the VM starts with whatever disks bear its name, as before.
pub async fn note_volumes(drivers: &Drivers, vm: VmUuid) {
    let is_older = |record: &VmRecord| {
        record.storage == StorageState::Complete && volumes::are_unknown(record)
    };
    if !drivers.vms.get(vm).is_some_and(|record| is_older(&record)) {
        return;
    }
    let problem = match tokio::time::timeout(DISKS_TIMEOUT, drivers.storage.disks(vm)).await {
        Ok(Ok(disks)) => {
            let note = |record: &mut VmRecord| record.volumes = Some(volumes::of(&disks));
            match drivers.vms.update(vm, note).await {
                Ok(_) => return,
                Err(error) => Chain(&error).to_string(),
            }
        }
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => format!("the storage took longer than {} s", DISKS_TIMEOUT.as_secs()),
    };
    tracing::warn!(vm_uuid = %vm, problem, "the record of a VM does not know its volumes yet");
}
