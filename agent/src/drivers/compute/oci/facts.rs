//! What a container uses, as the kernel counts it.

use std::io;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use muster_shared::wire::usage::{DiskUsage, VmUsage};
use serde_json::{Map, Value, json};

use super::Oci;
use crate::drivers::DriverError;
use crate::drivers::compute::GuestFacts;
use crate::host::idmap::{IdRange, NOBODY};
use crate::host::procfs;

#[async_trait]
impl GuestFacts for Oci {
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
        let Some(container) = self.containers.get(vm) else { return Ok(None) };
        let cgroups = container.ready.as_ref().map(|ready| &ready.cgroups);
        Ok(Some(VmUsage {
            at_ms: self.containers.now_ms(),
            started_at_ms: container.started_at_ms,
            booted_at_ms: container.started_at_ms,
            cpu_ms: cgroups.and_then(|cgroups| cgroups.cpu_ms()),
            rss_bytes: cgroups.and_then(|cgroups| cgroups.memory_bytes()),
            ..VmUsage::default()
        }))
    }

    async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError> {
        let blocks = self.containers.ready(vm)?.cgroups.blocks().ok_or_else(|| {
            let text = format!("what VM {vm} does to disks is not counted on this host");
            DriverError::refused(Code::NotSupported, text)
        })?;
        Ok(DiskUsage {
            at_ms: self.containers.now_ms(),
            read_bytes: blocks.read_bytes,
            written_bytes: blocks.written_bytes,
            reads: blocks.reads,
            writes: blocks.writes,
            ..DiskUsage::default()
        })
    }

    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
        let ready = self.containers.ready(vm)?;
        let failed = |error| DriverError::failed(format!("read the processes of VM {vm}"), error);
        let started = self.containers.folder(vm).started().map_err(failed)?;
        let ids = started.and_then(|started| started.ids);
        let mut processes = Map::new();
        for pid in ready.cgroups.members().map_err(failed)? {
            // By the pid that it has in its container.
            if let Some((inside, process)) = process(pid, ids).map_err(failed)? {
                processes.insert(inside.to_string(), process);
            }
        }
        Ok(Value::Object(processes))
    }
}

fn process(pid: u32, ids: Option<IdRange>) -> io::Result<Option<(u32, Value)>> {
    let Some(status) = procfs::status(pid)? else { return Ok(None) };
    let argv = procfs::cmdline(pid)?.unwrap_or_default();
    let program = argv.first().map(std::path::Path::new);
    let name = program.and_then(|program| program.file_name()?.to_str()).unwrap_or_default();
    let inside = procfs::innermost_pid(pid)?.unwrap_or(pid);
    // As it knows them itself.
    let own = |id: u64| match ids {
        Some(ids) => u32::try_from(id).map_or(NOBODY, |id| ids.inside(id)).into(),
        None => id,
    };
    let psinfo = json!({
        "pr_pid": inside, "pr_ppid": status.parent, "pr_uid": own(status.uid),
        "pr_euid": own(status.effective_uid), "pr_gid": own(status.gid),
        "pr_egid": own(status.effective_gid),
        "pr_fname": name, "pr_psargs": argv.join(" "), "pr_size": status.size_kib,
        "pr_rssize": status.resident_kib, "pr_nlwp": status.threads,
    });
    Ok(Some((inside, json!({ "psinfo": psinfo }))))
}
