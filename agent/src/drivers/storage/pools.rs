//! Several pools as one storage. A disk lies in the pool that was asked for, or in the first one;
//! from then on it is found in whichever it is. Images and what tasks keep in reserve are in the
//! first.
//!
//! A further pool may not answer. Then nothing is done with the VMs whose records name it; for all
//! others it has nothing.

mod roots;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{TaskId, VmUuid};
use parking_lot::Mutex;

use super::question::Patient;
use super::{
    Bases, Disk, DiskSpec, RecordCopy, Role, SnapshotPiece, Storage, Usage, Variables, Volume,
    VolumeSnapshot,
};
use crate::drivers::DriverError;

/// The disk beside which the copy of its VM's record and what firmware keeps lie.
const BOOT_DISK: u32 = 0;

/// Pools of any kinds.
#[derive(Debug)]
pub struct Pools {
    first: Arc<dyn Storage>,
    more: Vec<Patient>,
    expected: Mutex<BTreeMap<VmUuid, BTreeSet<String>>>,
}

impl Pools {
    /// Each of these is one pool; the names differ.
    #[must_use]
    pub fn new(first: Arc<dyn Storage>, more: Vec<Arc<dyn Storage>>) -> Self {
        let more = more.into_iter().map(Patient::new).collect();
        Self { first, more, expected: Mutex::default() }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Storage>> {
        std::iter::once(&self.first).chain(self.more.iter().map(|further| &further.pool))
    }

    fn named(&self, name: &str) -> Result<&Arc<dyn Storage>, DriverError> {
        let found = self.all().find(|pool| pool.pools().iter().any(|known| known == name));
        found.ok_or_else(|| super::unknown_pool(name, &self.pools()))
    }

    /// Whether the record of a VM names this pool; `None`: there is no record.
    fn expects(&self, vm: VmUuid, pool: &Arc<dyn Storage>) -> Option<bool> {
        let expected = self.expected.lock();
        let names = expected.get(&vm)?;
        Some(pool.pools().iter().any(|name| names.contains(name)))
    }

    /// What a further pool has of a VM; `None` while it does not answer and need not.
    async fn look<T, A>(
        &self,
        further: &Patient,
        vm: VmUuid,
        question: impl FnOnce(Arc<dyn Storage>) -> A + Send,
    ) -> Result<Option<T>, DriverError>
    where
        T: Send + 'static,
        A: Future<Output = Result<T, DriverError>> + Send + 'static,
    {
        match self.expects(vm, &further.pool) {
            Some(true) => further.insist(question).await.map(Some),
            _ => further.ask(question).await,
        }
    }

    /// The pool in which the VM has this disk.
    async fn with_disk(
        &self,
        vm: VmUuid,
        index: u32,
    ) -> Result<Option<&Arc<dyn Storage>>, DriverError> {
        let disk = Role::Disk(index);
        if self.first.roles(vm).await?.contains(&disk) {
            return Ok(Some(&self.first));
        }
        for further in &self.more {
            let roles = self.look(further, vm, |pool| async move { pool.roles(vm).await }).await?;
            if roles.is_some_and(|roles| roles.contains(&disk)) {
                return Ok(Some(&further.pool));
            }
        }
        Ok(None)
    }

    /// The pool in which what belongs to the VM as a whole lies, beside its boot disk.
    async fn home(&self, vm: VmUuid) -> Result<&Arc<dyn Storage>, DriverError> {
        Ok(self.with_disk(vm, BOOT_DISK).await?.unwrap_or(&self.first))
    }

    /// The pool in which a volume lies, or is to lie.
    async fn of(&self, vm: VmUuid, volume: Role) -> Result<&Arc<dyn Storage>, DriverError> {
        match volume {
            Role::Disk(index) => Ok(self.with_disk(vm, index).await?.unwrap_or(&self.first)),
            Role::Firmware => self.home(vm).await,
            Role::Root => Ok(&self.first),
        }
    }

    /// The pools in which something of a VM may lie.
    async fn concerned(&self, vm: VmUuid) -> Result<Vec<&Arc<dyn Storage>>, DriverError> {
        let mut concerned = vec![&self.first];
        for further in &self.more {
            let expects = self.expects(vm, &further.pool);
            let roles = match expects {
                Some(true) => None,
                _ => further.ask(|pool| async move { pool.roles(vm).await }).await?,
            };
            // Without a record there may be what is no volume yet.
            let has = roles.is_some_and(|roles| expects.is_none() || !roles.is_empty());
            if has || expects == Some(true) {
                concerned.push(&further.pool);
            }
        }
        Ok(concerned)
    }
}

/// Appends what each pool has of something of a VM.
macro_rules! of_vm {
    ($self:ident, $vm:ident, $method:ident) => {{
        let mut found = $self.first.$method($vm).await?;
        for further in &$self.more {
            let more = $self.look(further, $vm, |pool| async move { pool.$method($vm).await });
            found.extend(more.await?.unwrap_or_default());
        }
        found
    }};
}

/// Does something in each pool that has something of a VM.
macro_rules! in_each {
    ($self:ident, $method:ident($vm:ident $(, $argument:expr)*)) => {{
        for pool in $self.concerned($vm).await? {
            pool.$method($vm $(, $argument)*).await?;
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
        let mut disks = of_vm!(self, vm, disks);
        disks.sort_by_key(|disk: &Disk| disk.index);
        Ok(disks)
    }

    async fn roles(&self, vm: VmUuid) -> Result<Vec<Role>, DriverError> {
        let mut roles = of_vm!(self, vm, roles);
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

    async fn destroy_disk(
        &self,
        vm: VmUuid,
        index: u32,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        in_each!(self, destroy_disk(vm, index, owner))
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_mib: u64) -> Result<(), DriverError> {
        let pool = self.with_disk(vm, index).await?.unwrap_or(&self.first);
        pool.grow_disk(vm, index, size_mib).await
    }

    async fn snapshots(&self, vm: VmUuid) -> Result<Vec<VolumeSnapshot>, DriverError> {
        let mut found = of_vm!(self, vm, snapshots);
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

    async fn read_snapshot(
        &self,
        vm: VmUuid,
        volume: Role,
        name: &str,
        from: u64,
    ) -> Result<SnapshotPiece, DriverError> {
        self.of(vm, volume).await?.read_snapshot(vm, volume, name, from).await
    }

    async fn begin_fill(
        &self,
        vm: VmUuid,
        volume: Role,
        size_bytes: u64,
        owner: &TaskId,
    ) -> Result<(), DriverError> {
        self.of(vm, volume).await?.begin_fill(vm, volume, size_bytes, owner).await
    }

    async fn fill(
        &self,
        vm: VmUuid,
        volume: Role,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), DriverError> {
        self.of(vm, volume).await?.fill(vm, volume, offset, data, durable).await
    }

    async fn end_fill(&self, vm: VmUuid, volume: Role) -> Result<(), DriverError> {
        self.of(vm, volume).await?.end_fill(vm, volume).await
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
        if !Arc::ptr_eq(home, &self.first) {
            self.first.remove_copy(vm).await?;
        }
        for further in self.more.iter().filter(|other| !Arc::ptr_eq(&other.pool, home)) {
            self.look(further, vm, |pool| async move { pool.remove_copy(vm).await }).await?;
        }
        Ok(())
    }

    async fn remove_copy(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.first.remove_copy(vm).await?;
        for further in &self.more {
            self.look(further, vm, |pool| async move { pool.remove_copy(vm).await }).await?;
        }
        Ok(())
    }

    async fn copied(&self) -> Result<Vec<VmUuid>, DriverError> {
        let mut vms: BTreeSet<VmUuid> = self.first.copied().await?.into_iter().collect();
        for further in &self.more {
            let more = further.ask(|pool| async move { pool.copied().await }).await?;
            vms.extend(more.unwrap_or_default());
        }
        Ok(vms.into_iter().collect())
    }

    async fn copy(&self, vm: VmUuid) -> Result<Option<RecordCopy>, DriverError> {
        // A crash may have left an older one elsewhere.
        let home = self.home(vm).await?;
        let mut found = home.copy(vm).await?;
        if found.is_none() && !Arc::ptr_eq(home, &self.first) {
            found = self.first.copy(vm).await?;
        }
        for further in self.more.iter().filter(|other| !Arc::ptr_eq(&other.pool, home)) {
            if found.is_none() {
                let copy = self.look(further, vm, |pool| async move { pool.copy(vm).await });
                found = copy.await?.flatten();
            }
        }
        Ok(found)
    }

    async fn volumes(&self) -> Result<Vec<Volume>, DriverError> {
        let mut found = self.first.volumes().await?;
        for further in &self.more {
            found.extend(further.insist(|pool| async move { pool.volumes().await }).await?);
        }
        found.sort_by_key(|volume: &Volume| (volume.vm, volume.role, volume.is_aside));
        Ok(found)
    }

    async fn bases(&self) -> Result<Bases, DriverError> {
        let mut all = self.first.bases().await?;
        for further in &self.more {
            let more = further.insist(|pool| async move { pool.bases().await }).await?;
            for (image, vms) in more {
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
        for further in &self.more {
            match further.ask(|pool| async move { pool.usage().await }).await {
                Ok(usage) => usages.extend(usage.into_iter().flatten()),
                // The others are told all the same, see `report::pool`.
                Err(error) => {
                    let pool = further.pool.pools().join(", ");
                    let error = Chain(&error).to_string();
                    tracing::warn!(pool, error, "the figures of a pool can't be read");
                }
            }
        }
        Ok(usages)
    }

    fn problems(&self) -> Vec<String> {
        self.all().flat_map(|pool| pool.problems()).collect()
    }

    fn expect(&self, vm: VmUuid, pools: Option<BTreeSet<String>>) {
        let mut expected = self.expected.lock();
        match pools {
            Some(pools) => expected.insert(vm, pools),
            None => expected.remove(&vm),
        };
    }
}
