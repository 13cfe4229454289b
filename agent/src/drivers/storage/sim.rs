//! Simulated storage: disks in memory that outlive the simulated agent.

mod fill;
mod pool;
mod roots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;

use self::pool::FRESH_DISK_BYTES;
pub use self::pool::{SimDisk, SimImage, SimPool};
use super::{
    Bases, Disk, DiskSpec, Identity, RecordCopy, Role, SnapshotPiece, Storage, Usage, Variables,
    Volume, VolumeSnapshot,
};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// The driver of one simulated agent.
#[derive(Debug)]
pub struct SimStorage {
    pool: SimPool,
    name: String,
    /// Where the images are that disks here are based on.
    images: SimPool,
    faults: Faults,
}

impl SimStorage {
    /// Operations in `faults`: `storage.create_disk`, `.disks`, `.roles`, `.variables`,
    /// `.check_idle`, `.destroy_disks`, `.destroy_disk`, `.grow_disk`, `.snapshots`, `.create_snapshot`, `.delete_snapshot`,
    /// `.read_snapshot`, `.begin_fill`, `.fill`, `.end_fill`, `.roll_back`, `.stash_disk`,
    /// `.restore_disk`, `.purge_stash`, `.put_copy`, `.remove_copy`, `.copied`, `.copy`, `.volumes`,
    /// `.bases`, `.usage`, `.create_root`, `.change_root`, `.mount_root`, `.unmount_root`, `.destroy_root`,
    /// `.pack_root`, `.stash_root`, `.restore_root`, `.purge_root_stash`.
    #[must_use]
    pub fn new(pool: SimPool, faults: Faults) -> Self {
        Self { images: pool.clone(), pool, name: super::DEFAULT_POOL.to_owned(), faults }
    }

    /// A further pool, with the images of the first one.
    #[must_use]
    pub fn further(pool: SimPool, name: &str, images: SimPool, faults: Faults) -> Self {
        Self { pool, name: name.to_owned(), images, faults }
    }

    fn disk(&self, vm: VmUuid, index: u32, disk: &SimDisk) -> Disk {
        Disk {
            index,
            identity: Some(self.identity(vm, index, disk)),
            path: path(vm, Role::Disk(index), false),
            format: "qcow2".to_owned(),
            size_bytes: disk.size_bytes,
            used_bytes: FRESH_DISK_BYTES,
        }
    }

    fn identity(&self, vm: VmUuid, index: u32, disk: &SimDisk) -> Identity {
        Identity::of_disk(vm, index, &self.name, &disk.owner, disk.image)
    }
}

fn path(vm: VmUuid, role: Role, is_aside: bool) -> PathBuf {
    let name = match (role, is_aside) {
        (Role::Disk(index), false) => format!("disk{index}"),
        (Role::Disk(index), true) => format!("stash{index}"),
        (Role::Firmware, false) => "uefi-vars".to_owned(),
        (Role::Firmware, true) => "stash-uefi-vars".to_owned(),
        (Role::Root, _) => "root".to_owned(),
    };
    PathBuf::from(format!("/sim/vols/{vm}/{name}.qcow2"))
}

#[async_trait]
impl Storage for SimStorage {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn pools(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    async fn create_disk(&self, spec: &DiskSpec, owner: &TaskId) -> Result<Disk, DriverError> {
        let create = || {
            super::check_pool(spec, &self.pools())?;
            let image_bytes =
                |uuid: ImageUuid| self.images.0.lock().images.get(&uuid).map(|i| i.size_bytes);
            let image_bytes = spec.image.map(|uuid| (uuid, image_bytes(uuid)));
            let mut content = self.pool.0.lock();
            let key = (spec.vm, spec.index);
            if let Some(existing) = content.disks.get(&key) {
                if existing.owner == *owner {
                    return Ok(self.disk(spec.vm, spec.index, existing));
                }
                return Err(super::disk_exists(spec, &self.pools()));
            }
            let image_bytes = match image_bytes {
                Some((uuid, None)) => return Err(super::image_not_installed(uuid)),
                Some((_, bytes)) => bytes,
                None => None,
            };
            let size_bytes = super::disk_size(spec, image_bytes)?;
            if content.free_bytes() < FRESH_DISK_BYTES {
                return Err(super::store_full(format!("no space for a disk of VM {}", spec.vm)));
            }
            let made = SimDisk {
                owner: owner.clone(),
                image: spec.image,
                size_bytes,
                snapshots: Vec::new(),
                content: BTreeMap::new(),
                filling: false,
            };
            content.disks.insert(key, made.clone());
            Ok(self.disk(spec.vm, spec.index, &made))
        };
        self.faults.call("storage.create_disk", create).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Vec<Disk>, DriverError> {
        let list = || {
            let content = self.pool.0.lock();
            let of_vm = content.disks.range((vm, 0)..=(vm, u32::MAX));
            Ok(of_vm.map(|((_, index), found)| self.disk(vm, *index, found)).collect())
        };
        self.faults.call("storage.disks", list).await
    }

    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError> {
        let list = || {
            let content = self.pool.0.lock();
            let firmware = content.firmware.contains_key(&vm).then_some(Role::Firmware);
            let disks = content.disks.range((vm, 0)..=(vm, u32::MAX));
            let root = content.roots.contains_key(&vm).then_some(Role::Root);
            let disks = disks.map(|((_, index), _)| Role::Disk(*index));
            Ok(firmware.into_iter().chain(disks).chain(root).collect())
        };
        self.faults.call("storage.roles", list).await
    }

    async fn variables(&self, vm: VmUuid, _template: &Path) -> Result<Variables, DriverError> {
        let make = || {
            self.pool.0.lock().firmware.entry(vm).or_default();
            let path = path(vm, Role::Firmware, false);
            Ok(Variables { path, format: "qcow2".to_owned() })
        };
        self.faults.call("storage.variables", make).await
    }

    /// Its guests open nothing.
    async fn check_idle(&self, _vm: VmUuid) -> Result<(), DriverError> {
        self.faults.call("storage.check_idle", || Ok(())).await
    }

    async fn destroy_disks(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        let destroy = || {
            let stays = |found: &SimDisk| owner.is_some_and(|owner| *owner != found.owner);
            let mut content = self.pool.0.lock();
            content.disks.retain(|(of, _), found| *of != vm || stays(found));
            content.stashed.retain(|(of, _), found| *of != vm || stays(found));
            let mut left = content.disks.keys().chain(content.stashed.keys());
            if !left.any(|(of, _)| *of == vm) {
                content.firmware.remove(&vm);
                content.stashed_firmware.remove(&vm);
            }
            Ok(())
        };
        self.faults.call("storage.destroy_disks", destroy).await
    }

    async fn destroy_disk(
        &self,
        vm: VmUuid,
        index: u32,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        let destroy = || {
            let mut content = self.pool.0.lock();
            let found = content.disks.get(&(vm, index));
            if found.is_some_and(|disk| owner.is_none_or(|owner| *owner == disk.owner)) {
                content.disks.remove(&(vm, index));
            }
            Ok(())
        };
        self.faults.call("storage.destroy_disk", destroy).await
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError> {
        let grow = || {
            let wanted = super::bytes_of(size_mib)?;
            let mut content = self.pool.0.lock();
            let disk = content.disks.get_mut(&(vm, index));
            let disk = disk.ok_or_else(|| DriverError::failed("grow a disk", "there is none"))?;
            disk.size_bytes = disk.size_bytes.max(wanted);
            Ok(())
        };
        self.faults.call("storage.grow_disk", grow).await
    }

    async fn snapshots(&self, vm: VmUuid) -> Result<Vec<VolumeSnapshot>, DriverError> {
        let list = || {
            let content = self.pool.0.lock();
            let firmware = content.firmware.get(&vm).into_iter().flatten();
            let firmware =
                firmware.map(|name| VolumeSnapshot { volume: Role::Firmware, name: name.clone() });
            let of_vm = content.disks.range((vm, 0)..=(vm, u32::MAX));
            let named = of_vm.flat_map(|((_, index), disk)| {
                let name = |(name, _): &(String, u64)| VolumeSnapshot {
                    volume: Role::Disk(*index),
                    name: name.clone(),
                };
                disk.snapshots.iter().map(name).collect::<Vec<_>>()
            });
            let of_root = content.roots.get(&vm).map(|root| root.snapshots.clone());
            let of_root = of_root.unwrap_or_default().into_iter();
            let of_root = of_root.map(|name| VolumeSnapshot { volume: Role::Root, name });
            Ok(firmware.chain(named).chain(of_root).collect())
        };
        self.faults.call("storage.snapshots", list).await
    }

    async fn create_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        of: &[Role],
    ) -> Result<(), DriverError> {
        let create = || {
            self.pool.each_disk(vm, |index, disk| {
                if of.contains(&Role::Disk(index)) && !disk.has(name) {
                    disk.snapshots.push((name.to_owned(), disk.size_bytes));
                }
            });
            if let Some(names) = self.pool.0.lock().firmware.get_mut(&vm)
                && of.contains(&Role::Firmware)
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
            if let Some(root) = self.pool.0.lock().roots.get_mut(&vm)
                && of.contains(&Role::Root)
                && !root.has(name)
            {
                root.snapshots.push(name.to_owned());
            }
            Ok(())
        };
        self.faults.call("storage.create_snapshot", create).await
    }

    async fn delete_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        let delete = || {
            self.pool.each_disk(vm, |index, disk| {
                if from.contains(&Role::Disk(index)) {
                    disk.snapshots.retain(|(known, _)| known != name);
                }
            });
            if let Some(names) = self.pool.0.lock().firmware.get_mut(&vm)
                && from.contains(&Role::Firmware)
            {
                names.retain(|known| known != name);
            }
            if let Some(root) = self.pool.0.lock().roots.get_mut(&vm)
                && from.contains(&Role::Root)
            {
                root.snapshots.retain(|known| known != name);
                root.packed.remove(name);
            }
            Ok(())
        };
        self.faults.call("storage.delete_snapshot", delete).await
    }

    async fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let read = || self.pool.read_snapshot(vm, volume, name, from);
        self.faults.call("storage.read_snapshot", read).await
    }

    async fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let begin = || self.pool.begin_fill(vm, volume, size_bytes, owner);
        self.faults.call("storage.begin_fill", begin).await
    }

    async fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        _durable: bool,
    ) -> Result<(), DriverError> {
        let fill = || self.pool.fill(vm, volume, offset, data);
        self.faults.call("storage.fill", fill).await
    }

    async fn end_fill(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        let end = || {
            self.pool.end_fill(vm, volume);
            Ok(())
        };
        self.faults.call("storage.end_fill", end).await
    }

    async fn roll_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let roll_back = || {
            let mut missing = false;
            self.pool.each_disk(vm, |_, disk| missing |= !disk.has(name));
            missing |= self.pool.0.lock().roots.get(&vm).is_some_and(|root| !root.has(name));
            if missing {
                return Err(super::snapshot_not_found(vm, name));
            }
            self.pool.each_disk(vm, |_, disk| {
                let found = disk.snapshots.iter().find(|(known, _)| known == name);
                disk.size_bytes = found.map_or(disk.size_bytes, |(_, size_bytes)| *size_bytes);
            });
            Ok(())
        };
        self.faults.call("storage.roll_back", roll_back).await
    }

    async fn stash_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let stash = || {
            let mut content = self.pool.0.lock();
            let key = (vm, index);
            let theirs = content.disks.get(&key).is_some_and(|disk| disk.owner != *task);
            if theirs && let Some(disk) = content.disks.remove(&key) {
                content.stashed.insert(key, disk);
                let firmware = content.firmware.remove(&vm).filter(|_| index == 0);
                content.stashed_firmware.extend(firmware.map(|firmware| (vm, firmware)));
            }
            Ok(())
        };
        self.faults.call("storage.stash_disk", stash).await
    }

    async fn restore_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        let restore = || {
            let mut content = self.pool.0.lock();
            let key = (vm, index);
            let blocked = content.disks.get(&key).is_some_and(|disk| disk.owner != *task);
            match content.stashed.remove(&key) {
                Some(disk) if !blocked => {
                    content.disks.insert(key, disk);
                    let firmware = content.stashed_firmware.remove(&vm);
                    content.firmware.extend(firmware.map(|firmware| (vm, firmware)));
                }
                Some(disk) => {
                    content.stashed.insert(key, disk);
                    let text = format!("disk {index} of VM {vm} belongs to another task");
                    return Err(DriverError::refused(Code::DatasetExists, text));
                }
                None => {}
            }
            Ok(())
        };
        self.faults.call("storage.restore_disk", restore).await
    }

    async fn purge_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        let purge = || {
            let mut content = self.pool.0.lock();
            content.stashed.remove(&(vm, index));
            content.stashed_firmware.remove(&vm);
            Ok(())
        };
        self.faults.call("storage.purge_stash", purge).await
    }

    async fn put_copy(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError> {
        let put = || {
            self.pool.0.lock().copies.insert(vm, copy.to_vec());
            Ok(())
        };
        self.faults.call("storage.put_copy", put).await
    }

    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError> {
        let remove = || {
            self.pool.0.lock().copies.remove(&vm);
            Ok(())
        };
        self.faults.call("storage.remove_copy", remove).await
    }

    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError> {
        let list = || Ok(self.pool.0.lock().copies.keys().copied().collect());
        self.faults.call("storage.copied", list).await
    }

    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        let read = || {
            let content = self.pool.0.lock().copies.get(&vm).cloned();
            Ok(content.map(|content| RecordCopy { vm, content }))
        };
        self.faults.call("storage.copy", read).await
    }

    async fn volumes(&self) -> Result<Vec<Volume>, DriverError> {
        let list = || {
            let content = self.pool.0.lock();
            let volume = |vm, role, is_aside, disk: Option<&SimDisk>| Volume {
                vm,
                role,
                is_aside,
                identity: disk.and_then(|disk| match role {
                    Role::Disk(index) => Some(self.identity(vm, index, disk)),
                    Role::Firmware | Role::Root => None,
                }),
                pool: self.name.clone(),
                path: path(vm, role, is_aside),
                size_bytes: disk.map(|disk| disk.size_bytes),
                used_bytes: FRESH_DISK_BYTES,
            };
            let mut found = Vec::new();
            for (disks, is_aside) in [(&content.disks, false), (&content.stashed, true)] {
                found.extend(disks.iter().map(|((vm, index), disk)| {
                    volume(*vm, Role::Disk(*index), is_aside, Some(disk))
                }));
            }
            for (vms, is_aside) in [(&content.firmware, false), (&content.stashed_firmware, true)] {
                found.extend(vms.keys().map(|vm| volume(*vm, Role::Firmware, is_aside, None)));
            }
            found.sort_by_key(|volume| (volume.vm, volume.role, volume.is_aside));
            Ok(found)
        };
        self.faults.call("storage.volumes", list).await
    }

    async fn bases(&self) -> Result<Bases, DriverError> {
        self.faults.call("storage.bases", || Ok(self.pool.0.lock().bases())).await
    }

    async fn keep_room(&self) -> Result<bool, DriverError> {
        Ok(true)
    }

    async fn lend_room(&self) -> Result<bool, DriverError> {
        Ok(false)
    }

    async fn usage(&self) -> Result<Vec<Usage>, DriverError> {
        let usage = || {
            let content = self.pool.0.lock();
            Ok(vec![Usage {
                pool: self.name.clone(),
                size_bytes: content.size_bytes,
                alloc_bytes: content.size_bytes - content.free_bytes(),
                images_bytes: content.images_bytes(),
                disks_used_bytes: content.disks_bytes(),
                disks_virtual_bytes: content.disks.values().map(|disk| disk.size_bytes).sum(),
            }])
        };
        self.faults.call("storage.usage", usage).await
    }
}
