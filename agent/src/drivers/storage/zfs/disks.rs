//! Disks: made as clones or blank, put aside and brought back by renaming, destroyed.

use std::collections::BTreeSet;

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use tokio_util::sync::CancellationToken;

use super::devices::Source;
use super::names::{Place, State};
use super::pool::Row;
use super::stamp::TASK;
use super::{Borrowed, ZfsStorage};
use crate::drivers::DriverError;
use crate::drivers::storage::{self, Disk, DiskSpec, Identity, Role, SetAside, Wishes};
use crate::drivers::zfs::Properties;

/// The disk with which the firmware's variables go.
const BOOT_DISK: u32 = 0;
/// The property that sets space aside.
pub(super) const RESERVATION: &str = "refreservation";

impl ZfsStorage {
    pub(super) async fn make_disk(
        &self,
        spec: &DiskSpec,
        task: &TaskId,
    ) -> Result<Disk, DriverError> {
        storage::check_pool(spec, &[self.pool.name().to_owned()])?;
        let made = match self.begin_disk(spec, task).await {
            Err(DriverError::Refused { code: Code::DatasetExists, .. }) => {
                return self.go_on(spec, task).await;
            }
            Ok(begun) => self.finish(spec, task, begun).await,
            Err(error) => Err(error),
        };
        if matches!(made, Err(DriverError::Refused { code: Code::StoreFull, .. })) {
            // No room is set aside for it. Its task undoes it, too.
            self.destroy_one(spec.vm, spec.index, Some(task)).await?;
        }
        made
    }

    /// Goes on with a disk that is there already, if its task began it before.
    async fn go_on(&self, spec: &DiskSpec, task: &TaskId) -> Result<Disk, DriverError> {
        let existing = self.pool.row(&self.names.disk(spec.vm, spec.index)).await?;
        let Some(existing) = existing.filter(|row| row.text(TASK) == Some(task.as_str())) else {
            return Err(storage::disk_exists(spec, &[self.pool.name().to_owned()]));
        };
        let begun = Begun {
            has_bytes: existing.number("volsize").unwrap_or(0),
            aside: existing.text(RESERVATION).map(str::to_owned),
            used_bytes: existing.number("used").unwrap_or(0),
        };
        self.finish(spec, task, begun).await
    }

    /// Makes the volume, as large as the disk is to be.
    ///
    /// # Errors
    /// `DatasetExists`: it is there.
    async fn begin_disk(&self, spec: &DiskSpec, task: &TaskId) -> Result<Begun, DriverError> {
        let name = self.names.disk(spec.vm, spec.index);
        let origin = match spec.image {
            Some(image) => Some((image, self.find_image(image).await?)),
            None => None,
        };
        let image_bytes = origin.as_ref().map(|(_, found)| found.size_bytes());
        let size_bytes = storage::disk_size(spec, image_bytes)?;
        if origin.is_some() && spec.wishes.block_bytes.is_some() {
            let text = format!("disk {}: block_size: a disk has that of its image", spec.index);
            return Err(DriverError::refused(Code::InvalidParameters, text));
        }
        self.make_holder(spec.vm).await?;
        let mut properties = self.owner.stamp_of_disk(spec.vm, task, spec.image);
        properties.extend(of_wishes(&spec.wishes, size_bytes));
        let aside = properties.get(RESERVATION).cloned();
        match origin {
            None => self.pool.create_volume(&name, size_bytes, properties).await?,
            Some((image, Image::Here { size_bytes: image_bytes })) => {
                if size_bytes > image_bytes {
                    properties.extend(one("volsize", size_bytes));
                }
                self.pool.clone_of(&self.names.final_snapshot(image), &name, properties).await?;
            }
            Some((_, Image::Elsewhere(source))) => {
                if self.pool.row(&name).await?.is_some() {
                    return Err(storage::disk_exists(spec, &[self.pool.name().to_owned()]));
                }
                self.copy(spec, &source, size_bytes, properties).await?;
            }
        }
        Ok(Begun { has_bytes: size_bytes, aside, used_bytes: 0 })
    }

    /// Waits for the disk's device. One that a crash cut off gets its size and its room here.
    async fn finish(
        &self,
        spec: &DiskSpec,
        task: &TaskId,
        begun: Begun,
    ) -> Result<Disk, DriverError> {
        let name = self.names.disk(spec.vm, spec.index);
        let wanted_bytes = match spec.size_mib {
            Some(size_mib) => storage::bytes_of(size_mib)?.max(begun.has_bytes),
            None => begun.has_bytes,
        };
        let (property, value) = reservation(&spec.wishes, wanted_bytes);
        // What is set aside counts as used. ZFS finds out itself how much `auto` is.
        let used_bytes = value.parse().unwrap_or(0).max(begun.used_bytes);
        let resize = async {
            // One after the other: ZFS sets aside no more than a volume has.
            if wanted_bytes > begun.has_bytes {
                self.pool.set(&name, one("volsize", wanted_bytes)).await?;
            }
            if begun.aside.as_ref() != Some(&value) {
                self.pool.set(&name, Properties::from([(property, value)])).await?;
            }
            Ok(())
        };
        tokio::try_join!(resize, self.devices.wait(&name))?;
        let pool = self.pool.name();
        Ok(Disk {
            index: spec.index,
            identity: Some(Identity::of_disk(spec.vm, spec.index, pool, task, spec.image)),
            path: self.devices.path(&name),
            format: "raw".to_owned(),
            size_bytes: wanted_bytes,
            used_bytes,
        })
    }

    /// A disk of its own with the content of an image that is in another pool.
    async fn copy(
        &self,
        spec: &DiskSpec,
        source: &Borrowed,
        size_bytes: u64,
        properties: Properties,
    ) -> Result<(), DriverError> {
        let place = Place { vm: spec.vm, role: Role::Disk(spec.index), state: State::Partial };
        let partial = self.names.volume(place);
        self.remove(&partial).await?;
        self.pool.create_volume(&partial, size_bytes, properties).await?;
        let content = Source { path: &source.path, format: &source.format };
        self.devices.fill(&partial, content, &CancellationToken::new()).await?;
        self.pool.rename(&partial, &self.names.disk(spec.vm, spec.index)).await
    }

    async fn find_image(&self, image: ImageUuid) -> Result<Image, DriverError> {
        if let Some(images) = &self.images {
            let found = images.borrow(image).await?;
            return found.map(Image::Elsewhere).ok_or_else(|| storage::image_not_installed(image));
        }
        let size_bytes = self.pool.volume_bytes(&self.names.final_snapshot(image)).await?;
        let here = size_bytes.map(|size_bytes| Image::Here { size_bytes });
        here.ok_or_else(|| storage::image_not_installed(image))
    }

    /// The dataset that holds all of a VM; may be repeated.
    pub(super) async fn make_holder(&self, vm: VmUuid) -> Result<(), DriverError> {
        let root = self.names.of_vm(vm);
        let mut properties = self.owner.stamp_of_vm(vm);
        // It only holds others.
        properties.insert("canmount".to_owned(), "off".to_owned());
        match self.pool.create_filesystem(&root, properties).await {
            Err(DriverError::Refused { code: Code::DatasetExists, .. }) => Ok(()),
            made => made,
        }
    }

    pub(super) async fn destroy_all(
        &self,
        vm: VmUuid,
        task: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        let root = self.names.of_vm(vm);
        let rows = self.pool.rows(&root).await?;
        if task.is_none() {
            self.check_foreign(&root, &rows)?;
        }
        let (mut going, mut staying): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        for (place, row) in self.placed(&rows).filter(|(place, _)| place.role != Role::Root) {
            let theirs = task.is_some_and(|task| row.text(TASK) != Some(task.as_str()));
            let list = if theirs { &mut staying } else { &mut going };
            list.push((place, row));
        }
        // The firmware's variables go with the last disk, whoever made them.
        let keeps_disks = staying.iter().any(|(place, _)| place.role != Role::Firmware);
        if !keeps_disks {
            going.append(&mut staying);
        }
        for (_, row) in &going {
            self.check_free(&row.name)?;
        }
        for (_, row) in &going {
            self.remove(&row.name).await?;
        }
        if keeps_disks {
            return Ok(());
        }
        match self.pool.destroy(&root).await {
            // Something of somebody else's is in it.
            Err(DriverError::Refused {
                code: Code::DatasetNotFound | Code::DatasetHasChildren,
                ..
            }) => Ok(()),
            done => done,
        }
    }

    /// Refuses what nobody here has made.
    fn check_foreign(&self, root: &str, rows: &[Row]) -> Result<(), DriverError> {
        let foreign = rows.iter().find(|row| {
            !row.is_snapshot() && row.name != root && self.names.place(&row.name).is_none()
        });
        let Some(foreign) = foreign else { return Ok(()) };
        let text = format!("{} is none of the agent's, and stays with its VM", foreign.name);
        Err(DriverError::refused(Code::DatasetHasChildren, text))
    }

    pub(super) async fn destroy_one(
        &self,
        vm: VmUuid,
        index: u32,
        task: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        for state in [State::Partial, State::InPlace] {
            let name = self.names.volume(Place { vm, role: Role::Disk(index), state });
            let Some(row) = self.pool.row(&name).await? else { continue };
            if task.is_none_or(|task| row.text(TASK) == Some(task.as_str())) {
                self.check_free(&name)?;
                self.remove(&name).await?;
            }
        }
        Ok(())
    }

    pub(super) fn check_free(&self, volume: &str) -> Result<(), DriverError> {
        if !self.devices.is_held(volume)? {
            return Ok(());
        }
        let text = format!("{volume} is in use by a process");
        Err(DriverError::refused(Code::DatasetBusy, text))
    }

    pub(super) async fn put_aside(
        &self,
        vm: VmUuid,
        index: u32,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let disk = self.names.disk(vm, index);
        let row = self.pool.row(&disk).await?;
        if row.as_ref().is_some_and(|row| row.text(TASK) == Some(task.as_str())) {
            // The new disk is being made already.
            return Ok(());
        }
        for role in roles_with(index) {
            self.shift(vm, role, State::InPlace, State::Aside).await?;
        }
        Ok(())
    }

    pub(super) async fn bring_back(
        &self,
        vm: VmUuid,
        index: u32,
        task: &TaskId,
    ) -> Result<(), DriverError> {
        let place = Place { vm, role: Role::Disk(index), state: State::Aside };
        let stash = self.pool.row(&self.names.volume(place)).await?;
        let disk = self.pool.row(&self.names.disk(vm, index)).await?;
        let theirs = disk.is_some_and(|disk| disk.text(TASK) != Some(task.as_str()));
        if stash.is_some() && theirs {
            let text = format!("disk {index} of VM {vm} belongs to another task");
            return Err(DriverError::refused(Code::DatasetExists, text));
        }
        for role in roles_with(index) {
            self.shift(vm, role, State::Aside, State::InPlace).await?;
        }
        Ok(())
    }

    pub(super) async fn drop_stash(&self, vm: VmUuid, index: u32) -> Result<(), DriverError> {
        for role in roles_with(index) {
            self.remove(&self.names.volume(Place { vm, role, state: State::Aside })).await?;
        }
        Ok(())
    }

    /// Gives a volume or root another name, over whatever has it; without it nothing happens.
    pub(super) async fn shift(
        &self,
        vm: VmUuid,
        role: Role,
        from: State,
        to: State,
    ) -> Result<(), DriverError> {
        let [from, to] = [from, to].map(|state| self.names.volume(Place { vm, role, state }));
        if self.pool.row(&from).await?.is_none() {
            return Ok(());
        }
        if role == Role::Root {
            self.hide_root(vm).await?;
        }
        self.remove(&to).await?;
        self.filling.lock().remove(&from);
        self.pool.rename(&from, &to).await?;
        match role {
            Role::Root => Ok(()),
            Role::Firmware | Role::Disk(_) => self.devices.wait(&to).await,
        }
    }

    pub(super) async fn enlarge(
        &self,
        vm: VmUuid,
        index: u32,
        size_mib: u64,
    ) -> Result<(), DriverError> {
        let name = self.names.disk(vm, index);
        let wanted_bytes = storage::bytes_of(size_mib)?;
        let Some(row) = self.pool.row(&name).await? else {
            return Err(DriverError::failed("grow a disk", format!("there is no {name}")));
        };
        let now_bytes = row.number("volsize").unwrap_or(0);
        if now_bytes >= wanted_bytes {
            return Ok(());
        }
        self.pool.set(&name, one("volsize", wanted_bytes)).await?;
        // As much as before beside what has less on purpose.
        if row.number(RESERVATION).is_some_and(|aside_bytes| aside_bytes >= now_bytes) {
            self.pool.set(&name, one(RESERVATION, wanted_bytes)).await?;
        }
        Ok(())
    }
}

/// One property with a number.
pub(super) fn one(name: &str, value: u64) -> Properties {
    Properties::from([(name.to_owned(), value.to_string())])
}

/// Properties of a volume of this size.
fn of_wishes(wishes: &Wishes, size_bytes: u64) -> Properties {
    let block = wishes.block_bytes.map(|bytes| ("volblocksize".to_owned(), bytes.to_string()));
    let compression = wishes.compression.clone().map(|how| ("compression".to_owned(), how));
    let all = [Some(reservation(wishes, size_bytes)), block, compression];
    all.into_iter().flatten().collect()
}

/// Room that is set aside for a volume of this size.
fn reservation(wishes: &Wishes, size_bytes: u64) -> (String, String) {
    let value = match wishes.set_aside {
        None => size_bytes.to_string(),
        Some(SetAside::Auto) => "auto".to_owned(),
        // More than the volume has is not to be had.
        Some(SetAside::Mib(mib)) => mib.saturating_mul(MIB).min(size_bytes).to_string(),
    };
    (RESERVATION.to_owned(), value)
}

/// A disk whose volume is there.
#[derive(Debug)]
struct Begun {
    has_bytes: u64,
    /// What is set aside for it, as ZFS says it.
    aside: Option<String>,
    /// Space it takes, bytes.
    used_bytes: u64,
}

/// An image that a disk is to be made from.
#[derive(Debug)]
enum Image {
    /// In this pool, of so many bytes.
    Here { size_bytes: u64 },
    /// In another one.
    Elsewhere(Borrowed),
}

impl Image {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Here { size_bytes } => *size_bytes,
            Self::Elsewhere(image) => image.size_bytes,
        }
    }
}

/// A disk and what goes aside and comes back with it. The disk is the last: as long as it is in its old
/// place, the rest is looked for.
fn roles_with(index: u32) -> BTreeSet<Role> {
    let firmware = (index == BOOT_DISK).then_some(Role::Firmware);
    firmware.into_iter().chain([Role::Disk(index)]).collect()
}
