//! A volume as it was at a snapshot, from its first byte to its last.

use async_trait::async_trait;
use muster_shared::ids::VmUuid;

use super::pack::{DiskBytes, DiskSource};
use crate::drivers::DriverError;
use crate::drivers::storage::{Role, SnapshotPiece, Storage};

/// A volume of a VM at a snapshot.
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct VolumeSource<'a> {
    storage: &'a dyn Storage,
    vm: VmUuid,
    volume: Role,
    snapshot: String,
    stretch: Stretch,
    progress: &'a (dyn Fn(u8) + Send + Sync),
}

impl<'a> VolumeSource<'a> {
    /// Of a snapshot that stays until all of it was read. `progress` gets 0 to 100.
    pub fn new(
        storage: &'a dyn Storage,
        vm: VmUuid,
        volume: Role,
        snapshot: String,
        progress: &'a (dyn Fn(u8) + Send + Sync),
    ) -> Self {
        Self { storage, vm, volume, snapshot, stretch: Stretch::default(), progress }
    }
}

#[async_trait]
impl DiskSource for VolumeSource<'_> {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        loop {
            if let Some(bytes) = self.stretch.take() {
                return Ok(Some(bytes));
            }
            let (vm, at) = (self.vm, self.stretch.at);
            let piece = self.storage.read_snapshot(vm, self.volume, &self.snapshot, at).await?;
            let size_bytes = piece.size_bytes;
            if !self.stretch.add(piece)? {
                return Ok(None);
            }
            let percent = self.stretch.at.saturating_mul(100) / size_bytes.max(1);
            (self.progress)(u8::try_from(percent).unwrap_or(100));
        }
    }
}

/// Pieces between which there are zeros, as a stretch without gaps.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// Where the next piece begins at the earliest, bytes.
    pub(super) at: u64,
    /// What was read and not given yet, the last first.
    ready: Vec<DiskBytes>,
}

impl Stretch {
    pub(super) fn take(&mut self) -> Option<DiskBytes> {
        self.ready.pop()
    }

    /// Adds the piece at `at`; false at the end.
    pub(super) fn add(&mut self, piece: SnapshotPiece) -> Result<bool, DriverError> {
        let SnapshotPiece { size_bytes, offset, data, next } = piece;
        let at = self.at;
        if at >= size_bytes {
            return Ok(false);
        }
        let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if offset < at || end > next || next <= at {
            return Err(DriverError::failed("read a disk", "its pieces are not in order"));
        }
        let zeros = |count: u64| (count > 0).then_some(DiskBytes::Zeros(count));
        let data = (!data.is_empty()).then_some(DiskBytes::Data(data));
        self.ready.extend(zeros(next - end));
        self.ready.extend(data);
        self.ready.extend(zeros(offset - at));
        self.at = next;
        Ok(true)
    }
}
