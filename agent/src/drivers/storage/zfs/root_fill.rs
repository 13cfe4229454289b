//! Roots that are filled with what a container had elsewhere: an archive in the agent's own file system
//! until its files are in a file system of their own, which takes the place of the clone then.

use std::sync::Arc;

use muster_shared::ids::{TaskId, VmUuid};

use super::ZfsStorage;
use super::fill::FILLING;
use super::names::{Place, State};
use super::pool::Row;
use super::stamp::TASK;
use crate::drivers::storage::imports::{self, Import};
use crate::drivers::storage::{Role, no_root, not_being_filled};
use crate::drivers::untar::Fault;
use crate::drivers::{DriverError, files, trees};

/// The folder of the archives in the agent's own file system.
const IMPORTS: &str = "imports";

impl ZfsStorage {
    pub(super) async fn import(&self, vm: VmUuid) -> Result<Import, DriverError> {
        let home = self.home.ready(&self.pool, &self.owner).await?;
        let folder = home.folder.join(IMPORTS);
        files::make_folder(&folder).await?;
        Ok(Import::new(vm, folder.join(format!("{vm}.tar"))))
    }

    pub(super) async fn begin_root_fill(
        &self,
        vm: VmUuid,
        size_bytes: u64,
        owner: &TaskId,
        row: Option<Row>,
    ) -> Result<(), DriverError> {
        if row.is_none_or(|row| row.text(TASK) != Some(owner.as_str())) {
            return Err(not_being_filled(vm, Role::Root));
        }
        self.import(vm).await?.begin(size_bytes).await
    }

    /// A crash may leave the new file system whole and without its name: then the old one is gone, or
    /// goes.
    pub(super) async fn end_root_fill(&self, vm: VmUuid) -> Result<(), DriverError> {
        let mut turn = self.turns.take(vm).await;
        let import = self.import(vm).await?;
        let partial = self.names.volume(Place { vm, role: Role::Root, state: State::Partial });
        let root = self.names.container_root(vm);
        if !import.is_open() {
            return match self.pool.row(&root).await? {
                Some(_) => Ok(()),
                None => Err(no_root(vm)),
            };
        }
        let left = self.pool.row(&partial).await?;
        if left.is_none_or(|row| row.text(FILLING).is_some()) {
            if self.pool.row(&root).await?.is_none() {
                return Err(no_root(vm));
            }
            turn = self.unpack_import(vm, &import, &partial, turn).await?;
        }
        self.hide_root(vm).await?;
        self.remove(&root).await?;
        self.pool.rename(&partial, &root).await?;
        let ended = import.end().await;
        drop(turn);
        ended
    }

    /// Nothing but the archive's files, with all that was set at the clone. The turn comes back; when this
    /// is dropped, the unpacking holds it until it has stopped.
    async fn unpack_import<T: Send + 'static>(
        &self,
        vm: VmUuid,
        import: &Import,
        partial: &str,
        turn: T,
    ) -> Result<T, DriverError> {
        let at = self.place_of_partial(vm);
        self.hide(at.clone()).await?;
        self.remove(partial).await?;
        let mut properties = self.pool.local(&self.names.container_root(vm)).await?;
        properties.insert(FILLING.to_owned(), "yes".to_owned());
        self.pool.create_filesystem(partial, properties).await?;
        let (mounts, archive) = (Arc::clone(&self.mounts), import.path().to_owned());
        let (name, place) = (partial.to_owned(), at.clone());
        let unpacking = move |stop: &_| {
            let failed = |error| Fault::Host(files::failed("mount", &place, error));
            mounts.mount(&name, &place).map_err(failed)?;
            let unpacked = imports::unpack_here(&archive, &place, stop);
            mounts.unmount(&place).map_err(failed)?;
            unpacked.map(|()| turn)
        };
        match trees::beside("unpack a root folder", (), unpacking).await {
            Ok(turn) => self.pool.inherit(partial, FILLING).await.map(|()| turn),
            Err(error) => {
                self.remove(partial).await?;
                Err(error)
            }
        }
    }
}
