//! Snapshots of volumes and roots, also of those that a guest has open: what it has flushed is in them.

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::ZfsStorage;
use super::disks::{RESERVATION, one};
use super::fill::SNAPDEV;
use super::names::{self, State};
use super::pool::Row;
use crate::drivers::DriverError;
use crate::drivers::storage::{Role, VolumeSnapshot, snapshot_not_found};

/// A snapshot of a volume or root in its place.
#[derive(Debug)]
struct Taken<'a> {
    role: Role,
    name: &'a str,
    /// Transaction of the pool in which it was taken: which of two is newer.
    taken_in: u64,
    row: &'a Row,
}

impl ZfsStorage {
    /// Those of volumes in their places, by volume and age.
    fn taken<'a>(&self, rows: &'a [Row]) -> Vec<Taken<'a>> {
        let taken = |row: &'a Row| {
            let (volume, name) = row.name.split_once('@')?;
            let place = self.names.place(volume)?;
            let taken_in = row.number("createtxg").unwrap_or(0);
            let taken = Taken { role: place.role, name, taken_in, row };
            (place.state == State::InPlace).then_some(taken)
        };
        let mut taken: Vec<_> = rows.iter().filter_map(taken).collect();
        taken.sort_by_key(|taken| (taken.role, taken.taken_in));
        taken
    }

    /// Volumes in their places.
    fn in_place<'a>(&'a self, rows: &'a [Row]) -> Vec<(Role, &'a Row)> {
        let placed = self.placed(rows).filter(|(place, _)| place.state == State::InPlace);
        placed.map(|(place, row)| (place.role, row)).collect()
    }

    pub(super) async fn list_snapshots(
        &self,
        vm: VmUuid,
    ) -> Result<Vec<VolumeSnapshot>, DriverError> {
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let found = self.taken(&rows).into_iter();
        Ok(found.map(|t| VolumeSnapshot { volume: t.role, name: t.name.to_owned() }).collect())
    }

    /// Of all of them at one moment.
    pub(super) async fn take(
        &self,
        vm: VmUuid,
        name: &str,
        of: &[Role],
    ) -> Result<(), DriverError> {
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let taken = self.taken(&rows);
        let has = |role: Role| taken.iter().any(|taken| taken.role == role && taken.name == name);
        let wanted = self.in_place(&rows).into_iter();
        let wanted = wanted.filter(|(role, _)| of.contains(role) && !has(*role));
        let wanted: Vec<_> = wanted.map(|(_, row)| names::snapshot(&row.name, name)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        self.pool.snapshot(&wanted).await
    }

    pub(super) async fn drop_snapshot(
        &self,
        vm: VmUuid,
        name: &str,
        from: &[Role],
    ) -> Result<(), DriverError> {
        let _turn = self.turns.take(vm).await;
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let going = self.taken(&rows).into_iter();
        let going = going.filter(|taken| taken.name == name && from.contains(&taken.role));
        let going: Vec<_> = going.map(|taken| taken.row.name.clone()).collect();
        for (role, row) in self.in_place(&rows) {
            if from.contains(&role) && row.text(SNAPDEV) == Some("visible") {
                // Who reads another snapshot makes it visible again.
                self.pool.inherit(&row.name, SNAPDEV).await?;
            }
        }
        self.pool.destroy_snapshots(&going).await?;
        self.sweep_packs(vm, &rows).await
    }

    /// All volumes have the snapshot, and nothing depends on a newer one, or none is touched. Variables
    /// that are younger stay.
    pub(super) async fn go_back(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let _turn = self.turns.take(vm).await;
        let rows = self.pool.rows(&self.names.of_vm(vm)).await?;
        let taken = self.taken(&rows);
        let mut targets = Vec::new();
        for (role, row) in self.in_place(&rows) {
            let found = taken.iter().find(|taken| taken.role == role && taken.name == name);
            match found {
                Some(found) => targets.push((row.name.as_str(), found)),
                None if role == Role::Firmware => {}
                None => return Err(snapshot_not_found(vm, name)),
            }
        }
        let newer = |target: &Taken<'_>| {
            let is_newer = |t: &&Taken<'_>| t.role == target.role && t.taken_in > target.taken_in;
            taken.iter().filter(is_newer).map(|t| t.row).collect::<Vec<_>>()
        };
        for (_, target) in &targets {
            for row in newer(target) {
                if let Some(clones) = row.text("clones").filter(|clones| !clones.is_empty()) {
                    let text = format!("{} is newer, and {clones} is a clone of it", row.name);
                    return Err(DriverError::refused(Code::DatasetHasClones, text));
                }
            }
        }
        for (volume, target) in &targets {
            match target.role {
                Role::Root => self.hide_root(vm).await?,
                Role::Firmware | Role::Disk(_) => self.check_free(volume)?,
            }
        }
        for (volume, target) in &targets {
            let newer: Vec<_> = newer(target).into_iter().map(|row| row.name.clone()).collect();
            self.pool.roll_back(&target.row.name, &newer).await?;
            if target.role != Role::Root {
                self.give_back(volume).await?;
                self.devices.wait(volume).await?;
            }
        }
        self.sweep_packs(vm, &rows).await
    }

    /// What is set aside beyond the size that a volume has again.
    async fn give_back(&self, volume: &str) -> Result<(), DriverError> {
        let Some(row) = self.pool.row(volume).await? else { return Ok(()) };
        match (row.number("volsize"), row.number(RESERVATION)) {
            (Some(size_bytes), Some(aside_bytes)) if aside_bytes > size_bytes => {
                self.pool.set(volume, one(RESERVATION, size_bytes)).await
            }
            _ => Ok(()),
        }
    }
}
