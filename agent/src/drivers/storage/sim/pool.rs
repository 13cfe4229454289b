//! What lies on the disks of a simulated host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::units::MIB;
use parking_lot::Mutex;
use serde_json::Value;

use crate::drivers::DriverError;
use crate::drivers::images::{ImageUsage, check_unused, origin_of};
use crate::drivers::storage::{Bases, Dependents, RootWishes, store_full};

/// Space a fresh simulated disk takes, bytes.
pub(super) const FRESH_DISK_BYTES: u64 = 256 * 1024;

/// A disk of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimDisk {
    /// The task that made it.
    pub owner: TaskId,
    /// What it is based on.
    pub image: Option<ImageUuid>,
    /// Virtual size, bytes.
    pub size_bytes: u64,
    /// Its snapshots with the sizes of their time, the oldest first.
    pub snapshots: Vec<(String, u64)>,
    /// What was filled in, by its offset. A snapshot holds what the disk does.
    pub content: BTreeMap<u64, Vec<u8>>,
    /// It is being filled.
    pub filling: bool,
}

impl SimDisk {
    pub(super) fn has(&self, name: &str) -> bool {
        self.snapshots.iter().any(|(known, _)| known == name)
    }
}

/// The root of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SimRoot {
    pub(super) owner: TaskId,
    pub(super) image: ImageUuid,
    pub(super) wishes: RootWishes,
    /// Names, the oldest first.
    pub(super) snapshots: Vec<String>,
    /// Those of them that are packed.
    pub(super) packed: BTreeSet<String>,
    /// It is being filled.
    pub(super) filling: bool,
}

/// What a simulated root holds once it is packed.
pub(super) const SIM_ROOT: &[u8] = b"files of a simulated root";

impl SimRoot {
    pub(super) fn has(&self, name: &str) -> bool {
        self.snapshots.iter().any(|known| known == name)
    }
}

/// An installed image of the simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimImage {
    /// IMGAPI manifest.
    pub manifest: Value,
    /// Virtual size, bytes.
    pub size_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) size_bytes: u64,
    pub(super) other_bytes: u64,
    pub(super) disks: BTreeMap<(VmUuid, u32), SimDisk>,
    pub(super) stashed: BTreeMap<(VmUuid, u32), SimDisk>,
    /// Variables of firmware, each with the names of its snapshots; and those put aside.
    pub(super) firmware: BTreeMap<VmUuid, Vec<String>>,
    pub(super) stashed_firmware: BTreeMap<VmUuid, Vec<String>>,
    pub(super) images: BTreeMap<ImageUuid, SimImage>,
    image_times: BTreeMap<ImageUuid, ImageTimes>,
    pub(super) copies: BTreeMap<VmUuid, Vec<u8>>,
    /// Packed disks, bytes, by the tasks that make images of them.
    packed: BTreeMap<TaskId, u64>,
    /// Roots of containers.
    pub(super) roots: BTreeMap<VmUuid, SimRoot>,
    /// Those put aside.
    pub(super) stashed_roots: BTreeMap<VmUuid, SimRoot>,
    /// Of the roots, what is put together.
    pub(super) mounted: BTreeSet<VmUuid>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ImageTimes {
    installed_at: Timestamp,
    last_used_at: Option<Timestamp>,
}

impl Content {
    pub(super) fn images_bytes(&self) -> u64 {
        self.images.values().map(|image| image.size_bytes).sum()
    }

    pub(super) fn disks_bytes(&self) -> u64 {
        let count = self.disks.len() + self.stashed.len();
        FRESH_DISK_BYTES.saturating_mul(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// What is based on each image.
    pub(super) fn bases(&self) -> Bases {
        let mut bases = Bases::new();
        for ((vm, _), disk) in self.disks.iter().chain(&self.stashed) {
            let Some(image) = disk.image else { continue };
            *bases.entry(image).or_default().entry(*vm).or_default() += 1;
        }
        for (vm, root) in self.roots.iter().chain(&self.stashed_roots) {
            *bases.entry(root.image).or_default().entry(*vm).or_default() += 1;
        }
        bases
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let used = self.images_bytes() + self.disks_bytes() + self.other_bytes;
        self.size_bytes.saturating_sub(used)
    }
}

/// What lies on the disks of one simulated host; clones share it, crashes leave it.
#[derive(Clone, Debug)]
pub struct SimPool(pub(super) Arc<Mutex<Content>>);

impl SimPool {
    /// An empty pool.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Content { size_bytes, ..Content::default() })))
    }

    /// Sets how many bytes are taken by something else, so that the pool can be filled.
    pub fn occupy(&self, other_bytes: u64) {
        self.0.lock().other_bytes = other_bytes;
    }

    /// Every disk, for invariants.
    #[must_use]
    pub fn disks(&self) -> BTreeMap<(VmUuid, u32), SimDisk> {
        self.0.lock().disks.clone()
    }

    /// VMs with variables of firmware, those put aside among them.
    #[must_use]
    pub fn firmware(&self) -> BTreeSet<VmUuid> {
        let content = self.0.lock();
        content.firmware.keys().chain(content.stashed_firmware.keys()).copied().collect()
    }

    /// Every disk that was put aside.
    #[must_use]
    pub fn stashed(&self) -> BTreeMap<(VmUuid, u32), SimDisk> {
        self.0.lock().stashed.clone()
    }

    /// VMs with roots, and those whose root is put together.
    #[must_use]
    pub fn roots(&self) -> (BTreeSet<VmUuid>, BTreeSet<VmUuid>) {
        let content = self.0.lock();
        (content.roots.keys().copied().collect(), content.mounted.clone())
    }

    /// The task that made a VM's root.
    #[must_use]
    pub fn root_owner(&self, vm: VmUuid) -> Option<TaskId> {
        self.0.lock().roots.get(&vm).map(|root| root.owner.clone())
    }

    /// How a VM's root is to be kept.
    #[must_use]
    pub fn root_wishes(&self, vm: VmUuid) -> Option<RootWishes> {
        self.0.lock().roots.get(&vm).map(|root| root.wishes.clone())
    }

    /// The snapshots of a VM's root, the oldest first.
    #[must_use]
    pub fn root_snapshots(&self, vm: VmUuid) -> Vec<String> {
        self.0.lock().roots.get(&vm).map(|root| root.snapshots.clone()).unwrap_or_default()
    }

    /// How many roots are put aside.
    #[must_use]
    pub fn stashed_roots(&self) -> usize {
        self.0.lock().stashed_roots.len()
    }

    /// Every image here.
    #[must_use]
    pub fn images(&self) -> BTreeMap<ImageUuid, SimImage> {
        self.0.lock().images.clone()
    }

    /// Copies of VM records.
    #[must_use]
    pub fn copies(&self) -> BTreeMap<VmUuid, Vec<u8>> {
        self.0.lock().copies.clone()
    }

    /// Puts something in the place of a copy.
    pub fn set_copy(&self, vm: VmUuid, content: Vec<u8>) {
        self.0.lock().copies.insert(vm, content);
    }

    pub(super) fn each_disk(&self, vm: VmUuid, mut change: impl FnMut(u32, &mut SimDisk)) {
        let mut content = self.0.lock();
        let disks = content.disks.range_mut((vm, 0)..=(vm, u32::MAX));
        disks.for_each(|((_, index), disk)| change(*index, disk));
    }

    /// Installs an image at once, in the first moment of all.
    ///
    /// # Errors
    /// `StoreFull`.
    pub fn install(&self, uuid: ImageUuid, image: SimImage) -> Result<(), DriverError> {
        self.install_at(uuid, image, Timestamp::UNIX_EPOCH)
    }

    /// Installs an image.
    ///
    /// # Errors
    /// `StoreFull`.
    pub fn install_at(
        &self,
        uuid: ImageUuid,
        image: SimImage,
        at: Timestamp,
    ) -> Result<(), DriverError> {
        let mut content = self.0.lock();
        let free_bytes = content.free_bytes();
        if !content.images.contains_key(&uuid) && free_bytes < image.size_bytes {
            let size_bytes = image.size_bytes;
            let text = format!("image {uuid} needs {size_bytes} bytes, {free_bytes} are free");
            return Err(store_full(text));
        }
        content.images.insert(uuid, image);
        let times = ImageTimes { installed_at: at, last_used_at: None };
        content.image_times.insert(uuid, times);
        Ok(())
    }

    /// A task packs a disk of so many bytes.
    pub fn pack(&self, task: &TaskId, size_bytes: u64) {
        self.0.lock().packed.insert(task.clone(), size_bytes);
    }

    /// What a task has packed, bytes.
    #[must_use]
    pub fn packed(&self, task: &TaskId) -> Option<u64> {
        self.0.lock().packed.get(task).copied()
    }

    /// How many tasks have packed something.
    #[must_use]
    pub fn packed_count(&self) -> usize {
        self.0.lock().packed.len()
    }

    /// What a task has packed goes.
    pub fn drop_packed(&self, task: &TaskId) {
        self.0.lock().packed.remove(task);
    }

    /// A disk is made from an image that is here.
    pub fn note_use(&self, image: ImageUuid, at: Timestamp) {
        if let Some(times) = self.0.lock().image_times.get_mut(&image) {
            times.last_used_at = Some(at);
        }
    }

    /// Removes an image.
    ///
    /// # Errors
    /// `ImageHasDependentClones`.
    pub fn remove_image(&self, image: ImageUuid) -> Result<(), DriverError> {
        let mut content = self.0.lock();
        let dependents = Dependents::of(&content.bases(), image);
        let origins = content.images.values().filter_map(|other| origin_of(&other.manifest));
        let children = origins.filter(|origin| *origin == image).count();
        check_unused(image, dependents, children)?;
        content.images.remove(&image);
        content.image_times.remove(&image);
        Ok(())
    }

    /// Every image here, and who needs it.
    #[must_use]
    pub fn image_usages(&self) -> Vec<ImageUsage> {
        let content = self.0.lock();
        let bases = content.bases();
        let usage = |(uuid, image): (&ImageUuid, &SimImage)| {
            let times = content.image_times.get(uuid).copied().unwrap_or_default();
            ImageUsage {
                image: *uuid,
                manifest: image.manifest.clone(),
                used_bytes: image.size_bytes,
                installed_at: times.installed_at,
                last_used_at: times.last_used_at,
                dependents: Dependents::of(&bases, *uuid),
            }
        };
        content.images.iter().map(usage).collect()
    }
}

/// A pool of 64 GiB, as much as a small node has.
impl Default for SimPool {
    fn default() -> Self {
        Self::new(64 * 1024 * MIB)
    }
}
