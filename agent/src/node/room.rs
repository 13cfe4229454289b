//! Guests whose disks found no room stand still. The kernel tells nobody when there is room again,
//! so it is looked for as long as one of them waits.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::units::MIB;
use tokio_util::sync::CancellationToken;

use super::Drivers;
use crate::drivers::DriverError;
use crate::drivers::compute::{Activity, GuestSignal, Live};
use crate::drivers::storage::RESERVE_BYTES;

/// How often room is looked for while a guest waits.
const LOOK: Duration = Duration::from_secs(2);
/// How often the reserve is looked at while none does.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// Longest pause once guests have stopped again each time they went on.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Free before guests go on, bytes: with less they would stop again at once.
const ROOM_BYTES: u64 = 16 * MIB;
/// The same while the reserve is lent: it is for the task that frees more, not for the guests.
const ROOM_BESIDE_RESERVE_BYTES: u64 = RESERVE_BYTES + ROOM_BYTES;

/// Lets guests go on when there is room, and keeps the reserve, until cancelled.
pub async fn run(drivers: Arc<Drivers>, cancelled: CancellationToken) {
    cancelled.run_until_cancelled(watch(&drivers)).await;
}

async fn watch(drivers: &Drivers) {
    let mut changes = drivers.vms.subscribe();
    let mut pause = LOOK;
    let mut reserve = tokio::time::interval(IDLE_LOOK);
    loop {
        let waiting = waiting(drivers);
        if waiting.is_empty() {
            pause = LOOK;
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                _ = reserve.tick() => drop(keeps_reserve(drivers).await),
            }
            continue;
        }
        tokio::time::sleep(pause).await;
        // First, or the guests would take what a task needs that frees room.
        let is_kept = keeps_reserve(drivers).await;
        match drivers.storage.usage().await {
            Ok(usage) if is_room(usage.size_bytes.saturating_sub(usage.alloc_bytes), is_kept) => {
                // Whoever wanted the room most may have taken it: longer pauses then.
                pause = (pause * 2).min(MAX_PAUSE);
                for vm in waiting {
                    if let Err(error) = go_on(drivers, vm).await {
                        tracing::warn!(vm_uuid = %vm, error = %Chain(&error), "a guest stays stopped");
                    }
                }
            }
            Ok(_) => pause = LOOK,
            Err(error) => tracing::warn!(error = %Chain(&error), "the room is not known"),
        }
    }
}

async fn keeps_reserve(drivers: &Drivers) -> bool {
    match drivers.storage.keep_room().await {
        Ok(is_kept) => is_kept,
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "no room can be kept in reserve");
            false
        }
    }
}

/// Whether guests may go on with so much free.
fn is_room(free_bytes: u64, is_reserve_kept: bool) -> bool {
    free_bytes >= if is_reserve_kept { ROOM_BYTES } else { ROOM_BESIDE_RESERVE_BYTES }
}

fn waiting(drivers: &Drivers) -> Vec<VmUuid> {
    let waits = |live: &Live| live.activity == Activity::IoError;
    drivers.vms.which(|entry| entry.observed.live().is_some_and(waits))
}

async fn go_on(drivers: &Drivers, vm: VmUuid) -> Result<(), DriverError> {
    tracing::info!(vm_uuid = %vm, "there is room again: the guest goes on");
    drivers.compute.signal(vm, GuestSignal::Resume).await?;
    drivers.vms.observe(drivers.compute.as_ref(), vm).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_that_is_lent_is_not_for_the_guests() {
        assert!(is_room(ROOM_BYTES, true) && !is_room(ROOM_BYTES - 1, true));
        assert!(!is_room(RESERVE_BYTES, false));
        assert!(is_room(RESERVE_BYTES + ROOM_BYTES, false));
    }
}
