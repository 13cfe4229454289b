//! The files of a root at a snapshot, those of its image among them, as one archive: what an image is made
//! of, and what a copy of the VM holds.
//!
//! `packs/<snapshot>.tar` beside `snapshots`, and with it `<snapshot>.json`, which is written last.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;
use rustix::fs::{Mode, OFlags};

use super::{FileStorage, files};
use crate::drivers::DriverError;
use crate::drivers::storage::roots::PackedRoot;
use crate::drivers::storage::{MAX_PIECE_BYTES, MIN_FREE_BYTES, SnapshotPiece, snapshot_not_found};
use crate::drivers::trees::{self, Measure};
use crate::drivers::untar::Fault;
use crate::host::mounts;

/// The folder of the archives in a root's folder.
const PACKS: &str = "packs";
const UNFINISHED: &str = ".pack.tmp";
/// Where the files of a snapshot are put together over those of its image, for a moment.
const VIEW: &str = "view";

impl FileStorage {
    fn pack_path(&self, vm: VmUuid, name: &str) -> PathBuf {
        self.root_folder(vm).join(PACKS).join(format!("{name}.tar"))
    }

    async fn packed(&self, tar: &Path) -> Result<Option<PackedRoot>, DriverError> {
        let path = tar.with_extension("json");
        let Some(content) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&content);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    pub(super) async fn pack_root_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        let upper = self.root_snapshot(vm, name).await?;
        let turn = self.root_turns.take(vm).await;
        let tar = self.pack_path(vm, name);
        if let Some(packed) = self.packed(&tar).await? {
            return Ok(packed);
        }
        let (root, folder) = (self.root_folder(vm), self.root_folder(vm).join(PACKS));
        files::make_folder(&folder).await?;
        let (image_root, unfinished) = (image_root.to_owned(), folder.join(UNFINISHED));
        let to = unfinished.clone();
        let packing = move |stop: &_| {
            let view = root.join(VIEW);
            let opened = opened(&image_root, &upper, &view)
                .map_err(|error| Fault::Host(files::failed("put together", &view, error)))?;
            let wanted_bytes = Measure::of_open(opened.as_fd(), stop)?.archive_bytes();
            trees::check_room(wanted_bytes, &folder, MIN_FREE_BYTES)?;
            let archived = trees::archive_here(opened.as_fd(), &to, stop);
            if archived.is_err() {
                std::fs::remove_file(&to).ok();
            }
            archived.map(|archived| (archived, turn))
        };
        let (archived, _turn) = trees::beside("pack a root folder", (), packing).await?;
        files::rename(&unfinished, &tar).await?;
        let packed = PackedRoot { size_bytes: archived.size_bytes, sha256: archived.sha256 };
        let json = serde_json::to_vec(&packed).expect("two plain members");
        files::write(&tar.with_extension("json"), &json).await?;
        Ok(packed)
    }

    /// Removes the archive of a snapshot; none is no error.
    pub(super) async fn drop_pack(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let tar = self.pack_path(vm, name);
        files::remove(&tar.with_extension("json")).await?;
        files::remove(&tar).await
    }

    pub(in super::super) async fn piece_of_pack(
        &self,
        vm: VmUuid,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let tar = self.pack_path(vm, name);
        let packed = self.packed(&tar).await?.ok_or_else(|| snapshot_not_found(vm, name))?;
        let size_bytes = packed.size_bytes;
        let left = usize::try_from(size_bytes.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut data = vec![0; left.min(MAX_PIECE_BYTES)];
        let path = tar.clone();
        let data = trees::beside("read a packed root folder", (), move |_| {
            let read =
                std::fs::File::open(&path).and_then(|file| file.read_exact_at(&mut data, from));
            read.map_err(|error| Fault::Host(files::failed("read", &path, error)))?;
            Ok(data)
        });
        let data = data.await?;
        let next = from.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        Ok(SnapshotPiece { size_bytes, offset: from, data, next: next.min(size_bytes).max(from) })
    }
}

/// The files of a snapshot over those of its image. Nothing is mounted any more when it returns, but for
/// whoever has the folder open.
fn opened(image_root: &Path, upper: &Path, view: &Path) -> std::io::Result<OwnedFd> {
    std::fs::create_dir_all(view)?;
    // Left by an agent that was killed in the middle of this.
    mounts::unmount(view)?;
    mounts::show_over(image_root, upper, view)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(view, flags, Mode::empty());
    mounts::unmount(view)?;
    Ok(opened?)
}
