//! Who made a disk or a root.

use muster_shared::ids::{ImageUuid, ServerUuid, TaskId, VmUuid};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// In the file beside a disk, or in the folder of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) server_uuid: ServerUuid,
    /// None of one that was made before the first coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster_id: Option<Uuid>,
    pub(super) vm_uuid: VmUuid,
    pub(super) task_id: TaskId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image_uuid: Option<ImageUuid>,
}
