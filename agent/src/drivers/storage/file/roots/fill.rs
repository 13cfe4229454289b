//! Roots that are filled with what a container had elsewhere: an archive of all of its files, written piece
//! by piece and unpacked at the end.
//!
//! `import.tar` beside `upper` until its content is there. What the image has besides is hidden then, as
//! if the container had removed it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

use muster_shared::ids::{TaskId, VmUuid};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};
use tokio_util::sync::CancellationToken;

use super::snapshots::{GOING, UNFINISHED};
use super::{FileStorage, files};
use crate::drivers::DriverError;
use crate::drivers::storage::{
    MIN_FREE_BYTES, Role, check_piece, image_not_installed, no_root, not_being_filled,
};
use crate::drivers::trees;
use crate::drivers::untar::{self, AnyEntry, Bounds, Fault, Inside, Tree, entries, invalid, shown};

const ARCHIVE: &str = "import.tar";
/// What the archive is called for people.
const WHAT: &str = "what was imported";
const BUFFER_BYTES: usize = 128 * 1024;

impl FileStorage {
    fn import_path(&self, vm: VmUuid) -> PathBuf {
        self.root_folder(vm).join(ARCHIVE)
    }

    pub(in super::super) async fn begin_root_fill(
        &self,
        vm: VmUuid,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        if self.root_stamp(vm).await?.is_none_or(|stamp| stamp.task_id != *owner) {
            return Err(not_being_filled(vm, Role::Root));
        }
        let path = self.import_path(vm);
        let made = trees::beside("make room for a root folder", (), move |_| {
            let failed = |error| Fault::Host(files::failed("make", &path, error));
            // A crash may have left one without its size, or with what was written to it already.
            let file = File::options().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(failed)?;
            file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(failed)
        });
        made.await?;
        files::sync_folder(&self.root_folder(vm)).await
    }

    pub(in super::super) async fn fill_root(
        &self,
        vm: VmUuid,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        let (path, data) = (self.import_path(vm), data.to_vec());
        let is_there = tokio::fs::metadata(&path).await;
        let size_bytes = is_there.map_err(|_| not_being_filled(vm, Role::Root))?.len();
        check_piece(vm, Role::Root, (offset, data.len()), size_bytes)?;
        let root = self.root_folder(vm);
        let written = trees::beside("fill a root folder", (), move |_| {
            let wanted_bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            trees::check_room(wanted_bytes, &root, MIN_FREE_BYTES)?;
            let failed = |error| Fault::Host(files::failed("write", &path, error));
            let file = File::options().write(true).open(&path).map_err(failed)?;
            file.write_all_at(&data, offset).map_err(failed)?;
            if durable { file.sync_all().map_err(failed) } else { Ok(()) }
        });
        written.await
    }

    pub(in super::super) async fn end_root_fill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let turn = self.root_turns.take(vm).await;
        let stamp = self.root_stamp(vm).await?.ok_or_else(|| no_root(vm))?;
        let archive = self.import_path(vm);
        if !archive.exists() {
            return Ok(());
        }
        let image = stamp.image_uuid.ok_or_else(|| no_root(vm))?;
        let lower = self.images.join(format!("{image}.root"));
        if !lower.exists() {
            return Err(image_not_installed(image));
        }
        let root = self.root_folder(vm);
        let (upper, unfinished, going) =
            (root.join("upper"), root.join(UNFINISHED), root.join(GOING));
        files::remove_folder(&unfinished).await?;
        let (from, to) = (archive.clone(), unfinished.clone());
        let unpacking = move |stop: &_| {
            unpack(&from, &to, stop)?;
            hide(&lower, &to)?;
            Ok(turn)
        };
        let _turn = trees::beside("unpack a root folder", (), unpacking).await?;
        files::remove_folder(&going).await?;
        if upper.exists() {
            files::rename(&upper, &going).await?;
        }
        files::rename(&unfinished, &upper).await?;
        files::remove_folder(&going).await?;
        files::remove(&archive).await?;
        files::sync_folder(&root).await
    }
}

fn unpack(from: &Path, to: &Path, stop: &CancellationToken) -> Result<(), Fault> {
    let made = std::fs::DirBuilder::new().mode(0o755).create(to);
    made.map_err(|error| untar::host("create", to, error))?;
    let archive = File::open(from).map_err(|error| untar::host("open", from, error))?;
    let bounds = Bounds::default();
    let mut tree = Tree::open(to, bounds.clone())?;
    tree.describe_root()?;
    let mut count = 0_u64;
    let reader = io::BufReader::with_capacity(BUFFER_BYTES, archive.take(bounds.bytes));
    entries(WHAT, reader, &mut |entry| {
        if stop.is_cancelled() {
            return Err(Fault::Stopped);
        }
        count += 1;
        if count > bounds.entries {
            return invalid(format!("it has more than {} files", bounds.entries));
        }
        let name = entry.name();
        let path = Inside::new(&name, &bounds)?;
        let mut fill = |entry: &mut dyn AnyEntry, file: &mut File| content(entry, file, stop);
        untar::place(&mut tree, &path, entry, b"", &bounds, &mut fill).map(drop)
    })?;
    tree.sync(to)
}

fn content(
    entry: &mut dyn AnyEntry,
    file: &mut File,
    stop: &CancellationToken,
) -> Result<(), Fault> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        if stop.is_cancelled() {
            return Err(Fault::Stopped);
        }
        let read = entry.read(&mut buffer).map_err(|error| untar::unreadable(WHAT, &error))?;
        if read == 0 {
            return Ok(());
        }
        let written = file.write_all(&buffer[..read]);
        written.map_err(|error| untar::host("write", Path::new(&shown(&entry.name())), error))?;
    }
}

/// Hides all that is in `lower` and not in `upper`, in the ways that overlays know. Folders below those
/// at the top are hidden with them.
fn hide(lower: &Path, upper: &Path) -> Result<(), Fault> {
    let failed = |error: io::Error| untar::host("hide files of the image in", upper, error);
    for entry in std::fs::read_dir(lower).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let at = upper.join(&name);
        match at.symlink_metadata() {
            Ok(found) if found.is_dir() => {
                let opaque = lsetxattr(&at, "trusted.overlay.opaque", b"y", XattrFlags::empty());
                opaque.map_err(|error| failed(error.into()))?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let hidden = mknodat(CWD, &at, FileType::CharacterDevice, Mode::empty(), 0);
                hidden.map_err(|error| failed(error.into()))?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let folder = File::open(upper).map_err(failed)?;
    rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))
}
