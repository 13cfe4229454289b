//! Snapshots inside qcow2 files of a guest that does not run, through `qemu-img`, and of roots.

use std::path::Path;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use serde::Deserialize;

use super::{FileStorage, files, run};
use crate::drivers::DriverError;
use crate::drivers::storage::{Role, VolumeSnapshot, snapshot_not_found};

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
    ) -> Result<Vec<VolumeSnapshot>, DriverError> {
        let mut found = Vec::new();
        for (volume, path) in self.volumes_of(vm).await? {
            for name in self.names(&path).await? {
                found.push(VolumeSnapshot { volume, name });
            }
        }
        let of_root = self.root_snapshots(vm).await?.into_iter();
        found.extend(of_root.map(|name| VolumeSnapshot { volume: Role::Root, name }));
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

    async fn has(&self, disk: &Path, name: &str) -> Result<bool, DriverError> {
        Ok(self.names(disk).await?.iter().any(|known| known == name))
    }

    pub(super) async fn make_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        of: &[Role],
    ) -> Result<(), DriverError> {
        for (volume, path) in self.volumes_of(vm).await? {
            if of.contains(&volume) && !self.has(&path, name).await? {
                self.change("-c", name, &path).await?;
            }
        }
        match of.contains(&Role::Root) && self.root_stamp(vm).await?.is_some() {
            true => self.make_root_snapshot(vm, name).await,
            false => Ok(()),
        }
    }

    pub(super) async fn remove_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        for (volume, path) in self.volumes_of(vm).await? {
            if from.contains(&volume) && self.has(&path, name).await? {
                self.change("-d", name, &path).await?;
            }
        }
        match from.contains(&Role::Root) {
            true => self.remove_root_snapshot(vm, name).await,
            false => Ok(()),
        }
    }

    /// All disks have the snapshot, or none is touched. Variables that are younger stay.
    pub(super) async fn go_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let mut having = Vec::new();
        for (volume, path) in self.volumes_of(vm).await? {
            match self.has(&path, name).await? {
                true => having.push(path),
                false if volume == Role::Firmware => {}
                false => return Err(snapshot_not_found(vm, name)),
            }
        }
        let has_root = self.root_stamp(vm).await?.is_some();
        if has_root {
            self.root_snapshot(vm, name).await?;
        }
        for path in having {
            self.change("-a", name, &path).await?;
        }
        match has_root {
            true => self.roll_root_back(vm, name).await,
            false => Ok(()),
        }
    }

    async fn change(&self, flag: &str, name: &str, disk: &Path) -> Result<(), DriverError> {
        let argv = ["qemu-img", "snapshot", "-q", flag, name].map(str::to_owned);
        let argv = argv.into_iter().chain([disk.display().to_string()]);
        run(&self.exec, argv, SNAPSHOT_TIMEOUT).await?;
        files::sync_file(disk).await
    }
}
