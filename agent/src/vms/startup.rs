//! What an agent does about its VMs when it starts: find the guests that outlived its
//! predecessor, and name the tasks that are due (autoboot after a boot of the host, destroys that
//! were cut off). And what it does from then on: notice guests that end by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Entry, VmRecord};
use crate::drivers::{DriverError, Drivers};

/// A task for the agent's own engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Chore {
    /// The VM.
    pub vm: VmUuid,
    /// The kind.
    pub task: &'static str,
    /// Its parameters.
    pub params: Map<String, Value>,
}

/// Loads all records and finds the guests that run. Those without a record are left running and
/// reported, see [`super::VmTable::orphans`].
///
/// # Errors
/// The records could not be read.
pub async fn find(drivers: &Drivers) -> Result<(), DriverError> {
    drivers.vms.load().await?;
    drivers.vms.observe_all(drivers.compute.as_ref()).await;
    Ok(())
}

/// Mends the records that an earlier agent left half changed, and says which tasks are due. VMs
/// in `busy` belong to tasks that go on by themselves. Call after [`find`] and after the journal
/// was recovered.
pub async fn chores(drivers: &Drivers, busy: &BTreeSet<VmUuid>) -> Vec<Chore> {
    let entries = drivers.vms.entries();
    let mut idle: Vec<&Entry> =
        entries.iter().filter(|entry| !busy.contains(&entry.record.uuid)).collect();
    for entry in &idle {
        mend(drivers, &entry.record).await;
    }
    idle.sort_by_key(|entry| priority(&entry.record));
    let boot_id = drivers.vms.boot_id();
    let due = |entry: &Entry| Some(chore(due(entry, boot_id)?, &entry.record));
    idle.into_iter().filter_map(due).collect()
}

/// Whether what was due still is.
#[must_use]
pub fn is_due(drivers: &Drivers, chore: &Chore) -> bool {
    let entry = drivers.vms.entry(chore.vm);
    entry.is_some_and(|entry| due(&entry, drivers.vms.boot_id()) == Some(chore.task))
}

/// The task that a VM needs without anybody asking for it.
fn due(entry: &Entry, boot_id: &str) -> Option<&'static str> {
    if entry.record.destroying {
        Some("machine_destroy")
    } else if wants_boot(entry, boot_id) {
        Some("machine_boot")
    } else {
        None
    }
}

/// Follows the guests until cancelled: one that ends or starts is seen at once.
pub async fn watch(drivers: Arc<Drivers>, cancelled: CancellationToken) {
    let mut changes = drivers.compute.changes();
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

/// A VM that is to start with the host, and has not been considered in this boot.
fn wants_boot(entry: &Entry, boot_id: &str) -> bool {
    let record = &entry.record;
    record.flag("autoboot")
        && !entry.observed.is_running()
        && !record.provisioning
        && !record.failed
        && record.boot_id.as_deref() != Some(boot_id)
}

/// By the configured priority, then by age.
fn priority(record: &VmRecord) -> (i64, String) {
    let created = record.text("create_timestamp").unwrap_or_default().to_owned();
    (record.boot_priority(), created)
}

fn chore(task: &'static str, record: &VmRecord) -> Chore {
    let mut params = Map::new();
    params.insert("uuid".to_owned(), json!(record.uuid));
    params.insert("idempotent".to_owned(), json!(true));
    params.insert("include_dni".to_owned(), json!(true));
    Chore { vm: record.uuid, task, params }
}

/// No task works on this VM: nothing is under way any more.
async fn mend(drivers: &Drivers, record: &VmRecord) {
    let boot_id = drivers.vms.boot_id().to_owned();
    let mend = |record: &mut VmRecord| {
        record.stopping_until = None;
        if record.provisioning {
            // Its task is lost. What it made stays, for a destroy to find.
            record.provisioning = false;
            record.failed = true;
        }
        if !record.flag("autoboot") {
            record.boot_id = Some(boot_id);
        }
    };
    if let Err(error) = drivers.vms.update(record.uuid, mend).await {
        tracing::warn!(vm_uuid = %record.uuid, error = %Chain(&error), "cannot mend a record");
    }
}
