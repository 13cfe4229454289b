//! Who made a volume, in its own user properties. What a dataset inherits says nothing of it.

use std::sync::Arc;

use muster_shared::ids::{ImageUuid, ServerUuid, TaskId, VmUuid};

use crate::drivers::cluster::Cluster;
use crate::drivers::zfs::{Properties, TASK_PROPERTY};

pub(crate) const SERVER: &str = "muster:server_uuid";
const CLUSTER: &str = "muster:cluster_id";
const VM: &str = "muster:vm_uuid";
pub(super) const TASK: &str = TASK_PROPERTY;
pub(crate) const IMAGE: &str = "muster:image_uuid";

/// For whom datasets are made.
#[derive(Clone, Debug)]
pub struct Owner {
    /// This server.
    pub server_uuid: ServerUuid,
    /// Its cluster, once it is known.
    pub cluster: Arc<Cluster>,
}

impl Owner {
    /// Of what is this server's alone.
    pub(crate) fn stamp(&self) -> Properties {
        let mut stamp = Properties::from([(SERVER.to_owned(), self.server_uuid.to_string())]);
        stamp.extend(self.cluster.id().map(|id| (CLUSTER.to_owned(), id.to_string())));
        stamp
    }

    /// Of what is a VM's.
    pub(super) fn stamp_of_vm(&self, vm: VmUuid) -> Properties {
        let mut stamp = self.stamp();
        stamp.insert(VM.to_owned(), vm.to_string());
        stamp
    }

    /// Of a disk that a task makes.
    pub(super) fn stamp_of_disk(
        &self,
        vm: VmUuid,
        task: &TaskId,
        image: Option<ImageUuid>,
    ) -> Properties {
        let mut stamp = self.stamp_of_vm(vm);
        stamp.insert(TASK.to_owned(), task.to_string());
        stamp.extend(image.map(|image| (IMAGE.to_owned(), image.to_string())));
        stamp
    }
}
