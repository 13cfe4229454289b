//! Volumes that are read and filled piece by piece.

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::Role;
use crate::drivers::DriverError;

/// A piece of what a snapshot holds of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPiece {
    /// Virtual size of the volume at that time, bytes.
    pub size_bytes: u64,
    /// Where the data belongs, bytes.
    pub offset: u64,
    /// What stands there, at most [`MAX_PIECE_BYTES`]; nothing when there are only zeros up to
    /// [`SnapshotPiece::next`].
    pub data: Vec<u8>,
    /// Where to go on; at the end, the size.
    pub next: u64,
}

/// Most of a volume that is read or written at a time, bytes.
pub const MAX_PIECE_BYTES: usize = 512 * 1024;

/// `DatasetNotFound`: the volume is not being filled.
#[must_use]
pub fn not_being_filled(vm: VmUuid, volume: Role) -> DriverError {
    let text = format!("{volume} of VM {vm} is not being filled");
    DriverError::refused(Code::DatasetNotFound, text)
}

/// `InvalidParameters`: a piece that is not within its volume.
///
/// # Errors
/// That.
pub fn check_piece(
    vm: VmUuid,
    volume: Role,
    (offset, length): (u64, usize),
    size_bytes: u64,
) -> Result<(), DriverError> {
    let end = u64::try_from(length).ok().and_then(|length| offset.checked_add(length));
    if length <= MAX_PIECE_BYTES && end.is_some_and(|end| end <= size_bytes) {
        return Ok(());
    }
    let text = format!(
        "{length} bytes from {offset} on are not within {volume} of VM {vm}, which has {size_bytes}"
    );
    Err(DriverError::refused(Code::InvalidParameters, text))
}
