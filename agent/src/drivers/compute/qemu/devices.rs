//! What the hypervisor tells of a guest's devices.

use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use serde_json::{Map, Value, json};

use super::qmp::{self, Qmp, QmpError};
use super::{Qemu, link, live, not_running, talk_failed, vnc};
use crate::drivers::DriverError;
use crate::drivers::compute::{
    GuestDevices, GuestDisks, GuestNic, GuestNics, INFO_TYPES, SnapshotChange, check_info_types,
};
use crate::drivers::network::{Attached, Nic};
use crate::drivers::storage::{Disk, Role};

/// Port of display 0, by convention.
const FIRST_VNC_PORT: i32 = 5900;

#[async_trait]
impl GuestDevices for Qemu {
    async fn info(&self, vm: VmUuid, types: &[String]) -> Result<Value, DriverError> {
        check_info_types(types)?;
        let qmp = self.guests.qmp(vm).await?;
        let all = types.iter().any(|wanted| wanted == "all");
        let mut info = Map::new();
        for &kind in INFO_TYPES.iter().filter(|kind| **kind != "all") {
            if !all && !types.iter().any(|wanted| wanted == kind) {
                continue;
            }
            match ask(&qmp, kind).await {
                Ok(Some(answer)) => drop(info.insert(kind.to_owned(), answer)),
                // Not in this hypervisor; told only to who asked for it.
                Ok(None) | Err(QmpError::Refused { .. }) if all => {}
                Ok(None) => drop(info.insert(kind.to_owned(), json!({ "enabled": false }))),
                Err(error) => return Err(talk_failed(vm, error)),
            }
        }
        if let Some(display) = info.get_mut("vnc") {
            let socket = self.guests.folder(vm).vnc();
            display["path"] = json!(socket);
            let process = self.guests.live(vm).ok_or_else(|| not_running(vm))?;
            if !all && display["enabled"] == true && vnc::asks(display) {
                let address = self.displays.open(vm, socket, process).await?;
                display["host"] = json!(address.ip());
                display["port"] = json!(address.port());
                display["display"] = json!(i32::from(address.port()) - FIRST_VNC_PORT);
            }
        }
        Ok(Value::Object(info))
    }

    async fn snapshot(
        &self,
        vm: VmUuid,
        change: &SnapshotChange,
    ) -> Result<Vec<Role>, DriverError> {
        self.change_snapshot(vm, change).await
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_bytes: u64) -> Result<(), DriverError> {
        if self.guests.live(vm).is_none() {
            return Ok(());
        }
        let qmp = self.guests.qmp(vm).await?;
        match live::grow(&qmp, index, size_bytes).await {
            Err(error) if self.guests.live(vm).is_some() => Err(talk_failed(vm, error)),
            // It ended meanwhile.
            _ => Ok(()),
        }
    }

    async fn set_memory(&self, vm: VmUuid, ram_mib: u64) -> Result<(), DriverError> {
        self.inflate(vm, ram_mib).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError> {
        self.guest_disks(vm).await
    }

    async fn plug_disk(
        &self,
        vm: VmUuid,
        disk: &Disk,
        described: &Value,
    ) -> Result<(), DriverError> {
        self.plug_in(vm, disk, described).await
    }

    async fn unplug_disk(&self, vm: VmUuid, number: u32) -> Result<(), DriverError> {
        self.pull_out(vm, number).await
    }

    fn settle_disks(&self, vm: VmUuid) {
        self.guests.settle_disks(vm, true);
    }

    async fn nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError> {
        self.guest_nics(vm).await
    }

    async fn plug_nic(&self, vm: VmUuid, nic: &Attached) -> Result<(), DriverError> {
        self.plug(vm, nic).await
    }

    async fn unplug_nic(&self, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError> {
        self.unplug(vm, nic).await
    }

    async fn set_link(&self, vm: VmUuid, nic: &Nic) -> Result<(), DriverError> {
        let qmp = self.hypervisor(vm).await?;
        match link::set(&qmp, nic).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(vm, error).await),
        }
    }

    fn settle_nics(&self, vm: VmUuid) {
        self.guests.settle_nics(vm, true);
    }
}

/// The raw answer for one type; `None` when this driver has nothing of the kind.
async fn ask(qmp: &Arc<Qmp>, kind: &str) -> Result<Option<Value>, QmpError> {
    let answer = match kind {
        "block" => qmp.execute::<qmp::QueryBlock>().await?,
        "blockstats" => qmp.execute::<qmp::QueryBlockstats>().await?,
        "chardev" => qmp.execute::<qmp::QueryChardev>().await?,
        "cpus" => qmp.execute::<qmp::QueryCpus>().await?,
        "kvm" => qmp.execute::<qmp::QueryKvm>().await?,
        "pci" => qmp.execute::<qmp::QueryPci>().await?,
        "status" => qmp.execute::<qmp::QueryStatus>().await?,
        "version" => qmp.execute::<qmp::QueryVersion>().await?,
        "vnc" => qmp.execute::<qmp::QueryVnc>().await?,
        _ => return Ok(None),
    };
    Ok(Some(answer))
}
