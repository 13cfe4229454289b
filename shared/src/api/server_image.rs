//! The images that lie on a server.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::ImageUuid;

/// An image on a server, and who needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerImage {
    /// The image.
    pub uuid: ImageUuid,
    /// Its name, by its manifest.
    #[schema(required)]
    pub name: Option<String>,
    /// Its version, by its manifest.
    #[schema(required)]
    pub version: Option<String>,
    /// The image that it builds on.
    #[schema(required)]
    pub origin: Option<ImageUuid>,
    /// Space that it takes on the server, bytes.
    pub size_bytes: u64,
    /// When it came to the server.
    pub installed_at: String,
    /// When a disk was made from it last.
    #[schema(required)]
    pub last_used_at: Option<String>,
    /// How many disks are based on it.
    pub disks: usize,
    /// How many VMs have these disks.
    pub vms: usize,
}

/// The images of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerImages {
    /// By UUID.
    pub images: Vec<ServerImage>,
}
