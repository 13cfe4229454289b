//! What is done to a guest while it runs: snapshots of its disks, larger disks, and its process as a
//! list.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use serde::Serialize;
use serde_json::{Value, json};

use super::qmp::{Qmp, QmpError, QueryBlock};
use super::{Qemu, drives, firmware, talk_failed};
use crate::drivers::DriverError;
use crate::drivers::compute::SnapshotChange;
use crate::drivers::storage::Role;
use crate::host::procfs;

/// What the guest has written is flushed first.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);

/// A larger disk is a longer table in its file.
const GROW_TIMEOUT: Duration = Duration::from_secs(60);

/// Several changes that are made at one moment, or not at all.
#[derive(Debug, Serialize)]
struct Transaction {
    actions: Vec<Value>,
}

impl qapi::Command for Transaction {
    type Ok = Value;
    const NAME: &'static str = "transaction";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for Transaction {}

/// Deletes a snapshot inside a disk.
#[derive(Debug, Serialize)]
struct DeleteSnapshot {
    device: String,
    name: String,
}

impl qapi::Command for DeleteSnapshot {
    type Ok = Value;
    const NAME: &'static str = "blockdev-snapshot-delete-internal-sync";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for DeleteSnapshot {}

/// Gives a disk another size.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Resize {
    node_name: String,
    size: u64,
}

impl qapi::Command for Resize {
    type Ok = Value;
    const NAME: &'static str = "block_resize";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for Resize {}

impl Qemu {
    /// Returns the volumes that the guest does not have open: all of one that does not run.
    pub(super) async fn change_snapshot(
        &self,
        vm: VmUuid,
        change: &SnapshotChange,
    ) -> Result<Vec<Role>, DriverError> {
        let all = change.volumes();
        let Some(process) = self.guests.live(vm) else { return Ok(all.to_vec()) };
        let failed = |error| DriverError::failed(format!("read the process of VM {vm}"), error);
        let argv = procfs::cmdline(process.pid).map_err(failed)?.unwrap_or_default();
        let qmp = self.guests.qmp(vm).await?;
        let backends = match qmp.execute::<QueryBlock>().await {
            Ok(backends) => backends,
            // It ended meanwhile.
            Err(_) if self.guests.live(vm).is_none() => return Ok(all.to_vec()),
            Err(error) => return Err(talk_failed(vm, error)),
        };
        // The guest may get a disk only when it starts next; one that holds no snapshots itself has them
        // from its storage, whoever has it open.
        let is_open = |volume: &Role| match volume {
            Role::Firmware => firmware::is_open_in(&argv),
            Role::Disk(_) => inserted(&backends, &node(*volume)).is_some_and(|disk| !is_raw(disk)),
            Role::Root => false,
        };
        let (open, left): (Vec<Role>, Vec<Role>) = all.iter().copied().partition(is_open);
        if open.is_empty() {
            return Ok(left);
        }
        let changed = match change {
            SnapshotChange::Create { name, .. } => create(&qmp, &open, name).await,
            SnapshotChange::Delete { name, .. } => delete(&qmp, &open, name).await,
        };
        match changed {
            Ok(()) => Ok(left),
            // It ended meanwhile.
            Err(_) if self.guests.live(vm).is_none() => Ok(all.to_vec()),
            Err(error) => Err(talk_failed(vm, error)),
        }
    }

    /// The guest's process, as `machine_proc` tells it.
    pub(super) fn process_list(&self, vm: VmUuid) -> Result<Value, DriverError> {
        let Some(process) = self.guests.live(vm) else {
            return Err(super::not_running(vm));
        };
        let failed = |error| DriverError::failed(format!("read the process of VM {vm}"), error);
        let pid = process.pid;
        let argv = procfs::cmdline(pid).map_err(failed)?.unwrap_or_default();
        let status = procfs::status(pid).map_err(failed)?.unwrap_or_default();
        let program = argv.first().map(Path::new);
        let name = program.and_then(|program| program.file_name()?.to_str()).unwrap_or_default();
        let psinfo = json!({
            "pr_pid": pid, "pr_ppid": status.parent, "pr_uid": status.uid,
            "pr_euid": status.effective_uid, "pr_gid": status.gid,
            "pr_egid": status.effective_gid, "pr_fname": name, "pr_psargs": argv.join(" "),
            "pr_size": status.size_kib, "pr_rssize": status.resident_kib,
            "pr_nlwp": status.threads,
        });
        let mut processes = serde_json::Map::new();
        processes.insert(pid.to_string(), json!({ "psinfo": psinfo }));
        Ok(Value::Object(processes))
    }
}

/// Names as on the command line, see [`super::argv`].
fn node(volume: Role) -> String {
    match volume {
        Role::Firmware => firmware::VARIABLES_NODE.to_owned(),
        Role::Disk(index) => drives::node_name(index),
        // No hardware VM has one.
        Role::Root => "root".to_owned(),
    }
}

/// The hypervisor makes the file larger itself, as long as it has it open. A disk never shrinks.
pub(super) async fn grow(qmp: &Arc<Qmp>, index: u32, size_bytes: u64) -> Result<(), QmpError> {
    let backends = qmp.execute::<QueryBlock>().await?;
    let node_name = node(Role::Disk(index));
    // The guest gets it when it starts next.
    let Some(disk) = inserted(&backends, &node_name) else { return Ok(()) };
    let now = disk["image"]["virtual-size"].as_u64();
    // A device has been made larger, but who has it open has to be told.
    if !is_raw(disk) && now.is_none_or(|now| now >= size_bytes) {
        return Ok(());
    }
    let size = now.unwrap_or(0).max(size_bytes);
    qmp.send(Resize { node_name, size }, GROW_TIMEOUT).await.map(drop)
}

/// What the hypervisor says of a node that a device has.
fn inserted<'a>(backends: &'a Value, node_name: &str) -> Option<&'a Value> {
    let mut inserted = backends.as_array()?.iter().map(|backend| &backend["inserted"]);
    inserted.find(|inserted| inserted["node-name"] == node_name)
}

fn is_raw(disk: &Value) -> bool {
    disk["drv"] == "raw"
}

async fn create(qmp: &Arc<Qmp>, of: &[Role], name: &str) -> Result<(), QmpError> {
    let action = |volume: &Role| {
        json!({
            "type": "blockdev-snapshot-internal-sync",
            "data": { "device": node(*volume), "name": name },
        })
    };
    let actions = of.iter().map(action).collect();
    qmp.send(Transaction { actions }, SNAPSHOT_TIMEOUT).await?;
    Ok(())
}

async fn delete(qmp: &Arc<Qmp>, from: &[Role], name: &str) -> Result<(), QmpError> {
    for volume in from {
        let command = DeleteSnapshot { device: node(*volume), name: name.to_owned() };
        qmp.send(command, SNAPSHOT_TIMEOUT).await?;
    }
    Ok(())
}
