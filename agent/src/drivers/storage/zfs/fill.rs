//! What snapshots hold, piece by piece, and volumes that are filled piece by piece.
//!
//! A snapshot is read through a device of its own, which ZFS makes when its volume says so
//! (`snapdev`). What is filled is written to the volume itself, which a property marks until all of
//! it is there: whatever made it is not done before.

use std::sync::Arc;

use muster_shared::ids::{TaskId, VmUuid};

use super::ZfsStorage;
use super::device::{Access, Device};
use super::names::{self, Place, State};
use super::stamp::TASK;
use super::variables::BLOCK_BYTES;
use crate::drivers::DriverError;
use crate::drivers::storage::{
    MAX_PIECE_BYTES, Role, SnapshotPiece, check_piece, not_being_filled, snapshot_not_found,
};
use crate::drivers::zfs::{Properties, Snapshot};

/// The user property of a volume that is being filled.
pub(super) const FILLING: &str = "muster:filling";
/// The property by which the snapshots of a volume have devices.
pub(super) const SNAPDEV: &str = "snapdev";
/// Pieces that are read at most before it is said that there are zeros for a while.
const MAX_LOOKS: u32 = 64;
/// What is only zeros at either end of a piece is left out in steps of this, bytes.
const STEP_BYTES: usize = 4096;

impl ZfsStorage {
    pub(super) async fn piece_of_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        if volume == Role::Root {
            return self.piece_of_pack(vm, name, from).await;
        }
        let device = self.open_snapshot(vm, volume, name).await?;
        let size_bytes = device.size_bytes();
        let zeros = |next| SnapshotPiece { size_bytes, offset: next, data: Vec::new(), next };
        let mut at = from;
        for _ in 0..MAX_LOOKS {
            let length = up_to_boundary(at, size_bytes);
            if length == 0 {
                return Ok(zeros(size_bytes));
            }
            let mut data = device.read(at, length).await?;
            let next = at.saturating_add(bytes(length));
            let Some(skipped) = trim(&mut data) else {
                at = next;
                continue;
            };
            return Ok(SnapshotPiece { size_bytes, offset: at + bytes(skipped), data, next });
        }
        Ok(zeros(at))
    }

    async fn open_snapshot(
        &self,
        vm: VmUuid,
        role: Role,
        name: &str,
    ) -> Result<Arc<dyn Device>, DriverError> {
        let volume = self.names.volume(Place { vm, role, state: State::InPlace });
        let snapshot = names::snapshot(&volume, name).parse::<Snapshot>()?.to_string();
        if let Some(device) = self.devices.open(&snapshot, Access::Read).await? {
            return Ok(device);
        }
        let rows = self.pool.rows(&volume).await?;
        if !rows.iter().any(|row| row.name == snapshot) {
            return Err(snapshot_not_found(vm, name));
        }
        let visible = Properties::from([(SNAPDEV.to_owned(), "visible".to_owned())]);
        self.pool.set(&volume, visible).await?;
        self.devices.wait(&snapshot).await?;
        let opened = self.devices.open(&snapshot, Access::Read).await?;
        opened.ok_or_else(|| DriverError::failed(format!("read {snapshot}"), "its device is gone"))
    }

    pub(super) async fn start_filling(
        &self,
        vm: VmUuid,
        role: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let volume = self.names.volume(Place { vm, role, state: State::InPlace });
        let filling = (FILLING.to_owned(), "yes".to_owned());
        match (role, self.pool.row(&volume).await?) {
            (Role::Firmware, None) => {
                self.make_holder(vm).await?;
                let mut properties = self.owner.stamp_of_vm(vm);
                properties.insert("volblocksize".to_owned(), BLOCK_BYTES.to_string());
                properties.extend([filling]);
                let size_bytes = size_bytes.next_multiple_of(BLOCK_BYTES);
                self.pool.create_volume(&volume, size_bytes, properties).await?;
            }
            (Role::Root, row) => return self.begin_root_fill(vm, size_bytes, owner, row).await,
            (Role::Disk(_), row)
                if row.as_ref().and_then(|row| row.text(TASK)) != Some(owner.as_str()) =>
            {
                return Err(not_being_filled(vm, role));
            }
            (_, row) => {
                let has_bytes = row.as_ref().and_then(|row| row.number("volsize")).unwrap_or(0);
                check_piece(vm, role, (size_bytes, 0), has_bytes)?;
                if row.is_none_or(|row| row.text(FILLING).is_none()) {
                    self.pool.set(&volume, Properties::from([filling])).await?;
                }
            }
        }
        self.devices.wait(&volume).await
    }

    pub(super) async fn write_piece(
        &self,
        vm: VmUuid,
        role: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        if role == Role::Root {
            return self.import(vm).await?.write(offset, data, durable).await;
        }
        let volume = self.names.volume(Place { vm, role, state: State::InPlace });
        let device = self.open_filling(&volume).await?;
        let device = device.ok_or_else(|| not_being_filled(vm, role))?;
        check_piece(vm, role, (offset, data.len()), device.size_bytes())?;
        device.write(offset, data).await?;
        if durable { device.sync().await } else { Ok(()) }
    }

    /// The device of a volume that is being filled. It stays open until that ends: what could not be
    /// written of the pieces before is told by whatever has the device open.
    async fn open_filling(&self, volume: &str) -> Result<Option<Arc<dyn Device>>, DriverError> {
        if let Some(device) = self.filling.lock().get(volume) {
            return Ok(Some(Arc::clone(device)));
        }
        let row = self.pool.row(volume).await?;
        if row.is_none_or(|row| row.text(FILLING).is_none()) {
            return Ok(None);
        }
        self.devices.wait(volume).await?;
        let opened = self.devices.open(volume, Access::Write).await?;
        if let Some(device) = &opened {
            self.filling.lock().insert(volume.to_owned(), Arc::clone(device));
        }
        Ok(opened)
    }

    pub(super) async fn stop_filling(&self, vm: VmUuid, role: Role) -> Result<(), DriverError> {
        if role == Role::Root {
            return self.end_root_fill(vm).await;
        }
        let volume = self.names.volume(Place { vm, role, state: State::InPlace });
        let Some(device) = self.open_filling(&volume).await? else { return Ok(()) };
        device.sync().await?;
        self.pool.inherit(&volume, FILLING).await?;
        self.filling.lock().remove(&volume);
        Ok(())
    }
}

/// How much is read at `at`: at most a piece, and up to a multiple of one.
fn up_to_boundary(at: u64, size_bytes: u64) -> usize {
    let piece = bytes(MAX_PIECE_BYTES);
    let end = (at - at % piece).saturating_add(piece).min(size_bytes);
    usize::try_from(end.saturating_sub(at)).unwrap_or(MAX_PIECE_BYTES)
}

/// Leaves out the zeros at both ends, in whole steps. How much was left out at the beginning, bytes;
/// `None` when there is nothing else.
fn trim(data: &mut Vec<u8>) -> Option<usize> {
    let is_something = |step: &[u8]| step.iter().any(|byte| *byte != 0);
    let first = data.chunks(STEP_BYTES).position(is_something)?;
    let last = data.chunks(STEP_BYTES).rposition(is_something)?;
    data.truncate((last + 1).saturating_mul(STEP_BYTES));
    let skipped = first.saturating_mul(STEP_BYTES);
    data.drain(..skipped);
    Some(skipped)
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_no_blocks_of_zeros_at_its_ends() {
        let mut data = vec![0; 5 * STEP_BYTES + 7];
        assert_eq!(trim(&mut data.clone()), None);
        (data[2 * STEP_BYTES + 1], data[3 * STEP_BYTES]) = (1, 2);
        let mut inner = data.clone();
        assert_eq!(trim(&mut inner), Some(2 * STEP_BYTES));
        assert!(inner == data[2 * STEP_BYTES..4 * STEP_BYTES]);
        data[5 * STEP_BYTES + 6] = 3;
        let mut end = data.clone();
        assert_eq!(trim(&mut end), Some(2 * STEP_BYTES));
        assert!(end == data[2 * STEP_BYTES..]);
    }

    #[test]
    fn pieces_end_at_multiples_of_their_length_and_at_the_end() {
        let piece = bytes(MAX_PIECE_BYTES);
        assert_eq!(up_to_boundary(0, 3 * piece), MAX_PIECE_BYTES);
        assert_eq!(up_to_boundary(piece - 512, 3 * piece), 512);
        assert_eq!(up_to_boundary(piece, piece + 512), 512);
        for beyond in [piece, piece + 1, u64::MAX] {
            assert_eq!(up_to_boundary(beyond, piece), 0);
        }
    }
}
