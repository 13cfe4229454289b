//! What the UEFI firmware of a VM keeps, in a volume beside its disks: it has snapshots like them, goes
//! aside and comes back with the boot disk, and is destroyed with them.

use std::path::Path;

use muster_shared::ids::VmUuid;
use tokio_util::sync::CancellationToken;

use super::ZfsStorage;
use super::devices::Source;
use super::names::{Place, State};
use crate::drivers::storage::{Role, Variables};
use crate::drivers::{DriverError, files};

/// Flash has sectors of this size, and the volume is to be as large as the flash, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;

impl ZfsStorage {
    pub(super) async fn make_variables(
        &self,
        vm: VmUuid,
        template: &Path,
    ) -> Result<Variables, DriverError> {
        let place = |state| Place { vm, role: Role::Firmware, state };
        let name = self.names.volume(place(State::InPlace));
        if self.pool.row(&name).await?.is_none() {
            let partial = self.names.volume(place(State::Partial));
            self.fill_variables(vm, template, &partial).await?;
            self.pool.rename(&partial, &name).await?;
        }
        self.devices.wait(&name).await?;
        Ok(Variables { path: self.devices.path(&name), format: "raw".to_owned() })
    }

    async fn fill_variables(
        &self,
        vm: VmUuid,
        template: &Path,
        partial: &str,
    ) -> Result<(), DriverError> {
        let found = tokio::fs::metadata(template).await;
        let size_bytes = found.map_err(|error| files::failed("look at", template, error))?.len();
        self.remove(partial).await?;
        self.make_holder(vm).await?;
        let mut properties = self.owner.stamp_of_vm(vm);
        properties.insert("volblocksize".to_owned(), BLOCK_BYTES.to_string());
        let size_bytes = size_bytes.next_multiple_of(BLOCK_BYTES);
        self.pool.create_volume(partial, size_bytes, properties).await?;
        let content = Source { path: template, format: "raw" };
        self.devices.fill(partial, content, &CancellationToken::new()).await
    }
}
