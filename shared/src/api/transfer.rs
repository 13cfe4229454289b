//! VMs that are copied piece by piece: out of a server, and into one.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What there is to be copied of a VM at one of its snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmExport {
    /// When that was asked, ISO 8601, by the server's clock.
    pub exported_at: String,
    /// A payload that makes a VM like it, with blank disks.
    #[schema(value_type = Object)]
    pub vm: Map<String, Value>,
    /// What it keeps, in the order in which an import takes it.
    #[schema(value_type = Vec<Object>)]
    pub volumes: Vec<crate::export::Volume>,
}

/// A piece of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmPiece {
    /// Virtual size of the volume, bytes.
    pub size_bytes: u64,
    /// Where the piece belongs, bytes. From what was asked for up to here there are zeros.
    pub offset: u64,
    /// Where to go on; at the end, the size. Up to here there is nothing beside the piece but zeros.
    pub next: u64,
    /// Of the data, hexadecimal.
    pub sha256: String,
    /// Base64, of at most 512 KiB.
    pub data: String,
}

/// Up to where the content of a VM that is being imported is there for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmImport {
    /// Names the export that it is of.
    pub export: String,
    /// The volume, of the export's from 0.
    pub volume: usize,
    /// And the byte in it.
    pub offset: u64,
    /// Boot of the server. What was written in another one and not for good may be lost.
    pub boot: String,
    /// When the import is given up unless a durable piece comes, ISO 8601.
    pub until: String,
}
