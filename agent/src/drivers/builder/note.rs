//! What a build notes of itself in its folder, for the agent after this one.

use std::path::Path;

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use serde::{Deserialize, Serialize};

use crate::drivers::{DriverError, files};
use crate::host::ProcessId;

const FILE: &str = "note.json";

/// The note.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// Whose build it is.
    pub task: TaskId,
    /// The program that was started last.
    #[serde(default)]
    pub process: Option<ProcessId>,
    /// From before its image is published until nobody may take it back.
    #[serde(default)]
    pub published: Option<Published>,
    /// The VM that is committed, and the name of the snapshot for that.
    #[serde(default)]
    pub snapshot: Option<(VmUuid, String)>,
}

/// An image that is in a repository, or soon will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The repository; the first one of the agent's own without.
    pub url: Option<String>,
    /// The image.
    pub image: ImageUuid,
}

impl Note {
    /// The note of a build; `None`: it had made none yet.
    ///
    /// # Errors
    /// The host could not be read.
    pub async fn read(folder: &Path) -> Result<Option<Self>, DriverError> {
        let path = folder.join(FILE);
        let Some(json) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&json);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    /// Durable when it returns.
    pub(super) async fn write(&self, folder: &Path) -> Result<(), DriverError> {
        let failed = |error| DriverError::failed("note what a build does", error);
        let json = serde_json::to_vec(self).map_err(failed)?;
        files::write(&folder.join(FILE), &json).await
    }
}
