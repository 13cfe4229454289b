//! Images and their manifests.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::ids::ImageUuid;
use crate::lenient::if_fits;

/// Where an image is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageState {
    /// VMs can't be made from it yet.
    Unactivated,
    /// VMs can be made from it, and its file stays what it is.
    Active,
}

impl ImageState {
    /// As IMGAPI spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unactivated => "unactivated",
            Self::Active => "active",
        }
    }
}

/// An image's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageFile {
    /// `raw` or `qcow2` of a disk, `oci-archive` or `docker-archive` of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// `none`, `gzip`, `bzip2`, `xz`, `zstd` or another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Checksum, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha1: Option<String>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Checksum, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// What IMGAPI's manifests have beside.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// An image's manifest, as IMGAPI has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Image)]
pub struct Manifest {
    /// Version of the manifest.
    #[schema(minimum = 2, maximum = 2)]
    pub v: u32,
    /// The image.
    pub uuid: ImageUuid,
    /// Short name.
    pub name: String,
    /// Version of what is in it.
    pub version: String,
    /// `zvol` for disk images, `docker` for those of containers.
    #[serde(rename = "type")]
    pub kind: String,
    /// E.g. `linux`.
    pub os: String,
    /// The owner's uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its state.
    pub state: ImageState,
    /// Whether everybody may use it.
    #[serde(default, deserialize_with = "if_fits", skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// Whether nobody may use it.
    #[serde(default, deserialize_with = "if_fits", skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
    /// When it was activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_at: Option<String>,
    /// Its file, once it is uploaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ImageFile>,
    /// What else the client said of it.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}
