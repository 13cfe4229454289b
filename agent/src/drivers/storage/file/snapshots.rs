//! Snapshots inside qcow2 files of a guest that does not run, through `qemu-img`.

use std::path::Path;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use serde::Deserialize;

use super::{FileStorage, files, run};
use crate::drivers::DriverError;
use crate::drivers::storage::{DiskSnapshot, Storage as _, snapshot_not_found};

/// Only metadata is written; going back may have to free much of a large file.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Deserialize)]
struct Info {
    #[serde(default)]
    snapshots: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

impl FileStorage {
    pub(super) async fn list_snapshots(
        &self,
        vm: VmUuid,
    ) -> Result<Vec<DiskSnapshot>, DriverError> {
        let mut found = Vec::new();
        for disk in self.disks(vm).await? {
            for name in self.names(&disk.path).await? {
                found.push(DiskSnapshot { index: disk.index, name });
            }
        }
        Ok(found)
    }

    async fn names(&self, disk: &Path) -> Result<Vec<String>, DriverError> {
        // Shared: the guest may run, and nothing is written.
        let argv = ["qemu-img", "info", "--force-share", "--output=json"].map(str::to_owned);
        let argv = argv.into_iter().chain([disk.display().to_string()]);
        let output = run(&self.exec, argv, SNAPSHOT_TIMEOUT).await?;
        let info: Info = serde_json::from_slice(&output).map_err(|error| {
            DriverError::failed(format!("read the snapshots of {}", disk.display()), error)
        })?;
        Ok(info.snapshots.into_iter().map(|snapshot| snapshot.name).collect())
    }

    pub(super) async fn make_snapshot(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        for disk in self.disks(vm).await? {
            if !self.names(&disk.path).await?.iter().any(|known| known == name) {
                self.change("-c", name, &disk.path).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn remove_snapshot(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        for disk in self.disks(vm).await? {
            if self.names(&disk.path).await?.iter().any(|known| known == name) {
                self.change("-d", name, &disk.path).await?;
            }
        }
        Ok(())
    }

    /// All disks have the snapshot, or none is touched.
    pub(super) async fn go_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let disks = self.disks(vm).await?;
        for disk in &disks {
            if !self.names(&disk.path).await?.iter().any(|known| known == name) {
                return Err(snapshot_not_found(vm, name));
            }
        }
        for disk in disks {
            self.change("-a", name, &disk.path).await?;
        }
        Ok(())
    }

    async fn change(&self, flag: &str, name: &str, disk: &Path) -> Result<(), DriverError> {
        let argv = ["qemu-img", "snapshot", "-q", flag, name].map(str::to_owned);
        let argv = argv.into_iter().chain([disk.display().to_string()]);
        run(&self.exec, argv, SNAPSHOT_TIMEOUT).await?;
        files::sync_file(disk).await
    }
}
