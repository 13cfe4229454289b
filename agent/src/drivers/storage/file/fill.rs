//! What snapshots hold, piece by piece, and volumes that are filled piece by piece.
//!
//! What is written of a volume lies in a sparse raw file beside it, `fill-disk<N>.raw`, until all
//! of it is there; then it is converted and takes the volume's place. So a volume is blank or
//! whole, and a piece that comes twice does no harm.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_shared::ids::{TaskId, VmUuid};
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::{FileStorage, MIN_FREE_BYTES, files, index_of, run, stamp, variables, virtual_size};
use crate::drivers::DriverError;
use crate::drivers::storage::qcow2::content::{Content, ContentError};
use crate::drivers::storage::refusals::not_supported;
use crate::drivers::storage::{
    Role, SnapshotPiece, check_piece, not_being_filled, snapshot_not_found, store_full,
};

/// Converting writes the whole volume; slower than this is a broken disk.
const CONVERT_TIMEOUT: Duration = Duration::from_secs(3600);

impl FileStorage {
    pub(super) async fn piece_of_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let volumes = self.volumes_of(vm).await?;
        let found = volumes.into_iter().find(|(role, _)| *role == volume);
        let (_, path) = found.ok_or_else(|| snapshot_not_found(vm, name))?;
        let failed = |error: ContentError| match error {
            ContentError::NoSnapshot { .. } => snapshot_not_found(vm, name),
            error => DriverError::failed(format!("read a snapshot of {}", path.display()), error),
        };
        let mut content = Content::open(&path, name).await.map_err(failed)?;
        let piece = content.piece(from).await.map_err(failed)?;
        Ok(SnapshotPiece {
            size_bytes: piece.size_bytes,
            offset: piece.offset,
            data: piece.data,
            next: piece.next,
        })
    }

    fn target(&self, vm: VmUuid, volume: Role) -> Result<PathBuf, DriverError> {
        let folder = self.folder(vm);
        match volume {
            Role::Firmware => Ok(folder.join(variables::NAME)),
            Role::Disk(index) => Ok(folder.join(format!("disk{index}.qcow2"))),
            Role::Root => Err(not_supported("file", "read and fill root folders piece by piece")),
        }
    }

    pub(super) async fn start_filling(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        let target = self.target(vm, volume)?;
        let size_bytes = match volume {
            Role::Firmware => size_bytes,
            Role::Disk(_) | Role::Root => {
                let stamp = stamp(&target).await?;
                if stamp.is_none_or(|stamp| stamp.task_id != *owner) {
                    return Err(not_being_filled(vm, volume));
                }
                let has = virtual_size(&target).await?;
                check_piece(vm, volume, (size_bytes, 0), has)?;
                has
            }
        };
        let raw = raw(&target);
        let exists = tokio::fs::try_exists(&raw).await;
        if exists.map_err(|error| files::failed("look for", &raw, error))? {
            return Ok(());
        }
        files::make_folder(&self.folder(vm)).await?;
        let make = async {
            let file = tokio::fs::File::create(&raw).await?;
            file.set_len(size_bytes).await?;
            file.sync_all().await
        };
        make.await.map_err(|error| files::failed("make", &raw, error))?;
        files::sync_folder(&self.folder(vm)).await
    }

    pub(super) async fn write_piece(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        let raw = raw(&self.target(vm, volume)?);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => not_being_filled(vm, volume),
            _ => files::failed("write", &raw, error),
        };
        let file = tokio::fs::OpenOptions::new().write(true).open(&raw).await;
        let mut file = file.map_err(failed)?;
        let size_bytes = file.metadata().await.map_err(failed)?.len();
        check_piece(vm, volume, (offset, data.len()), size_bytes)?;
        let needed = MIN_FREE_BYTES.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        let free_bytes = files::space_beside(&self.vols).await?.available_bytes;
        if free_bytes < needed {
            let text = format!("{free_bytes} bytes are free in {}", self.vols.display());
            return Err(store_full(text));
        }
        let write = async {
            file.seek(SeekFrom::Start(offset)).await?;
            file.write_all(data).await?;
            file.flush().await?;
            if durable { file.sync_data().await } else { Ok(()) }
        };
        write.await.map_err(failed)
    }

    pub(super) async fn stop_filling(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        let target = self.target(vm, volume)?;
        let raw = raw(&target);
        let exists = tokio::fs::try_exists(&raw).await;
        if !exists.map_err(|error| files::failed("look for", &raw, error))? {
            return Ok(());
        }
        let temporary = files::temporary(&target);
        files::remove(&temporary).await?;
        let argv = ["qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2"].map(str::to_owned);
        let paths = [&raw, &temporary].map(|path| path.display().to_string());
        let made = run(&self.exec, argv.into_iter().chain(paths), CONVERT_TIMEOUT).await;
        if let Err(error) = made {
            files::remove(&temporary).await?;
            return Err(error);
        }
        files::sync_file(&temporary).await?;
        files::rename(&temporary, &target).await?;
        self.sizes.forget(&target);
        files::remove(&raw).await?;
        files::sync_folder(&self.folder(vm)).await
    }
}

/// Where what is written of a volume lies.
fn raw(target: &Path) -> PathBuf {
    let name = match index_of(target) {
        Some(index) => format!("fill-disk{index}.raw"),
        None => "fill-uefi-vars.raw".to_owned(),
    };
    target.with_file_name(name)
}
