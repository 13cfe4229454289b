//! Snapshots of roots: copies of what differs from the image.
//!
//! `snapshots/<number>.<name>` beside `upper`, numbered in the order in which they were taken. A copy has
//! another name until it is whole and durable, and gets one before it is removed.

use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;

use super::{FileStorage, STAMP, files};
use crate::drivers::DriverError;
use crate::drivers::storage::{MIN_FREE_BYTES, snapshot_not_found};
use crate::drivers::trees::{self, Measure};
use crate::drivers::untar::Fault;

/// The folder of the snapshots in a root's folder.
pub(in super::super) const SNAPSHOTS: &str = "snapshots";
/// What is being copied here, or was when the agent ended.
pub(super) const UNFINISHED: &str = ".copy.tmp";
/// What is being removed.
pub(super) const GOING: &str = ".going.tmp";
/// Made to see whether contents can be shared.
const PROBE: &str = ".probe.tmp";

/// The number and the name in a snapshot's file name.
fn parse(path: &Path) -> Option<(u64, String)> {
    let (number, name) = path.file_name()?.to_str()?.split_once('.')?;
    Some((number.parse().ok()?, name.to_owned()))
}

impl FileStorage {
    /// Number, name and folder of each snapshot of a root, the oldest first.
    async fn numbered_root_snapshots(
        &self,
        vm: VmUuid,
    ) -> Result<Vec<(u64, String, PathBuf)>, DriverError> {
        let paths = files::list(&self.root_folder(vm).join(SNAPSHOTS)).await?.into_iter();
        let parsed =
            paths.filter_map(|path| parse(&path).map(|(number, name)| (number, name, path)));
        let mut found: Vec<_> = parsed.collect();
        found.sort();
        Ok(found)
    }

    /// The names of a root's snapshots, the oldest first.
    pub(in super::super) async fn root_snapshots(
        &self,
        vm: VmUuid,
    ) -> Result<Vec<String>, DriverError> {
        let found = self.numbered_root_snapshots(vm).await?;
        Ok(found.into_iter().map(|(_, name, _)| name).collect())
    }

    /// Where a snapshot of a root is.
    pub(in super::super) async fn root_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
    ) -> Result<PathBuf, DriverError> {
        let mut found = self.numbered_root_snapshots(vm).await?.into_iter();
        let found = found.find(|(_, known, _)| known == name);
        found.map(|(_, _, path)| path).ok_or_else(|| snapshot_not_found(vm, name))
    }

    pub(in super::super) async fn make_root_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
    ) -> Result<(), DriverError> {
        let turn = self.root_turns.take(vm).await;
        let known = self.numbered_root_snapshots(vm).await?;
        if known.iter().any(|(_, known, _)| known == name) {
            return Ok(());
        }
        let number = known.last().map_or(1, |(last, _, _)| last + 1);
        let root = self.root_folder(vm);
        let folder = root.join(SNAPSHOTS);
        files::make_folder(&folder).await?;
        let unfinished = folder.join(UNFINISHED);
        self.copy_tree(vm, root.join("upper"), unfinished.clone(), turn).await?;
        files::rename(&unfinished, &folder.join(format!("{number:08}.{name}"))).await
    }

    pub(in super::super) async fn remove_root_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
    ) -> Result<(), DriverError> {
        let _turn = self.root_turns.take(vm).await;
        let folder = self.root_folder(vm).join(SNAPSHOTS);
        let going = folder.join(GOING);
        files::remove_folder(&going).await?;
        self.drop_pack(vm, name).await?;
        for (_, known, path) in self.numbered_root_snapshots(vm).await? {
            if known == name {
                files::rename(&path, &going).await?;
                files::remove_folder_durably(&going).await?;
            }
        }
        Ok(())
    }

    /// Gives a root the content of a snapshot. It must not be put together.
    pub(in super::super) async fn roll_root_back(
        &self,
        vm: VmUuid,
        name: &str,
    ) -> Result<(), DriverError> {
        let from = self.root_snapshot(vm, name).await?;
        let turn = self.root_turns.take(vm).await;
        self.unmount_root_of(vm)?;
        let root = self.root_folder(vm);
        let (upper, unfinished, going) =
            (root.join("upper"), root.join(UNFINISHED), root.join(GOING));
        let turn = self.copy_tree(vm, from, unfinished.clone(), turn).await?;
        files::remove_folder(&going).await?;
        if upper.exists() {
            files::rename(&upper, &going).await?;
        }
        // A crash before this leaves none: the VM is not started until a rollback has gone through.
        files::rename(&unfinished, &upper).await?;
        files::remove_folder(&going).await?;
        // It may name what is not there any more.
        let work = root.join("work");
        files::remove_folder(&work).await?;
        files::make_folder(&work).await?;
        drop(turn);
        Ok(())
    }

    /// Copies a tree to a name that nothing else uses, beside others of the same root. The turn comes
    /// back; when this is dropped, the copy holds it until it has stopped.
    async fn copy_tree<T: Send + 'static>(
        &self,
        vm: VmUuid,
        from: PathBuf,
        to: PathBuf,
        turn: T,
    ) -> Result<T, DriverError> {
        let root = self.root_folder(vm);
        let copying = move |stop: &_| {
            let fault = |error| Fault::Host(files::failed("copy to", &to, error));
            // Left by one that was given up or had no time to end.
            match std::fs::remove_dir_all(&to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(fault(error));
                }
                _ => {}
            }
            let clones =
                trees::clones_files(&root.join(STAMP), &root.join(PROBE)).map_err(fault)?;
            let wanted_bytes = Measure::of(&from, stop)?.copy_bytes(clones);
            trees::check_room(wanted_bytes, &root, MIN_FREE_BYTES)?;
            let copied = trees::copy_here(&from, &to, stop);
            if copied.is_err()
                && let Err(error) = std::fs::remove_dir_all(&to)
            {
                tracing::warn!(path = %to.display(), %error, "what was copied stays until the next copy");
            }
            copied.map(|()| turn)
        };
        trees::beside("copy a root folder", (), copying).await
    }
}
