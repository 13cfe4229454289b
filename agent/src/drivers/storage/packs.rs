//! The files of a root as one archive: what an image is made of, and what a copy of the VM holds.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::roots::PackedRoot;
use super::{MAX_PIECE_BYTES, MIN_FREE_BYTES, SnapshotPiece};
use crate::drivers::trees::{self, Measure};
use crate::drivers::untar::Fault;
use crate::drivers::{DriverError, files};

/// An archive that is being written, beside those that are whole.
const UNFINISHED: &str = ".pack.tmp";

/// `<name>.tar`, and with it `<name>.json`, which is written last.
#[derive(Clone, Debug)]
pub(super) struct Pack(PathBuf);

impl Pack {
    /// Of this name in a folder.
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self(folder.join(format!("{name}.tar")))
    }

    /// The names of those in a folder, whole or not.
    pub(super) async fn names(folder: &Path) -> Result<Vec<String>, DriverError> {
        let name =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_suffix(".tar").map(str::to_owned);
        Ok(files::list(folder).await?.iter().filter_map(name).collect())
    }

    fn description(&self) -> PathBuf {
        self.0.with_extension("json")
    }

    /// What is known of it, if it is whole.
    pub(super) async fn known(&self) -> Result<Option<PackedRoot>, DriverError> {
        let path = self.description();
        let Some(content) = files::read(&path).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&content);
        parsed.map(Some).map_err(|e| DriverError::failed(format!("read {}", path.display()), e))
    }

    /// Packs the folder that `open` opens, on a thread of its own, which holds `turn` until it has
    /// stopped; durable when it returns.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        turn: T,
        open: impl FnOnce() -> Result<OwnedFd, Fault> + Send + 'static,
    ) -> Result<PackedRoot, DriverError> {
        let folder = self.0.parent().expect("it lies in a folder").to_owned();
        files::make_folder(&folder).await?;
        let unfinished = folder.join(UNFINISHED);
        let to = unfinished.clone();
        let packing = move |stop: &_| {
            let opened = open()?;
            let wanted_bytes = Measure::of_open(opened.as_fd(), stop)?.archive_bytes();
            trees::check_room(wanted_bytes, &folder, MIN_FREE_BYTES)?;
            let archived = trees::archive_here(opened.as_fd(), &to, stop);
            if archived.is_err() {
                std::fs::remove_file(&to).ok();
            }
            archived.map(|archived| (archived, turn))
        };
        let (archived, _turn) = trees::beside("pack a root folder", (), packing).await?;
        files::rename(&unfinished, &self.0).await?;
        let packed = PackedRoot { size_bytes: archived.size_bytes, sha256: archived.sha256 };
        let json = serde_json::to_vec(&packed).expect("two plain members");
        files::write(&self.description(), &json).await?;
        Ok(packed)
    }

    /// Removes it; none is no error.
    pub(super) async fn remove(&self) -> Result<(), DriverError> {
        files::remove(&self.description()).await?;
        files::remove(&self.0).await
    }

    /// What stands in it there; `None`: it is not there.
    pub(super) async fn piece(&self, from: u64) -> Result<Option<SnapshotPiece>, DriverError> {
        let Some(PackedRoot { size_bytes, .. }) = self.known().await? else { return Ok(None) };
        let left = usize::try_from(size_bytes.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut data = vec![0; left.min(MAX_PIECE_BYTES)];
        let path = self.0.clone();
        let data = trees::beside("read a packed root folder", (), move |_| {
            let read =
                std::fs::File::open(&path).and_then(|file| file.read_exact_at(&mut data, from));
            read.map_err(|error| Fault::Host(files::failed("read", &path, error)))?;
            Ok(data)
        });
        let data = data.await?;
        let next = from.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        let next = next.min(size_bytes).max(from);
        Ok(Some(SnapshotPiece { size_bytes, offset: from, data, next }))
    }
}

/// Opens a folder that is shown for a moment: it stays for whoever has it open.
pub(super) fn open_folder(folder: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}
