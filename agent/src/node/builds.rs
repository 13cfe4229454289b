//! Takes away what builds of images left behind when an agent was killed.

use std::path::Path;

use muster_shared::error_chain::Chain;
use url::Url;

use super::SharedDrivers;
use crate::drivers::DriverError;
use crate::drivers::builder::{Note, Published};
use crate::drivers::storage::Role;

/// Clears the folders of earlier agents' builds. What can't be taken away stays for the next start.
pub async fn clear(drivers: SharedDrivers) {
    for folder in drivers.builder.left() {
        match clear_one(&drivers, &folder).await {
            Ok(()) => tracing::info!(folder = %folder.display(), "a build that was cut is cleared"),
            Err(error) => {
                let error = Chain(&error).to_string();
                tracing::warn!(folder = %folder.display(), error, "something of a build stays");
            }
        }
    }
}

async fn clear_one(drivers: &SharedDrivers, folder: &Path) -> Result<(), DriverError> {
    let note = Note::read(folder).await?;
    if let Some(note) = &note {
        if let Some(Published { url, image }) = &note.published {
            let url = url.as_deref().and_then(|url| url.parse::<Url>().ok());
            drivers.images.withdraw(&note.task, url.as_ref(), *image).await?;
        }
        drivers.images.drop_packed(&note.task).await?;
        if let Some((vm, name)) = &note.snapshot {
            drivers.storage.delete_snapshot(*vm, name, &[Role::Root]).await?;
        }
    }
    drivers.builder.clear(folder, note.as_ref()).await
}
