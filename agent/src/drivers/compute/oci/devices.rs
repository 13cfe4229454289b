//! The devices of a container: network interfaces that stay as they are while it runs, and no disks.

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::Oci;
use crate::drivers::DriverError;
use crate::drivers::compute::{
    GuestDevices, GuestDisks, GuestNic, GuestNics, SnapshotChange, check_info_types, not_running,
};
use crate::drivers::network::{Attached, Nic};
use crate::drivers::storage::{Disk, Role};

fn no_disks(vm: VmUuid) -> DriverError {
    DriverError::refused(Code::NotSupported, format!("VM {vm} is a container and has no disks"))
}

fn fixed(vm: VmUuid) -> DriverError {
    let text = format!("VM {vm} is a container: its network interfaces change when it starts next");
    DriverError::refused(Code::NotSupported, text)
}

#[async_trait]
impl GuestDevices for Oci {
    async fn info(&self, vm: VmUuid, types: &[String]) -> Result<Value, DriverError> {
        check_info_types(types)?;
        let ready = self.containers.ready(vm)?;
        let (cgroups, verdict) = (&ready.cgroups, self.containers.verdict());
        Ok(json!({
            "status": { "running": !cgroups.is_frozen(), "pid": ready.init.pid },
            "runtime": verdict.runtime.map(|runtime| runtime.program),
            "memory": {
                "usage_bytes": cgroups.memory_bytes(), "limit_bytes": cgroups.memory_limit_bytes(),
                "oom_kills": cgroups.oom_kills(),
            },
            "cpu": { "usage_ms": cgroups.cpu_ms() },
            "pids": { "current": cgroups.tasks(), "refused": cgroups.refused_tasks() },
        }))
    }

    /// A runtime knows nothing of them: storage copies what is in the root.
    async fn snapshot(
        &self,
        _vm: VmUuid,
        change: &SnapshotChange,
    ) -> Result<Vec<Role>, DriverError> {
        Ok(change.volumes().to_vec())
    }

    async fn grow_disk(&self, vm: VmUuid, _index: u32, _bytes: u64) -> Result<(), DriverError> {
        Err(no_disks(vm))
    }

    /// Its memory is its limit.
    async fn set_memory(&self, _vm: VmUuid, _ram_mib: u64) -> Result<(), DriverError> {
        Ok(())
    }

    async fn disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError> {
        Ok(self.containers.get(vm).map(|_| GuestDisks::default()))
    }

    async fn plug_disk(
        &self,
        vm: VmUuid,
        _disk: &Disk,
        _described: &Value,
    ) -> Result<(), DriverError> {
        Err(no_disks(vm))
    }

    async fn unplug_disk(&self, _vm: VmUuid, _number: u32) -> Result<(), DriverError> {
        Ok(())
    }

    fn settle_disks(&self, _vm: VmUuid) {}

    async fn nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError> {
        if self.containers.get(vm).is_none() {
            return Ok(None);
        }
        let started = self.containers.folder(vm).started();
        let started = started
            .map_err(|error| DriverError::failed(format!("read how VM {vm} was started"), error))?;
        let nics = started.map(|started| started.nics).unwrap_or_default();
        let nic = |(number, mac)| GuestNic { number, mac, removable: false };
        Ok(Some(GuestNics { present: nics.into_iter().map(nic).collect(), ..GuestNics::default() }))
    }

    async fn plug_nic(&self, vm: VmUuid, _nic: &Attached) -> Result<(), DriverError> {
        Err(fixed(vm))
    }

    async fn unplug_nic(&self, vm: VmUuid, _nic: &GuestNic) -> Result<(), DriverError> {
        Err(fixed(vm))
    }

    async fn set_link(&self, vm: VmUuid, _nic: &Nic) -> Result<(), DriverError> {
        match self.containers.get(vm) {
            // Its end is switched when its NICs are attached.
            Some(_) => Ok(()),
            None => Err(not_running(vm)),
        }
    }

    fn settle_nics(&self, _vm: VmUuid) {}
}
