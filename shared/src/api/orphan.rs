//! What lies on a server under a VM's name without a record.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::{ImageUuid, TaskId, VmUuid};

/// An orphan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// The VM whose name it bears.
    pub uuid: VmUuid,
    /// The VM's alias, by the copy of its record.
    #[schema(required)]
    pub alias: Option<String>,
    /// The VM's owner, by the copy of its record.
    #[schema(required)]
    pub owner_uuid: Option<String>,
    /// Whether a guest runs.
    pub runs: bool,
    /// The guest's process.
    #[schema(required)]
    pub pid: Option<u32>,
    /// Memory that the guest was given, MiB.
    #[schema(required)]
    pub ram_mib: Option<u64>,
    /// How many disks there are.
    pub disks: usize,
    /// Space that its volumes take, bytes.
    pub disk_bytes: u64,
    /// Its volumes: the disks, and what firmware keeps. Agents of older versions tell none.
    #[serde(default)]
    pub volumes: Vec<OrphanVolume>,
    /// Network links of the server that were made for it, by name. Agents of older versions tell
    /// none.
    #[serde(default)]
    pub links: Vec<String>,
    /// Whether there is a copy of its record that it can be adopted with.
    pub adoptable: bool,
    /// Why it is no VM of the server's, for people.
    pub reason: String,
}

/// A volume of an orphan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanVolume {
    /// What it is known by; none of what firmware keeps, and where nothing tells who made it.
    #[schema(required)]
    pub uuid: Option<Uuid>,
    /// Which disk it is, 0 the boot disk; none of what firmware keeps, and of the root of a container.
    #[schema(required)]
    pub disk: Option<u32>,
    /// Whether it was put aside for another one.
    pub aside: bool,
    /// The pool that it lies in.
    pub pool: String,
    /// Where it is on the server.
    pub path: String,
    /// Virtual size, bytes; none of a damaged one, and of the root of a container.
    #[schema(required)]
    pub size_bytes: Option<u64>,
    /// Space that it takes, bytes.
    pub used_bytes: u64,
    /// The image that it was made from.
    #[schema(required)]
    pub image_uuid: Option<ImageUuid>,
    /// The task that made it.
    #[schema(required)]
    pub task_id: Option<TaskId>,
}

/// A server's orphans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphans {
    /// By UUID.
    pub orphans: Vec<Orphan>,
}
