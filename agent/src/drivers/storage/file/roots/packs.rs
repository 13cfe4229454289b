//! The files of a root at a snapshot, those of its image among them, as one archive.
//!
//! `packs/<snapshot>.tar` beside `snapshots`.

use std::os::fd::OwnedFd;
use std::path::Path;

use muster_shared::ids::VmUuid;

use super::{FileStorage, files};
use crate::drivers::DriverError;
use crate::drivers::storage::packs::{Pack, open_folder};
use crate::drivers::storage::roots::PackedRoot;
use crate::drivers::storage::{SnapshotPiece, snapshot_not_found};
use crate::drivers::untar::Fault;
use crate::host::mounts;

/// The folder of the archives in a root's folder.
const PACKS: &str = "packs";
/// Where the files of a snapshot are put together over those of its image, for a moment.
const VIEW: &str = "view";

impl FileStorage {
    fn pack(&self, vm: VmUuid, name: &str) -> Pack {
        Pack::new(&self.root_folder(vm).join(PACKS), name)
    }

    pub(super) async fn pack_root_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        let upper = self.root_snapshot(vm, name).await?;
        let turn = self.root_turns.take(vm).await;
        let pack = self.pack(vm, name);
        if let Some(packed) = pack.known().await? {
            return Ok(packed);
        }
        let (image_root, view) = (image_root.to_owned(), self.root_folder(vm).join(VIEW));
        let open = move || {
            let opened = opened(&image_root, &upper, &view);
            opened.map_err(|error| Fault::Host(files::failed("put together", &view, error)))
        };
        pack.make(turn, open).await
    }

    /// Removes the archive of a snapshot; none is no error.
    pub(super) async fn drop_pack(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        self.pack(vm, name).remove().await
    }

    pub(in super::super) async fn piece_of_pack(
        &self,
        vm: VmUuid,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let piece = self.pack(vm, name).piece(from).await?;
        piece.ok_or_else(|| snapshot_not_found(vm, name))
    }
}

/// The files of a snapshot over those of its image. Nothing is mounted any more when it returns, but for
/// whoever has the folder open.
fn opened(image_root: &Path, upper: &Path, view: &Path) -> std::io::Result<OwnedFd> {
    std::fs::create_dir_all(view)?;
    // Left by an agent that was killed in the middle of this.
    mounts::unmount(view)?;
    mounts::show_over(image_root, upper, view)?;
    let opened = open_folder(view);
    mounts::unmount(view)?;
    opened
}
