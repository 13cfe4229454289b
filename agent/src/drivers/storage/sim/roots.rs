//! Simulated roots of containers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;
use sha2::{Digest as _, Sha256};

use super::SimStorage;
use super::pool::{SIM_ROOT, SimRoot};
use crate::drivers::DriverError;
use crate::drivers::storage::roots::{ContainerRoots, PackedRoot, no_root, of_another};
use crate::drivers::storage::{Identity, Role, RootWishes, Volume, snapshot_not_found};
use crate::host::idmap::IdRange;

#[async_trait]
impl ContainerRoots for SimStorage {
    async fn create_root(
        &self,
        vm: VmUuid,
        image: ImageUuid,
        wishes: &RootWishes,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        wishes.check()?;
        let create = || {
            let mut content = self.pool.0.lock();
            let made = || SimRoot {
                owner: owner.clone(),
                image,
                wishes: wishes.clone(),
                snapshots: Vec::new(),
                packed: BTreeSet::new(),
                filling: false,
            };
            let found = content.roots.entry(vm).or_insert_with(made);
            if found.owner == *owner {
                return Ok(());
            }
            Err(DriverError::refused(Code::DatasetExists, format!("Dataset sim/{vm} exists.")))
        };
        self.faults.call("storage.create_root", create).await
    }

    async fn change_root(&self, vm: VmUuid, wishes: &RootWishes) -> Result<(), DriverError> {
        wishes.check()?;
        let change = || {
            let mut content = self.pool.0.lock();
            let root = content.roots.get_mut(&vm).ok_or_else(|| no_root(vm))?;
            root.wishes = wishes.clone();
            Ok(())
        };
        self.faults.call("storage.change_root", change).await
    }

    async fn root(&self, vm: VmUuid) -> Result<Option<ImageUuid>, DriverError> {
        Ok(self.pool.0.lock().roots.get(&vm).map(|root| root.image))
    }

    async fn lacks_ids(&self, _ids: IdRange) -> Option<String> {
        None
    }

    async fn mount_root(
        &self,
        vm: VmUuid,
        _image_root: &Path,
        _ids: Option<IdRange>,
    ) -> Result<PathBuf, DriverError> {
        let mount = || {
            let mut content = self.pool.0.lock();
            if !content.roots.contains_key(&vm) {
                return Err(no_root(vm));
            }
            content.mounted.insert(vm);
            Ok(PathBuf::from(format!("/sim/roots/{vm}")))
        };
        self.faults.call("storage.mount_root", mount).await
    }

    async fn unmount_root(&self, vm: VmUuid) -> Result<(), DriverError> {
        let unmount = || {
            self.pool.0.lock().mounted.remove(&vm);
            Ok(())
        };
        self.faults.call("storage.unmount_root", unmount).await
    }

    async fn destroy_root(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        let destroy = || {
            let mut content = self.pool.0.lock();
            let is_it = |found: &TaskId| owner.is_none_or(|owner| owner == found);
            if content.roots.get(&vm).is_some_and(|root| is_it(&root.owner)) {
                content.roots.remove(&vm);
                content.mounted.remove(&vm);
            }
            if owner.is_none() {
                content.stashed_roots.remove(&vm);
            }
            Ok(())
        };
        self.faults.call("storage.destroy_root", destroy).await
    }

    async fn pack_root(
        &self,
        vm: VmUuid,
        name: &str,
        _image_root: &Path,
    ) -> Result<PackedRoot, DriverError> {
        let pack = || {
            let mut content = self.pool.0.lock();
            let root = content.roots.get_mut(&vm).filter(|root| root.has(name));
            let root = root.ok_or_else(|| snapshot_not_found(vm, name))?;
            root.packed.insert(name.to_owned());
            let size_bytes = u64::try_from(SIM_ROOT.len()).unwrap_or(0);
            Ok(PackedRoot { size_bytes, sha256: hex::encode(Sha256::digest(SIM_ROOT)) })
        };
        self.faults.call("storage.pack_root", pack).await
    }

    async fn stash_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let stash = || {
            let mut content = self.pool.0.lock();
            if content.roots.get(&vm).is_some_and(|root| root.owner != *task) {
                let root = content.roots.remove(&vm);
                content.mounted.remove(&vm);
                content.stashed_roots.extend(root.map(|root| (vm, root)));
            }
            Ok(())
        };
        self.faults.call("storage.stash_root", stash).await
    }

    async fn restore_root(&self, vm: VmUuid, task: &TaskId) -> Result<(), DriverError> {
        let restore = || {
            let mut content = self.pool.0.lock();
            if !content.stashed_roots.contains_key(&vm) {
                return Ok(());
            }
            if content.roots.get(&vm).is_some_and(|root| root.owner != *task) {
                return Err(of_another(vm));
            }
            content.mounted.remove(&vm);
            if let Some(root) = content.stashed_roots.remove(&vm) {
                content.roots.insert(vm, root);
            }
            Ok(())
        };
        self.faults.call("storage.restore_root", restore).await
    }

    async fn purge_root_stash(&self, vm: VmUuid) -> Result<(), DriverError> {
        let purge = || {
            self.pool.0.lock().stashed_roots.remove(&vm);
            Ok(())
        };
        self.faults.call("storage.purge_root_stash", purge).await
    }

    async fn rooted(&self) -> Result<Vec<VmUuid>, DriverError> {
        let content = self.pool.0.lock();
        let vms: BTreeSet<VmUuid> =
            content.roots.keys().chain(content.stashed_roots.keys()).copied().collect();
        Ok(vms.into_iter().collect())
    }

    async fn root_volumes(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError> {
        let content = self.pool.0.lock();
        let volume = |(root, is_aside): (&SimRoot, bool)| Volume {
            vm,
            role: Role::Root,
            is_aside,
            identity: Some(Identity::of_root(vm, &self.name, &root.owner, Some(root.image))),
            pool: self.name.clone(),
            path: super::path(vm, Role::Root, is_aside),
            size_bytes: None,
            used_bytes: 0,
        };
        let here = content.roots.get(&vm).map(|root| (root, false));
        let aside = content.stashed_roots.get(&vm).map(|root| (root, true));
        Ok(here.into_iter().chain(aside).map(volume).collect())
    }
}
