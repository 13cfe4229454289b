//! Reservations: room kept for a VM that was allocated, until something better counts it.
//!
//! One durable record `reserve/<vm>` each. It ends when a report shows the VM, when a ticket or a
//! task for it takes its place, or by itself after `allocator.reservation_ttl_s`.

use futures_util::future::join_all;
use jiff::Timestamp;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde::{Deserialize, Serialize};

use crate::alloc;
use crate::app::error::AppError;
use crate::app::tasks::is_conflict;
use crate::app::{App, keys};
use crate::store::{Expect, Revision, Write, list_all};

/// Records deleted at a time.
const BATCH: usize = 90;

/// Room for a VM.
#[derive(Clone, Debug)]
pub(in crate::app) struct Reservation {
    pub(in crate::app) vm: VmUuid,
    pub(in crate::app) server: ServerUuid,
    pub(in crate::app) extra: alloc::Extra,
}

/// The record `reserve/<vm>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ReservationRecord {
    vm_uuid: VmUuid,
    server_uuid: ServerUuid,
    promise: alloc::Extra,
    /// When it was made; a label.
    at: Timestamp,
}

impl App {
    /// The write that makes a reservation durable; a later one for the same VM replaces it.
    pub(super) fn reservation_write(&self, reservation: &Reservation) -> Write {
        let record = ReservationRecord {
            vm_uuid: reservation.vm,
            server_uuid: reservation.server,
            promise: reservation.extra.clone(),
            at: self.parts.clock.wall(),
        };
        let key = keys::reservation(reservation.vm);
        Write::put(key, Expect::Any, keys::encode(&record))
    }

    /// The reservations are durable.
    pub(super) fn reserved(&self, reservations: &[Reservation], revision: Revision) {
        let mut placing = self.placing.lock();
        for reservation in reservations {
            placing.reserved(reservation.vm, revision);
        }
    }

    /// The reservations did not become durable.
    pub(super) fn unreserve(&self, reservations: &[Reservation]) {
        let mut placing = self.placing.lock();
        for reservation in reservations {
            placing.unreserve(reservation.vm);
        }
    }

    /// Reads the reservations at start. Each has all its time again: how long this coordinator was
    /// away, no clock says for sure.
    pub(crate) async fn load_reservations(&self) -> Result<(), AppError> {
        let (records, _) = list_all(&*self.parts.store, keys::RESERVATIONS).await?;
        let now = self.parts.clock.monotonic();
        for stored in records {
            let record: ReservationRecord = keys::decode(&stored)?;
            let (vm, server) = (record.vm_uuid, record.server_uuid);
            let mut placing = self.placing.lock();
            if self.fleet.vm(vm).is_some() || placing.is_promised(vm) {
                placing.spent(vm, stored.revision);
            } else {
                let reservation = Reservation { vm, server, extra: record.promise };
                placing.reserve(vec![reservation], now);
                placing.reserved(vm, stored.revision);
            }
        }
        Ok(())
    }

    /// Ends reservations whose time ran out, and deletes the records of those that ended.
    ///
    /// # Errors
    /// [`AppError::Store`]; it is tried again.
    pub(crate) async fn reservations_tick(&self) -> Result<(), AppError> {
        let now = self.parts.clock.monotonic();
        let ttl = self.config.allocation.reservation_ttl;
        let spent = {
            let mut placing = self.placing.lock();
            placing.expire(now, ttl);
            placing.take_spent(BATCH)
        };
        // Side by side, so that they share a sync; one that failed is spent again.
        let deleted = join_all(spent.into_iter().map(|(vm, revision)| async move {
            let write = Write::delete(keys::reservation(vm), Expect::At(revision));
            (vm, revision, self.parts.store.commit(vec![write]).await)
        }));
        let mut failure = None;
        for (vm, revision, outcome) in deleted.await {
            match outcome {
                Ok(_) => {}
                // A later reservation took its place.
                Err(error) if is_conflict(&error) => {}
                Err(error) => {
                    self.placing.lock().spent(vm, revision);
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure {
            return Err(error.into());
        }
        self.places_sweep().await
    }
}
