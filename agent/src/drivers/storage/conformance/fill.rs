//! What every storage driver owes who copies volumes piece by piece.

#![allow(clippy::unwrap_used, reason = "a driver that does not conform ends the test")]

use muster_shared::ids::VmUuid;
use muster_shared::units::MIB;

use super::{check_code, spec, task, vm};
use crate::drivers::storage::{Identity, MAX_PIECE_BYTES, Role, Storage};

const DISK: Role = Role::Disk(0);

/// All pieces of a snapshot that hold something.
async fn pieces(storage: &dyn Storage, of: VmUuid, name: &str) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        let piece = storage.read_snapshot(of, DISK, name, from).await.unwrap();
        if !piece.data.is_empty() {
            found.push((piece.offset, piece.data));
        }
        from = piece.next;
        if from == piece.size_bytes {
            return found;
        }
    }
}

/// What every driver owes who copies volumes piece by piece. The driver has nothing of VMs 7 and 8.
///
/// # Panics
/// If it does not conform.
pub async fn of_filling(storage: &dyn Storage) {
    let (one, two) = (task("one"), task("two"));
    let size_bytes = 5 * MIB;
    for of in [vm(7), vm(8)] {
        storage.create_disk(&spec(of, 0, None, Some(5)), &one).await.unwrap();
    }

    // Only what its own task made is filled, and only within its bounds.
    check_code(&storage.fill(vm(7), DISK, 0, b"x", false).await, "DatasetNotFound");
    check_code(&storage.begin_fill(vm(7), DISK, size_bytes, &two).await, "DatasetNotFound");
    let larger = storage.begin_fill(vm(7), DISK, size_bytes + 1, &one).await;
    check_code(&larger, "InvalidParameters");
    for _ in 0..2 {
        storage.begin_fill(vm(7), DISK, size_bytes, &one).await.unwrap();
    }
    for (offset, length) in [(size_bytes, 1), (u64::MAX, 2), (0, MAX_PIECE_BYTES + 1)] {
        let beyond = storage.fill(vm(7), DISK, offset, &vec![1; length], false).await;
        check_code(&beyond, "InvalidParameters");
    }

    // Pieces may come twice, and a second beginning loses none of them.
    let piece = u64::try_from(MAX_PIECE_BYTES).unwrap();
    let given = [(piece, vec![3; MAX_PIECE_BYTES]), (4 * piece, vec![4; 4096])];
    for durable in [false, true] {
        for (offset, data) in &given {
            storage.fill(vm(7), DISK, *offset, data, durable).await.unwrap();
        }
        storage.begin_fill(vm(7), DISK, size_bytes, &one).await.unwrap();
    }
    for _ in 0..2 {
        storage.end_fill(vm(7), DISK).await.unwrap();
    }
    check_code(&storage.fill(vm(7), DISK, 0, b"x", false).await, "DatasetNotFound");
    let filled = storage.disks(vm(7)).await.unwrap().remove(0);
    assert_eq!(filled.size_bytes, size_bytes);
    assert_eq!(filled.identity, Some(Identity::of_disk(vm(7), 0, "zones", &one, None)));

    // What was filled in is what a snapshot has, and nothing else.
    check_code(&storage.read_snapshot(vm(7), DISK, "a", 0).await, "SnapshotNotFound");
    check_code(&storage.read_snapshot(vm(7), Role::Disk(1), "a", 0).await, "SnapshotNotFound");
    for of in [vm(7), vm(8)] {
        storage.create_snapshot(of, "a", &[DISK]).await.unwrap();
    }
    let mut bytes = vec![0; usize::try_from(size_bytes).unwrap()];
    let found = pieces(storage, vm(7), "a").await;
    let mut before = 0;
    for (offset, data) in &found {
        assert!(*offset >= before && data.len() <= MAX_PIECE_BYTES, "{offset}");
        let at = usize::try_from(*offset).unwrap();
        bytes[at..at + data.len()].copy_from_slice(data);
        before = *offset + u64::try_from(data.len()).unwrap();
    }
    for (offset, data) in &given {
        let at = usize::try_from(*offset).unwrap();
        assert!(bytes[at..at + data.len()] == **data, "{offset}");
        bytes[at..at + data.len()].fill(0);
    }
    assert!(bytes.iter().all(|byte| *byte == 0), "there is more than what was filled in");
    assert_eq!(pieces(storage, vm(8), "a").await, []);

    // What was begun goes with its VM.
    storage.begin_fill(vm(8), DISK, size_bytes, &one).await.unwrap();
    storage.destroy_disks(vm(7), None).await.unwrap();
    storage.destroy_disks(vm(8), Some(&one)).await.unwrap();
    assert_eq!(storage.volumes().await.unwrap(), []);
}
