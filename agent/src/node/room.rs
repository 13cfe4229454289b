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
use crate::drivers::storage::{RESERVE_BYTES, Usage};

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
            Ok(usages) => {
                let full = full(&usages, &drivers.storage.pools(), is_kept);
                let waiting: Vec<VmUuid> =
                    waiting.into_iter().filter(|vm| !lies_in(drivers, *vm, &full)).collect();
                // Whoever wanted the room most may have taken it: longer pauses then.
                pause = if waiting.is_empty() { LOOK } else { (pause * 2).min(MAX_PAUSE) };
                for vm in waiting {
                    if let Err(error) = go_on(drivers, vm).await {
                        tracing::warn!(vm_uuid = %vm, error = %Chain(&error), "a guest stays stopped");
                    }
                }
            }
            Err(error) => tracing::warn!(error = %Chain(&error), "the room is not known"),
        }
    }
}

/// Those of the pools that have no room for guests, or do not tell. The reserve is in the first.
fn full(usages: &[Usage], pools: &[String], is_reserve_kept: bool) -> Vec<String> {
    let has_room = |(place, pool): (usize, &String)| {
        let usage = usages.iter().find(|usage| usage.pool == *pool);
        usage.is_some_and(|usage| {
            let free_bytes = usage.size_bytes.saturating_sub(usage.alloc_bytes);
            is_room(free_bytes, is_reserve_kept || place > 0)
        })
    };
    let full = pools.iter().enumerate().filter(|pool| !has_room(*pool));
    full.map(|(_, pool)| pool.clone()).collect()
}

/// Whether the VM has a volume in one of these pools, as far as its record tells.
fn lies_in(drivers: &Drivers, vm: VmUuid, pools: &[String]) -> bool {
    let volumes = drivers.vms.get(vm).and_then(|record| record.volumes);
    match volumes {
        Some(volumes) => volumes.iter().any(|volume| pools.contains(&volume.identity.pool)),
        None => !pools.is_empty(),
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
    tracing::info!(vm_uuid = %vm, "there is room again: the guest continues");
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

    #[test]
    fn each_pool_has_room_or_none() {
        let usage = |pool: &str, free_bytes| Usage {
            pool: pool.to_owned(),
            size_bytes: 1000 * MIB,
            alloc_bytes: 1000 * MIB - free_bytes,
            ..Usage::default()
        };
        let pools = ["zones", "fast", "slow"].map(str::to_owned);
        let usages = [usage("zones", ROOM_BYTES), usage("fast", ROOM_BYTES)];
        assert_eq!(full(&usages, &pools, true), ["slow"], "it tells nothing");
        // What is lent of the first is not taken from another one.
        assert_eq!(full(&usages, &pools, false), ["zones", "slow"]);
        let usages = [usage("zones", RESERVE_BYTES * 2), usage("fast", 0), usage("slow", 0)];
        assert_eq!(full(&usages, &pools, true), ["fast", "slow"]);
    }
}
