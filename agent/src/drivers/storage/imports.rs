//! What a container had elsewhere: an archive of all of its files, written piece by piece and unpacked at
//! the end.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;
use tokio_util::sync::CancellationToken;

use super::{MIN_FREE_BYTES, Role, check_piece, not_being_filled};
use crate::drivers::trees;
use crate::drivers::untar::{self, AnyEntry, Bounds, Fault, Inside, Tree, entries, invalid, shown};
use crate::drivers::{DriverError, files};

/// What the archive is called for people.
const WHAT: &str = "what was imported";
const BUFFER_BYTES: usize = 128 * 1024;

/// The archive of a VM's root, until its content is there.
#[derive(Clone, Debug)]
pub(super) struct Import {
    vm: VmUuid,
    path: PathBuf,
}

impl Import {
    pub(super) fn new(vm: VmUuid, path: PathBuf) -> Self {
        Self { vm, path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was begun, and is not done.
    pub(super) fn is_open(&self) -> bool {
        self.path.exists()
    }

    fn folder(&self) -> &Path {
        self.path.parent().expect("it lies in a folder")
    }

    /// Makes it; what was written to it before stays. Durable when it returns.
    pub(super) async fn begin(&self, size_bytes: u64) -> Result<(), DriverError> {
        let path = self.path.clone();
        let made = trees::beside("make room for a root folder", (), move |_| {
            let failed = |error| Fault::Host(files::failed("make", &path, error));
            // A crash may have left one without its size, or with what was written to it already.
            let file = File::options().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(failed)?;
            file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(failed)
        });
        made.await?;
        files::sync_folder(self.folder()).await
    }

    /// Writes a piece; with `durable` all of them stay, whatever happens.
    ///
    /// # Errors
    /// `DatasetNotFound`: it was not begun; `InvalidParameters`; `StoreFull`.
    pub(super) async fn write(
        &self,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        let (path, data) = (self.path.clone(), data.to_vec());
        let is_there = tokio::fs::metadata(&path).await;
        let size_bytes = is_there.map_err(|_| not_being_filled(self.vm, Role::Root))?.len();
        check_piece(self.vm, Role::Root, (offset, data.len()), size_bytes)?;
        let beside = self.folder().to_owned();
        let written = trees::beside("fill a root folder", (), move |_| {
            let wanted_bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            trees::check_room(wanted_bytes, &beside, MIN_FREE_BYTES)?;
            let failed = |error| Fault::Host(files::failed("write", &path, error));
            let file = File::options().write(true).open(&path).map_err(failed)?;
            file.write_all_at(&data, offset).map_err(failed)?;
            if durable { file.sync_all().map_err(failed) } else { Ok(()) }
        });
        written.await
    }

    /// Removes it; none is no error. Durable when it returns.
    pub(super) async fn end(&self) -> Result<(), DriverError> {
        files::remove(&self.path).await?;
        files::sync_folder(self.folder()).await
    }
}

/// Unpacks an archive to a folder that is there and has nothing in it, on this thread; durable when it
/// returns.
pub(super) fn unpack_here(from: &Path, to: &Path, stop: &CancellationToken) -> Result<(), Fault> {
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
