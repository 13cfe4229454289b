//! What lies on this host under a VM's name and belongs to no VM of the agent's: a guest that runs,
//! disks, network links, a copy of a record. It is left alone until somebody decides: adopt it, or
//! remove it.

use std::collections::BTreeMap;

use muster_shared::api::orphan as api;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::Drivers;
use crate::drivers::DriverError;
use crate::drivers::compute::RunningGuest;
use crate::drivers::storage::{Role, Volume};
use crate::vms::VmRecord;
use crate::vms::copies::{self, Stamped};

/// What was found of one VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orphan {
    /// A guest that runs.
    pub guest: Option<RunningGuest>,
    /// Volumes, the root folder of a container among them.
    pub volumes: Vec<Volume>,
    /// It has a root folder of a container.
    pub has_root: bool,
    /// Names of network links.
    pub links: Vec<String>,
    /// The copy of its record, or why it can't be used.
    pub copy: Option<Result<Box<Stamped>, String>>,
}

impl Orphan {
    /// The record that it can be adopted with.
    #[must_use]
    pub fn record(&self) -> Option<&VmRecord> {
        match &self.copy {
            Some(Ok(copy)) => Some(&copy.record),
            _ => None,
        }
    }

    /// Why it is no VM of this agent's, for people.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.copy {
            None => match self.guest.as_ref().and_then(|guest| guest.started_by.as_ref()) {
                Some(task) => format!("there is no copy of its record; task {task} started it"),
                None => "there is no copy of its record".to_owned(),
            },
            Some(Err(problem)) => format!("the copy of its record can't be used: {problem}"),
            Some(Ok(copy)) => match copy.stamp.cluster_id {
                Some(cluster) => format!(
                    "its record is one of server {} in cluster {cluster}",
                    copy.stamp.server_uuid
                ),
                None => format!("its record is one of server {}", copy.stamp.server_uuid),
            },
        }
    }

    /// As others are told of it.
    #[must_use]
    pub fn describe(&self, vm: VmUuid) -> api::Orphan {
        let property =
            |name: &str| self.record().and_then(|record| record.text(name)).map(str::to_owned);
        let disks = self.volumes.iter().filter(|volume| matches!(volume.role, Role::Disk(_)));
        api::Orphan {
            uuid: vm,
            alias: property("alias"),
            owner_uuid: property("owner_uuid"),
            runs: self.guest.is_some(),
            pid: self.guest.as_ref().map(|guest| guest.pid),
            ram_mib: self.guest.as_ref().and_then(|guest| guest.ram_mib),
            disks: disks.count(),
            disk_bytes: self.volumes.iter().map(|volume| volume.used_bytes).sum(),
            volumes: self.volumes.iter().map(told_of).collect(),
            links: self.links.clone(),
            adoptable: self.record().is_some(),
            reason: self.reason(),
        }
    }
}

fn told_of(volume: &Volume) -> api::OrphanVolume {
    let identity = volume.identity.as_ref();
    api::OrphanVolume {
        uuid: identity.map(|identity| identity.uuid),
        disk: match volume.role {
            Role::Disk(index) => Some(index),
            Role::Firmware | Role::Root => None,
        },
        aside: volume.is_aside,
        pool: volume.pool.clone(),
        path: volume.path.display().to_string(),
        size_bytes: volume.size_bytes,
        used_bytes: volume.used_bytes,
        image_uuid: identity.and_then(|identity| identity.origin),
        task_id: identity.map(|identity| identity.owner.clone()),
    }
}

/// Every orphan of this host.
///
/// # Errors
/// The host could not be read.
pub async fn find(drivers: &Drivers) -> Result<BTreeMap<VmUuid, Orphan>, DriverError> {
    let mut found: BTreeMap<VmUuid, Orphan> = BTreeMap::new();
    for guest in drivers.compute.running().await? {
        let orphan = found.entry(guest.vm).or_default();
        orphan.guest = Some(guest);
    }
    for volume in drivers.storage.volumes().await? {
        found.entry(volume.vm).or_default().volumes.push(volume);
    }
    for vm in drivers.storage.rooted().await? {
        found.entry(vm).or_default().has_root = true;
    }
    for (vm, links) in drivers.networks.holders().await? {
        found.entry(vm).or_default().links = links;
    }
    for vm in drivers.storage.copied().await?.into_iter().filter(|vm| !drivers.vms.knows(*vm)) {
        let Some(copy) = drivers.storage.copy(vm).await? else { continue };
        let parsed = copies::parse(&copy).map(Box::new).map_err(|problem| problem.to_string());
        found.entry(vm).or_default().copy = Some(parsed);
    }
    // Asked last: what became a VM meanwhile is none.
    found.retain(|vm, _| !drivers.vms.knows(*vm));
    for (vm, orphan) in found.iter_mut().filter(|(_, orphan)| orphan.has_root) {
        orphan.volumes.extend(drivers.storage.root_volumes(*vm).await?);
    }
    Ok(found)
}

/// One orphan.
///
/// # Errors
/// `ResourceNotFound`; or the host could not be read.
pub async fn get(drivers: &Drivers, vm: VmUuid) -> Result<Orphan, DriverError> {
    let found = find(drivers).await?.remove(&vm);
    found.ok_or_else(|| {
        let text = format!("nothing of VM {vm} is here without a record");
        DriverError::refused(Code::ResourceNotFound, text)
    })
}
