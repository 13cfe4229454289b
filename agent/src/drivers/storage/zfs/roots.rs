//! Roots of containers: file systems, clones of their images. ZFS mounts none of them by itself: one is
//! shown in the agent's run folder from before its container starts until that has ended.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;

use super::names::{self, Place, State};
use super::pool::Row;
use super::stamp::TASK;
use super::{Mounts, ZfsStorage};
use crate::drivers::storage::packs::{Pack, open_folder};
use crate::drivers::storage::roots::{ContainerRoots, PackedRoot, no_root, of_another};
use crate::drivers::storage::{
    Role, RootWishes, SnapshotPiece, Volume, image_not_installed, snapshot_not_found,
};
use crate::drivers::untar::Fault;
use crate::drivers::zfs::Properties;
use crate::drivers::{DriverError, files, trees};
use crate::host::idmap::IdRange;

/// The folder of the archives of snapshots in the agent's own file system, one for each VM.
const PACKS: &str = "packs";

/// Properties of a file system that only the agent mounts.
pub(crate) fn unmounted() -> Properties {
    // Whatever a pool says: what reads a tree would find the snapshots in it.
    let all = [("canmount", "noauto"), ("mountpoint", "legacy"), ("snapdir", "hidden")];
    all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl ZfsStorage {
    /// Where a VM's root is shown.
    pub(super) fn place_of(&self, vm: VmUuid) -> PathBuf {
        self.roots.join(vm.to_string())
    }

    /// Where a root is shown while it is filled.
    pub(super) fn place_of_partial(&self, vm: VmUuid) -> PathBuf {
        self.roots.join(format!("{vm}.partial"))
    }

    /// Where a snapshot of one is shown, for a moment.
    fn place_of_snapshot(&self, vm: VmUuid) -> PathBuf {
        self.roots.join(format!("{vm}.snapshot"))
    }

    async fn show(
        &self,
        name: String,
        at: PathBuf,
        ids: Option<IdRange>,
    ) -> Result<(), DriverError> {
        let mounts = Arc::clone(&self.mounts);
        let show = move |_: &_| {
            let shown = match ids {
                Some(ids) => mounts.mount_under(&name, &at, ids),
                None => mounts.mount(&name, &at),
            };
            shown.map_err(|e| Fault::Host(files::failed("mount", &at, e)))
        };
        trees::beside("mount a root folder", (), show).await
    }

    pub(super) async fn hide(&self, at: PathBuf) -> Result<(), DriverError> {
        let mounts = Arc::clone(&self.mounts);
        let hide = move |_: &_| {
            mounts.unmount(&at).map_err(|e| Fault::Host(files::failed("unmount", &at, e)))
        };
        trees::beside("unmount a root folder", (), hide).await
    }

    pub(super) async fn hide_root(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.hide(self.place_of(vm)).await
    }

    async fn root_row(&self, vm: VmUuid, state: State) -> Result<Option<Row>, DriverError> {
        self.pool.row(&self.names.volume(Place { vm, role: Role::Root, state })).await
    }

    /// Refuses an image that is none of containers, or not whole.
    async fn check_image(&self, image: ImageUuid) -> Result<(), DriverError> {
        let (name, snapshot) = (self.names.image(image), self.names.final_snapshot(image));
        let rows = self.pool.rows(&name).await?;
        let is_one = rows.iter().any(|row| row.name == name && row.is_filesystem());
        match is_one && rows.iter().any(|row| row.name == snapshot) {
            true => Ok(()),
            false => Err(image_not_installed(image)),
        }
    }

    async fn destroy_roots(&self, vm: VmUuid, task: Option<&TaskId>) -> Result<(), DriverError> {
        let holder = self.names.of_vm(vm);
        let rows = self.pool.rows(&holder).await?;
        let roots = self.placed(&rows).filter(|(place, _)| place.role == Role::Root);
        let is_theirs = |(place, row): &(Place, &Row)| match task {
            None => true,
            Some(task) => place.state != State::Aside && row.text(TASK) == Some(task.as_str()),
        };
        let going: Vec<_> = roots.filter(is_theirs).collect();
        if going.is_empty() {
            return Ok(());
        }
        for place in [self.place_of(vm), self.place_of_partial(vm), self.place_of_snapshot(vm)] {
            self.hide(place).await?;
        }
        for (_, row) in &going {
            self.remove(&row.name).await?;
        }
        self.import(vm).await?.end().await?;
        self.sweep_packs(vm, &rows).await?;
        let others = rows.iter().filter(|row| !row.is_snapshot() && row.name != holder).count();
        if others > going.len() {
            return Ok(());
        }
        match self.pool.destroy(&holder).await {
            Err(DriverError::Refused {
                code: Code::DatasetNotFound | Code::DatasetHasChildren,
                ..
            }) => Ok(()),
            done => done,
        }
    }

    /// The archive of a snapshot. A snapshot that comes later under its name has another one.
    async fn pack(&self, vm: VmUuid, name: &str) -> Result<Pack, DriverError> {
        let root = self.names.container_root(vm);
        let snapshot = names::snapshot(&root, name);
        let rows = self.pool.rows(&root).await?;
        let found = rows.iter().find(|row| row.name == snapshot);
        let guid = found.and_then(|row| row.text("guid"));
        let guid = guid.ok_or_else(|| snapshot_not_found(vm, name))?;
        Ok(Pack::new(&self.packs_of(vm).await?, guid))
    }

    async fn packs_of(&self, vm: VmUuid) -> Result<PathBuf, DriverError> {
        let home = self.home.ready(&self.pool, &self.owner).await?;
        Ok(home.folder.join(PACKS).join(vm.to_string()))
    }

    pub(super) async fn piece_of_pack(
        &self,
        vm: VmUuid,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        let piece = self.pack(vm, name).await?.piece(from).await?;
        piece.ok_or_else(|| snapshot_not_found(vm, name))
    }

    /// Removes archives whose snapshots are gone. `before`: what there was of the VM.
    pub(super) async fn sweep_packs(&self, vm: VmUuid, before: &[Row]) -> Result<(), DriverError> {
        if !self.placed(before).any(|(place, _)| place.role == Role::Root) {
            return Ok(());
        }
        let folder = self.packs_of(vm).await?;
        let names = Pack::names(&folder).await?;
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let taken =
            |guid: &str| rows.iter().any(|row| row.is_snapshot() && row.text("guid") == Some(guid));
        for name in names.iter().filter(|name| !taken(name)) {
            Pack::new(&folder, name).remove().await?;
        }
        match names.iter().any(|name| taken(name)) {
            true => Ok(()),
            false => files::remove_folder(&folder).await,
        }
    }
}

#[async_trait]
impl ContainerRoots for ZfsStorage {
    async fn create_root(
        &self,
        vm: VmUuid,
        image: ImageUuid,
        wishes: &RootWishes,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        wishes.check()?;
        if let Some(existing) = self.root_row(vm, State::InPlace).await? {
            if existing.text(TASK) == Some(owner.as_str()) {
                return Ok(());
            }
            let text = format!("Dataset {} exists.", existing.name);
            return Err(DriverError::refused(Code::DatasetExists, text));
        }
        self.check_image(image).await?;
        self.make_holder(vm).await?;
        let mut properties = self.owner.stamp_of_disk(vm, owner, Some(image));
        properties.extend(unmounted());
        properties.extend(of_wishes(wishes));
        let origin = self.names.final_snapshot(image);
        self.pool.clone_of(&origin, &self.names.container_root(vm), properties).await
    }

    async fn change_root(&self, vm: VmUuid, wishes: &RootWishes) -> Result<(), DriverError> {
        wishes.check()?;
        let row = self.root_row(vm, State::InPlace).await?.ok_or_else(|| no_root(vm))?;
        let used_bytes = row.number("used").unwrap_or(0);
        if wishes.quota_bytes.is_some_and(|quota_bytes| quota_bytes < used_bytes) {
            let text =
                format!("quota: the root folder of VM {vm} takes {used_bytes} bytes already");
            return Err(DriverError::refused(Code::InvalidParameters, text));
        }
        let (local, mut wanted) = (self.pool.local(&row.name).await?, of_wishes(wishes));
        // It is of one file system alone: there is nothing to be inherited.
        wanted.entry(QUOTA.to_owned()).or_insert("none".to_owned());
        for name in WISHES {
            if local.contains_key(name) && !wanted.contains_key(name) {
                self.pool.inherit(&row.name, name).await?;
            }
        }
        self.pool.set(&row.name, wanted).await
    }

    async fn root(&self, vm: VmUuid) -> Result<Option<ImageUuid>, DriverError> {
        Ok(self.root_row(vm, State::InPlace).await?.and_then(|row| row.image()))
    }

    /// From version 2.2 on ZFS can do that.
    async fn lacks_ids(&self, ids: IdRange) -> Option<String> {
        let can = async {
            let home = self.home.ready(&self.pool, &self.owner).await?;
            let (mounts, folder) = (Arc::clone(&self.mounts), home.folder.clone());
            let check = move |_: &_| {
                let checked = mounts.check_under(&folder, ids);
                checked.map_err(|e| Fault::Host(files::failed("show under other ids", &folder, e)))
            };
            trees::beside("look at what this ZFS can do", (), check).await
        };
        can.await.err().map(|error| Chain(&error).to_string())
    }

    async fn mount_root(
        &self,
        vm: VmUuid,
        _image_root: &Path,
        ids: Option<IdRange>,
    ) -> Result<PathBuf, DriverError> {
        let row = self.root_row(vm, State::InPlace).await?.ok_or_else(|| no_root(vm))?;
        let place = self.place_of(vm);
        self.show(row.name, place.clone(), ids).await?;
        Ok(place)
    }

    async fn unmount_root(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.hide_root(vm).await
    }

    async fn destroy_root(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        {
            let _turn = self.turns.take(vm).await;
            let _renames = self.renames.read().await;
            self.destroy_roots(vm, owner).await?;
        }
        if owner.is_none() {
            self.turns.forget(vm);
        }
        Ok(())
    }

    async fn pack_root(
        &self,
        vm: VmUuid,
        name: &str,
        _image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        let turn = self.turns.take(vm).await;
        let pack = self.pack(vm, name).await?;
        if let Some(packed) = pack.known().await? {
            return Ok(packed);
        }
        let snapshot = names::snapshot(&self.names.container_root(vm), name);
        let (mounts, at) = (Arc::clone(&self.mounts), self.place_of_snapshot(vm));
        let open = move || {
            let opened = opened(mounts.as_ref(), &snapshot, &at);
            opened.map_err(|error| Fault::Host(files::failed("mount", &at, error)))
        };
        pack.make(turn, open).await
    }

    async fn stash_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let _turn = self.turns.take(vm).await;
        let _renames = self.renames.read().await;
        let row = self.root_row(vm, State::InPlace).await?;
        if row.is_none_or(|row| row.text(TASK) == Some(task.as_str())) {
            // The new one is being made already, or none is there.
            return Ok(());
        }
        self.shift(vm, Role::Root, State::InPlace, State::Aside).await
    }

    async fn restore_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let _turn = self.turns.take(vm).await;
        let _renames = self.renames.read().await;
        let stash = self.root_row(vm, State::Aside).await?;
        let row = self.root_row(vm, State::InPlace).await?;
        if stash.is_some() && row.is_some_and(|row| row.text(TASK) != Some(task.as_str())) {
            return Err(of_another(vm));
        }
        self.shift(vm, Role::Root, State::Aside, State::InPlace).await
    }

    async fn purge_root_stash(&self, vm: VmUuid) -> Result<(), DriverError> {
        let _turn = self.turns.take(vm).await;
        let _renames = self.renames.read().await;
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let place = Place { vm, role: Role::Root, state: State::Aside };
        self.remove(&self.names.volume(place)).await?;
        self.sweep_packs(vm, &rows).await
    }

    async fn rooted(&self) -> Result<Vec<VmUuid>, DriverError> {
        let _still = self.renames.write().await;
        self.with_roots().await
    }

    async fn root_volumes(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError> {
        let _still = self.renames.write().await;
        self.roots_of(vm).await
    }
}

const QUOTA: &str = "quota";
/// Properties that follow from wishes.
const WISHES: [&str; 3] = [QUOTA, "recordsize", "compression"];

fn of_wishes(wishes: &RootWishes) -> Properties {
    let [quota, record, compression] = WISHES.map(str::to_owned);
    let all = [
        wishes.quota_bytes.map(|bytes| (quota, bytes.to_string())),
        wishes.record_bytes.map(|bytes| (record, bytes.to_string())),
        wishes.compression.clone().map(|how| (compression, how)),
    ];
    all.into_iter().flatten().collect()
}

/// The files of a snapshot. Nothing is mounted any more when it returns, but for whoever has the folder
/// open.
fn opened(mounts: &dyn Mounts, snapshot: &str, at: &Path) -> std::io::Result<OwnedFd> {
    mounts.mount(snapshot, at)?;
    let opened = open_folder(at);
    mounts.unmount(at)?;
    opened
}
