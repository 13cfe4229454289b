//! Several pools as one storage. A disk lies in the pool that was asked for, or in the first one;
//! from then on it is found in whichever it is. Images and what tasks keep in reserve are in the
//! first.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{TaskId, VmUuid};

use super::{
    Bases, Disk, DiskSpec, RecordCopy, Role, Storage, Usage, Variables, Volume, VolumeSnapshot,
};
use crate::drivers::DriverError;

/// The disk beside which the copy of its VM's record and what firmware keeps lie.
const BOOT_DISK: u32 = 0;

/// Pools of any kinds.
#[derive(Debug)]
pub struct Pools {
    first: Arc<dyn Storage>,
    more: Vec<Arc<dyn Storage>>,
}

impl Pools {
    /// Each of these is one pool; the names differ.
    #[must_use]
    pub fn new(first: Arc<dyn Storage>, more: Vec<Arc<dyn Storage>>) -> Self {
        Self { first, more }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Storage>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn named(&self, name: &str) -> Result<&Arc<dyn Storage>, DriverError> {
        let found = self.all().find(|pool| pool.pools().iter().any(|known| known == name));
        found.ok_or_else(|| super::unknown_pool(name, &self.pools()))
    }

    /// The pool in which the VM has this disk.
    async fn with_disk(
        &self,
        vm: VmUuid,
        index: u32,
    ) -> Result<Option<&Arc<dyn Storage>>, DriverError> {
        for pool in self.all() {
            if pool.roles(vm).await?.contains(&Role::Disk(index)) {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }

    /// The pool in which what belongs to the VM as a whole lies, beside its boot disk.
    async fn home(&self, vm: VmUuid) -> Result<&Arc<dyn Storage>, DriverError> {
        Ok(self.with_disk(vm, BOOT_DISK).await?.unwrap_or(&self.first))
    }
}

/// Appends what each pool has of something.
macro_rules! of_all {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        let mut found = Vec::new();
        for pool in $self.all() {
            found.extend(pool.$method($($argument),*).await?);
        }
        found
    }};
}

/// Does something in each pool.
macro_rules! in_each {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        for pool in $self.all() {
            pool.$method($($argument),*).await?;
        }
        Ok(())
    }};
}

#[async_trait]
impl Storage for Pools {
    fn name(&self) -> &'static str {
        self.first.name()
    }

    fn pools(&self) -> Vec<String> {
        self.all().flat_map(|pool| pool.pools()).collect()
    }

    async fn create_disk(&self, spec: &DiskSpec, owner: &TaskId) -> Result<Disk, DriverError> {
        let pool = match &spec.pool {
            Some(name) => self.named(name)?,
            None => &self.first,
        };
        match self.with_disk(spec.vm, spec.index).await? {
            Some(other) if !Arc::ptr_eq(other, pool) => {
                Err(super::disk_exists(spec, &other.pools()))
            }
            _ => pool.create_disk(spec, owner).await,
        }
    }

    async fn disks(&self, vm: VmUuid) -> Result<Vec<Disk>, DriverError> {
        let mut disks = of_all!(self, disks(vm));
        disks.sort_by_key(|disk: &Disk| disk.index);
        Ok(disks)
    }

    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError> {
        let mut roles = of_all!(self, roles(vm));
        roles.sort();
        Ok(roles)
    }

    async fn variables(&self, vm: VmUuid, template: &Path) -> Result<Variables, DriverError> {
        self.home(vm).await?.variables(vm, template).await
    }

    async fn check_idle(&self, vm: VmUuid) -> Result<(), DriverError> {
        in_each!(self, check_idle(vm))
    }

    async fn destroy_disks(&self, vm: VmUuid, owner: Option<&TaskId>) -> Result<(), DriverError> {
        // Of a VM that is in use in one pool, nothing goes in another.
        self.check_idle(vm).await?;
        in_each!(self, destroy_disks(vm, owner))
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError> {
        let pool = self.with_disk(vm, index).await?.unwrap_or(&self.first);
        pool.grow_disk(vm, index, size_mib).await
    }

    async fn snapshots(&self, vm: VmUuid) -> Result<Vec<VolumeSnapshot>, DriverError> {
        let mut found = of_all!(self, snapshots(vm));
        // Stable: those of one volume stay in their order.
        found.sort_by_key(|snapshot: &VolumeSnapshot| snapshot.volume);
        Ok(found)
    }

    async fn create_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        of: &[Role],
    ) -> Result<(), DriverError> {
        in_each!(self, create_snapshot(vm, name, of))
    }

    async fn delete_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        in_each!(self, delete_snapshot(vm, name, from))
    }

    async fn roll_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let having = self.snapshots(vm).await?.into_iter().filter(|found| found.name == name);
        let having: BTreeSet<Role> = having.map(|found| found.volume).collect();
        let roles = self.roles(vm).await?;
        if roles.iter().any(|role| *role != Role::Firmware && !having.contains(role)) {
            return Err(super::snapshot_not_found(vm, name));
        }
        in_each!(self, roll_back(vm, name))
    }

    async fn stash_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        in_each!(self, stash_disk(vm, index, task))
    }

    async fn restore_disk(&self, vm: VmUuid, index: u32, task: &TaskId) -> Result<(), DriverError> {
        in_each!(self, restore_disk(vm, index, task))
    }

    async fn purge_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        in_each!(self, purge_stash(vm, index))
    }

    async fn put_copy(&self, vm: VmUuid, copy: &[u8]) -> Result<(), DriverError> {
        let home = self.home(vm).await?;
        home.put_copy(vm, copy).await?;
        // Before it had disks it was in the first.
        for other in self.all().filter(|pool| !Arc::ptr_eq(pool, home)) {
            other.remove_copy(vm).await?;
        }
        Ok(())
    }

    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError> {
        in_each!(self, remove_copy(vm))
    }

    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError> {
        let vms: BTreeSet<VmUuid> = of_all!(self, copied()).into_iter().collect();
        Ok(vms.into_iter().collect())
    }

    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        // A crash may have left an older one elsewhere.
        let home = self.home(vm).await?;
        let mut found = home.copy(vm).await?;
        for other in self.all().filter(|pool| !Arc::ptr_eq(pool, home)) {
            if found.is_none() {
                found = other.copy(vm).await?;
            }
        }
        Ok(found)
    }

    async fn volumes(&self) -> Result<Vec<Volume>, DriverError> {
        let mut found = of_all!(self, volumes());
        found.sort_by_key(|volume: &Volume| (volume.vm, volume.role, volume.is_aside));
        Ok(found)
    }

    async fn bases(&self) -> Result<Bases, DriverError> {
        let mut all = Bases::new();
        for pool in self.all() {
            for (image, vms) in pool.bases().await? {
                for (vm, disks) in vms {
                    *all.entry(image).or_default().entry(vm).or_default() += disks;
                }
            }
        }
        Ok(all)
    }

    async fn keep_room(&self) -> Result<bool, DriverError> {
        self.first.keep_room().await
    }

    async fn lend_room(&self) -> Result<bool, DriverError> {
        self.first.lend_room().await
    }

    async fn usage(&self) -> Result<Vec<Usage>, DriverError> {
        let mut usages = self.first.usage().await?;
        for pool in &self.more {
            match pool.usage().await {
                Ok(usage) => usages.extend(usage),
                // The others are told all the same, see `report::pool`.
                Err(error) => {
                    let (pool, error) = (pool.pools().join(", "), Chain(&error).to_string());
                    tracing::warn!(pool, error, "the figures of a pool can't be read");
                }
            }
        }
        Ok(usages)
    }
}
