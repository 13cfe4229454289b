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
use crate::store::{Expect, Write};

/// Records deleted at a time.
const BATCH: usize = 90;

/// The record `reserve/<vm>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::app) struct ReservationRecord {
    pub(in crate::app) vm_uuid: VmUuid,
    pub(in crate::app) server_uuid: ServerUuid,
    pub(in crate::app) promise: alloc::Extra,
    /// When it was made; a label.
    pub(super) at: Timestamp,
    /// The coordinator that made it.
    #[serde(default)]
    pub(super) by: String,
}

impl App {
    /// The write that makes a reservation durable; a later one for the same VM replaces it.
    pub(super) fn reservation_write(
        &self,
        vm: VmUuid,
        server: ServerUuid,
        promise: alloc::Extra,
    ) -> Write {
        let record = ReservationRecord {
            vm_uuid: vm,
            server_uuid: server,
            promise,
            at: self.parts.clock.wall(),
            by: self.parts.instance.clone(),
        };
        Write::put(keys::reservation(vm), Expect::Any, keys::encode(&record))
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
            placing.spent(BATCH)
        };
        // Side by side, so that they share a sync.
        let deleted = join_all(spent.into_iter().map(|(vm, revision)| async move {
            let write = Write::delete(keys::reservation(vm), Expect::At(revision));
            self.feed.commit(vec![write]).await
        }));
        for outcome in deleted.await {
            match outcome {
                Ok(_) => {}
                // A later reservation took its place.
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.places_sweep().await
    }
}
