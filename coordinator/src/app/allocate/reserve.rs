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
use crate::store::{Expect, Revision, Write};

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
pub(super) struct ReservationRecord {
    pub(super) vm_uuid: VmUuid,
    pub(super) server_uuid: ServerUuid,
    pub(super) promise: alloc::Extra,
    /// When it was made; a label.
    pub(super) at: Timestamp,
    /// The coordinator that made it.
    #[serde(default)]
    pub(super) by: String,
}

impl App {
    /// The write that makes a reservation durable; a later one for the same VM replaces it.
    pub(super) fn reservation_write(&self, reservation: &Reservation) -> Write {
        let record = ReservationRecord {
            vm_uuid: reservation.vm,
            server_uuid: reservation.server,
            promise: reservation.extra.clone(),
            at: self.parts.clock.wall(),
            by: self.parts.instance.clone(),
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

    /// Ends reservations whose time ran out, and deletes the records of those that ended.
    ///
    /// # Errors
    /// [`AppError::Store`]; it is tried again.
    pub(crate) async fn reservations_tick(&self) -> Result<(), AppError> {
        let now = self.parts.clock.monotonic();
        let ttl = self.config.allocation.reservation_ttl;
        let spent = {
            let mut placing = self.placing.lock();
            placing.expire(now, ttl, |vm| self.is_unfinished(vm));
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
