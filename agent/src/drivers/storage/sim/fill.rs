//! Snapshots that are read piece by piece, and disks that are filled so. Nothing is known of what
//! firmware keeps.

use muster_shared::ids::{TaskId, VmUuid};

use super::pool::{FRESH_DISK_BYTES, SIM_ROOT, SimPool};
use crate::drivers::DriverError;
use crate::drivers::storage::{
    Role, SnapshotPiece, check_piece, not_being_filled, snapshot_not_found,
};

impl SimPool {
    pub(super) fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let content = self.0.lock();
        let empty = |size_bytes: u64| SnapshotPiece {
            size_bytes,
            offset: size_bytes,
            data: Vec::new(),
            next: size_bytes,
        };
        let not_found = || snapshot_not_found(vm, name);
        if volume == Role::Root {
            let root = content.roots.get(&vm).filter(|root| root.packed.contains(name));
            return root.map(|_| piece_of_root(from)).ok_or_else(not_found);
        }
        let Role::Disk(index) = volume else {
            let names = content.firmware.get(&vm).ok_or_else(not_found)?;
            let has = names.iter().any(|known| known == name);
            return if has { Ok(empty(FRESH_DISK_BYTES)) } else { Err(not_found()) };
        };
        let disk = content.disks.get(&(vm, index)).ok_or_else(not_found)?;
        let taken = disk.snapshots.iter().find(|(known, _)| known == name);
        let (_, size_bytes) = taken.ok_or_else(not_found)?;
        let Some((offset, data)) = disk.content.range(from..).next() else {
            return Ok(empty(*size_bytes));
        };
        let next = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        Ok(SnapshotPiece { size_bytes: *size_bytes, offset: *offset, data: data.clone(), next })
    }

    pub(super) fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let mut content = self.0.lock();
        if volume == Role::Root {
            let root = content.roots.get_mut(&vm).filter(|root| root.owner == *owner);
            root.ok_or_else(|| not_being_filled(vm, volume))?.filling = true;
            return Ok(());
        }
        let Role::Disk(index) = volume else {
            content.firmware.entry(vm).or_default();
            return Ok(());
        };
        let disk = content.disks.get_mut(&(vm, index)).filter(|disk| disk.owner == *owner);
        let disk = disk.ok_or_else(|| not_being_filled(vm, volume))?;
        check_piece(vm, volume, (size_bytes, 0), disk.size_bytes)?;
        disk.filling = true;
        Ok(())
    }

    pub(super) fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DriverError> {
        let mut content = self.0.lock();
        if volume == Role::Root && !content.roots.get(&vm).is_some_and(|root| root.filling) {
            return Err(not_being_filled(vm, volume));
        }
        let Role::Disk(index) = volume else { return Ok(()) };
        let disk = content.disks.get_mut(&(vm, index)).filter(|disk| disk.filling);
        let disk = disk.ok_or_else(|| not_being_filled(vm, volume))?;
        check_piece(vm, volume, (offset, data.len()), disk.size_bytes)?;
        disk.content.insert(offset, data.to_vec());
        Ok(())
    }

    pub(super) fn end_fill(&self, vm: VmUuid, volume: Role) {
        let Role::Disk(index) = volume else {
            if let Some(root) = self.0.lock().roots.get_mut(&vm).filter(|_| volume == Role::Root) {
                root.filling = false;
            }
            return;
        };
        if let Some(disk) = self.0.lock().disks.get_mut(&(vm, index)) {
            disk.filling = false;
        }
    }
}

fn piece_of_root(from: u64) -> SnapshotPiece {
    let at = usize::try_from(from).unwrap_or(usize::MAX).min(SIM_ROOT.len());
    let size_bytes = u64::try_from(SIM_ROOT.len()).unwrap_or(u64::MAX);
    SnapshotPiece {
        size_bytes,
        offset: from,
        data: SIM_ROOT[at..].to_vec(),
        next: size_bytes.max(from),
    }
}
