//! What lies in a pool, and the space that it takes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use muster_shared::ids::{TaskId, VmUuid};

use super::ZfsStorage;
use super::names::{Place, State};
use super::pool::Row;
use super::stamp::TASK;
use crate::drivers::DriverError;
use crate::drivers::storage::{Bases, Disk, Identity, Role, Usage, Volume};

impl ZfsStorage {
    /// The rows that are volumes of VMs, or roots of containers.
    pub(super) fn placed<'a>(
        &'a self,
        rows: &'a [Row],
    ) -> impl Iterator<Item = (Place, &'a Row)> + 'a {
        let placed = rows.iter().filter_map(|row| Some((self.names.place(&row.name)?, row)));
        placed.filter(|(place, row)| match place.role {
            Role::Root => row.is_filesystem(),
            Role::Firmware | Role::Disk(_) => row.is_volume(),
        })
    }

    fn identity(&self, place: Place, row: &Row) -> Option<Identity> {
        let owner: TaskId = row.text(TASK)?.parse().ok()?;
        let (pool, origin) = (self.pool.name(), row.image());
        match place.role {
            Role::Disk(index) => Some(Identity::of_disk(place.vm, index, pool, &owner, origin)),
            Role::Root => Some(Identity::of_root(place.vm, pool, &owner, origin)),
            Role::Firmware => None,
        }
    }

    pub(super) fn disk_of(&self, vm: VmUuid, index: u32, row: &Row) -> Disk {
        let place = Place { vm, role: Role::Disk(index), state: State::InPlace };
        Disk {
            index,
            identity: self.identity(place, row),
            path: self.device(row),
            format: "raw".to_owned(),
            size_bytes: row.number("volsize").unwrap_or(0),
            used_bytes: row.number("used").unwrap_or(0),
        }
    }

    fn device(&self, row: &Row) -> PathBuf {
        self.devices.path(&row.name)
    }

    /// Volumes of a VM that are in their places, by role.
    pub(super) async fn of_vm(&self, vm: VmUuid) -> Result<Vec<(Role, Row)>, DriverError> {
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let placed = self.placed(&rows).filter(|(place, _)| place.state == State::InPlace);
        let mut found: Vec<_> = placed.map(|(place, row)| (place.role, row.clone())).collect();
        found.sort_by_key(|(role, _)| *role);
        Ok(found)
    }

    /// All but roots of containers, see [`Self::roots_of`].
    pub(super) async fn list_volumes(&self) -> Result<Vec<Volume>, DriverError> {
        let rows = self.pool.rows(self.pool.name()).await?;
        let volumes = self
            .placed(&rows)
            .filter(|(place, _)| place.role != Role::Root && place.state != State::Partial);
        let mut found: Vec<_> = volumes.map(|(place, row)| self.volume(place, row)).collect();
        found.sort_by_key(|volume| (volume.vm, volume.role, volume.is_aside));
        Ok(found)
    }

    fn volume(&self, place: Place, row: &Row) -> Volume {
        let path = match place.role {
            Role::Root => self.place_of(place.vm),
            Role::Firmware | Role::Disk(_) => self.device(row),
        };
        Volume {
            vm: place.vm,
            role: place.role,
            is_aside: place.state == State::Aside,
            identity: self.identity(place, row),
            pool: self.pool.name().to_owned(),
            path,
            size_bytes: row.number("volsize"),
            used_bytes: row.number("used").unwrap_or(0),
        }
    }

    /// What there is of a container's root, in its place and aside.
    pub(super) async fn roots_of(&self, vm: VmUuid) -> Result<Vec<Volume>, DriverError> {
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let roots = self
            .placed(&rows)
            .filter(|(place, _)| place.role == Role::Root && place.state != State::Partial);
        Ok(roots.map(|(place, row)| self.volume(place, row)).collect())
    }

    /// The VMs of which a root is here, or what is left of one.
    pub(super) async fn with_roots(&self) -> Result<Vec<VmUuid>, DriverError> {
        let rows = self.pool.rows(self.pool.name()).await?;
        let roots = self.placed(&rows).filter(|(place, _)| place.role == Role::Root);
        let vms: BTreeSet<VmUuid> = roots.map(|(place, _)| place.vm).collect();
        Ok(vms.into_iter().collect())
    }

    /// Of disks by what ZFS says: a stamp is older than what a send or a promotion made of its volume.
    /// Of roots by the stamp: the image says how they are run, wherever their files are from.
    pub(super) async fn find_bases(&self) -> Result<Bases, DriverError> {
        let rows = self.pool.rows(self.pool.name()).await?;
        let mut found = Bases::new();
        for (place, row) in self.placed(&rows) {
            let image = match place.role {
                Role::Root => row.image(),
                Role::Firmware | Role::Disk(_) => {
                    row.text("origin").and_then(|origin| self.names.image_of_origin(origin))
                }
            };
            if let Some(image) = image {
                *found.entry(image).or_default().entry(place.vm).or_default() += 1;
            }
        }
        Ok(found)
    }

    /// What can be used of the pool: without what redundancy takes.
    pub(super) async fn sum_up(&self) -> Result<Usage, DriverError> {
        let rows = self.pool.rows(self.pool.name()).await?;
        let whole = rows.iter().find(|row| row.name == self.pool.name());
        let figure = |name: &str| whole.and_then(|row| row.number(name)).unwrap_or(0);
        let used_bytes = figure("used");
        let mut usage = Usage {
            pool: self.pool.name().to_owned(),
            size_bytes: used_bytes.saturating_add(figure("available")),
            alloc_bytes: used_bytes,
            ..Usage::default()
        };
        for row in rows.iter().filter(|row| !row.is_snapshot()) {
            let used_bytes = row.number("used").unwrap_or(0);
            let image = self.names.image_of(&row.name);
            if image.is_some() && (row.is_volume() || row.image() == image) {
                usage.images_bytes += used_bytes;
            } else if let Some(Place { role: Role::Disk(_), state: State::InPlace, .. }) =
                self.names.place(&row.name)
            {
                usage.disks_used_bytes += used_bytes;
                usage.disks_virtual_bytes += row.number("volsize").unwrap_or(0);
            }
        }
        Ok(usage)
    }
}
