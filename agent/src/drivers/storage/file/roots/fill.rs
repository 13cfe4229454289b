//! Roots that are filled with what a container had elsewhere: an archive of all of its files, written piece
//! by piece and unpacked at the end.
//!
//! `import.tar` beside `upper` until its content is there. What the image has besides is hidden then, as
//! if the container had removed it.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use muster_shared::ids::{TaskId, VmUuid};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};

use super::snapshots::{GOING, UNFINISHED};
use super::{FileStorage, files};
use crate::drivers::DriverError;
use crate::drivers::storage::imports::{self, Import};
use crate::drivers::storage::{Role, image_not_installed, no_root, not_being_filled};
use crate::drivers::trees;
use crate::drivers::untar::{self, Fault};

const ARCHIVE: &str = "import.tar";

impl FileStorage {
    fn import(&self, vm: VmUuid) -> Import {
        Import::new(vm, self.root_folder(vm).join(ARCHIVE))
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
        self.import(vm).begin(size_bytes).await
    }

    pub(in super::super) async fn fill_root(
        &self,
        vm: VmUuid,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        self.import(vm).write(offset, data, durable).await
    }

    pub(in super::super) async fn end_root_fill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let turn = self.root_turns.take(vm).await;
        let stamp = self.root_stamp(vm).await?.ok_or_else(|| no_root(vm))?;
        let import = self.import(vm);
        if !import.is_open() {
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
        let (from, to) = (import.path().to_owned(), unfinished.clone());
        let unpacking = move |stop: &_| {
            let made = std::fs::DirBuilder::new().mode(0o755).create(&to);
            made.map_err(|error| untar::host("create", &to, error))?;
            imports::unpack_here(&from, &to, stop)?;
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
        import.end().await
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
