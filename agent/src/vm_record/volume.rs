//! Volumes: what a disk of a VM is known by, in the VM's record and where it lies.

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What tells a volume from every other one, under whatever path it is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its own; no other volume ever has it.
    pub uuid: Uuid,
    /// The pool that it lies in.
    pub pool: String,
    /// The task that made it.
    pub owner: TaskId,
    /// The image that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ImageUuid>,
}

impl Identity {
    /// Of the disk with this index that `owner` made for `vm`.
    #[must_use]
    pub fn of_disk(
        vm: VmUuid,
        index: u32,
        pool: &str,
        owner: &TaskId,
        origin: Option<ImageUuid>,
    ) -> Self {
        // A task makes each disk of a VM once. So nothing has to be drawn and kept, and disks of
        // agents that knew no volumes have theirs as well.
        let uuid = Uuid::new_v5(&vm.0, format!("disk{index}/{owner}").as_bytes());
        Self { uuid, pool: pool.to_owned(), owner: owner.clone(), origin }
    }

    /// Of the root folder that `owner` made for `vm`.
    #[must_use]
    pub fn of_root(vm: VmUuid, pool: &str, owner: &TaskId, origin: Option<ImageUuid>) -> Self {
        let uuid = Uuid::new_v5(&vm.0, format!("root/{owner}").as_bytes());
        Self { uuid, pool: pool.to_owned(), owner: owner.clone(), origin }
    }
}

/// A volume in the record of its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Place among the VM's disks; 0 is the boot disk.
    pub index: u32,
    /// What it is known by.
    #[serde(flatten)]
    pub identity: Identity,
    /// Format as QEMU names it.
    pub format: String,
    /// Virtual size, bytes.
    pub size_bytes: u64,
}

/// A disk that is to go with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoingDisk {
    /// Its number.
    pub index: u32,
    /// The task that made it; another one's disk of this number stays. `None`: nothing tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TaskId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_identity_and_no_other_has_it() {
        let (vm, task): (VmUuid, TaskId) = (Uuid::from_u128(1).into(), Uuid::from_u128(2).into());
        let of = |vm, index, task| Identity::of_disk(vm, index, "zones", task, None).uuid;
        let uuid = of(vm, 0, &task);
        assert_eq!(uuid, of(vm, 0, &task));
        let others = [
            of(vm, 1, &task),
            of(Uuid::from_u128(3).into(), 0, &task),
            of(vm, 0, &Uuid::from_u128(4).into()),
        ];
        assert!(!others.contains(&uuid), "{others:?}");
        // It is the same in every version of the agent, and in every pool.
        let moved = Identity::of_disk(vm, 0, "fast", &task, None);
        assert_eq!(moved.uuid, uuid);
    }
}
