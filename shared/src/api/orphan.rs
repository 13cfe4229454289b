//! What lies on a server under a VM's name without a record.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::VmUuid;

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
    /// Space that they take, bytes.
    pub disk_bytes: u64,
    /// Whether there is a copy of its record that it can be adopted with.
    pub adoptable: bool,
    /// Why it is no VM of the server's, for people.
    pub reason: String,
}

/// A server's orphans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphans {
    /// By UUID.
    pub orphans: Vec<Orphan>,
}
