//! Reservations: room kept for a VM that was allocated, until something better counts it.
//!
//! One durable record `reserve/<vm>` each. It ends when a report shows the VM, when a ticket or a
//! task for it takes its place, or by itself after `allocator.reservation_ttl_s`.

use std::sync::Arc;

use futures_util::future::join_all;
use jiff::Timestamp;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde::{Deserialize, Serialize};

use super::Placement;
use super::promises::{PLACES, Place, PlaceRecord, counts};
use crate::alloc;
use crate::app::error::AppError;
use crate::app::keys;
use crate::app::records::Records;
use crate::store::{Expect, Write};

const RESERVATIONS: Records<ReservationRecord> = Records::under(keys::RESERVATIONS);
/// Records deleted at a time.
const BATCH: usize = 90;

/// The record `reserve/<vm>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReservationRecord {
    pub(super) vm_uuid: VmUuid,
    pub(super) server_uuid: ServerUuid,
    pub(super) promise: Arc<alloc::Extra>,
    /// When it was made; a label.
    pub(super) at: Timestamp,
    /// The coordinator that made it.
    #[serde(default)]
    pub(super) by: String,
}

impl Placement {
    /// The write that makes a reservation durable; a later one for the same VM replaces it.
    pub(super) fn reservation_write(
        &self,
        vm: VmUuid,
        server: ServerUuid,
        promise: Arc<alloc::Extra>,
    ) -> Write {
        let record = ReservationRecord {
            vm_uuid: vm,
            server_uuid: server,
            promise,
            at: self.ctx.parts.clock.wall(),
            by: self.ctx.parts.instance.clone(),
        };
        RESERVATIONS.put(vm, Expect::Any, &record)
    }

    /// Ends reservations whose time ran out, and deletes the records of those that ended.
    ///
    /// # Errors
    /// [`AppError::Store`]; it is tried again.
    pub(crate) async fn tick(&self) -> Result<(), AppError> {
        let now = self.ctx.parts.clock.monotonic();
        let ttl = self.ctx.config.allocation.reservation_ttl;
        let spent = {
            let mut placing = self.promises.lock();
            placing.expire(now, ttl, |vm| self.is_unfinished(vm));
            placing.spent(BATCH)
        };
        // Side by side, so that they share a sync.
        let deleted = join_all(spent.into_iter().map(|(vm, revision)| async move {
            let write = RESERVATIONS.delete(vm, Expect::At(revision));
            self.ctx.feed.commit(vec![write]).await
        }));
        for outcome in deleted.await {
            match outcome {
                Ok(_) => {}
                // A later reservation took its place.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.places_sweep().await
    }

    /// Deletes the places of VMs that are there for all to see, or that never came.
    async fn places_sweep(&self) -> Result<(), AppError> {
        let places = self.promises.lock().done();
        let over = |place: &Place| {
            let PlaceRecord { vm_uuid, server_uuid, .. } = place.record;
            let heard = self.fleet.with(server_uuid, |entry| !entry.reported_at.is_empty());
            let seen = self.fleet.vm(vm_uuid).is_some();
            seen || (place.over && heard.unwrap_or(true))
        };
        for place in places.into_iter().filter(over) {
            let delete = PLACES.delete(place.record.vm_uuid, Expect::At(place.revision));
            match self.ctx.feed.commit(vec![delete]).await {
                Err(error) if !error.is_conflict() => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Whether the VM is reported, but does not count yet.
    fn is_unfinished(&self, vm: VmUuid) -> bool {
        self.fleet.vm(vm).is_some_and(|(_, report)| !counts(&report))
    }
}
