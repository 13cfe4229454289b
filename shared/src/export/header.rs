//! The first frame: what was exported, when, from where.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{ServerUuid, VmUuid};

/// What the member `format` of a header says.
pub const FORMAT: &str = "muster-vm";
/// The version of what the header means, for people and later readers.
pub const VERSION: u32 = 1;
/// Most volumes of a VM: its disks and what its firmware keeps.
pub const MAX_VOLUMES: usize = 64;

/// What is in an export. Members that a reader does not know are passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// When it was begun, ISO 8601.
    pub exported_at: String,
    /// Release of Muster that wrote it.
    pub muster_version: String,
    /// The server that the VM was on.
    pub server_uuid: ServerUuid,
    /// The VM.
    pub vm_uuid: VmUuid,
    /// The snapshot that the content is of.
    pub snapshot: String,
    /// The guest ran when the snapshot was taken.
    pub live: bool,
    /// A payload that makes a VM like it, with blank disks.
    pub vm: Map<String, Value>,
    /// What is in the data, in the order of the data.
    pub volumes: Vec<Volume>,
}

/// A volume of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// What it is to the VM.
    #[serde(flatten)]
    pub role: Role,
    /// Virtual size, bytes.
    pub size_bytes: u64,
    /// What the disk was called on its server: `disk<N>`. 0 of what is no disk.
    #[serde(default)]
    pub number: u32,
}

/// What a volume is to its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "role", content = "index", rename_all = "snake_case")]
pub enum Role {
    /// What its UEFI firmware keeps.
    Firmware,
    /// A disk, by its place in `disks`.
    Disk(u32),
    /// All files of a container, as a tar archive.
    Root,
}

impl Header {
    /// What is wrong with it, if anything.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.format != FORMAT {
            return Some("its format is another");
        }
        if self.version == 0 || self.version > VERSION {
            return Some("a later version of Muster wrote it");
        }
        if self.volumes.is_empty() || self.volumes.len() > MAX_VOLUMES {
            return Some("it has no volumes, or too many");
        }
        let ordered = self.volumes.windows(2).all(|two| two[0].role < two[1].role);
        if !ordered {
            return Some("its volumes are not in order");
        }
        let sized = |volume: &Volume| (1..=i64::MAX.unsigned_abs()).contains(&volume.size_bytes);
        if !self.volumes.iter().all(sized) {
            return Some("a volume has no size");
        }
        None
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str("the firmware's variables"),
            Self::Disk(index) => write!(f, "disk {index}"),
            Self::Root => f.write_str("the root folder"),
        }
    }
}
