//! What an agent does about its VMs when it starts, on a simulated host.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::machine_tests::{Host, act, engine, one_vm, run, uuid};
use crate::drivers::faults::Fault;
use crate::node::{Drivers, startup};
use crate::vms::reconcile::{self, Action};

const NOTHING: [&str; 0] = [];

/// Tasks that the agent gives itself after its start.
async fn due(drivers: &Arc<Drivers>, busy: &[VmUuid]) -> Vec<&'static str> {
    let busy = busy.iter().copied().collect();
    startup::mend(drivers, &busy).await;
    let actions = drivers.vms.plan(&busy).actions;
    actions.into_iter().filter_map(|(_, action)| action.task()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_boot_starts_what_shall_run_and_nothing_else() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    assert_eq!(due(&drivers, &[]).await, NOTHING);
    // The agent starts again while the guest runs.
    let drivers = host.agent("boot-1").await;
    assert_eq!(due(&drivers, &[]).await, NOTHING);
    assert_eq!(drivers.vms.entry(uuid()).unwrap().state().state, "running");
    // The guest ends by itself: it stays off until the host boots.
    host.guests.exit(uuid(), 0);
    let drivers = host.agent("boot-1").await;
    assert_eq!(due(&drivers, &[]).await, NOTHING);

    let drivers = host.agent("boot-2").await;
    assert_eq!(due(&drivers, &[]).await, ["machine_boot"]);
    let ctx = host.context(&drivers, &reconcile::params(uuid(), Action::Boot, None));
    run(&ctx, "machine_boot", false).await.unwrap();
    assert_eq!(due(&drivers, &[]).await, NOTHING);
    assert_eq!(host.guests.starts(uuid()), 2);
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let drivers = host.agent("boot-3").await;
    assert_eq!(due(&drivers, &[]).await, NOTHING);

    drivers.vms.update(uuid(), |record| record.destroying = true).await.unwrap();
    let drivers = host.agent("boot-3").await;
    assert_eq!(due(&drivers, &[]).await, ["machine_destroy"]);
    assert_eq!(due(&drivers, &[uuid()]).await, NOTHING);
}

#[tokio::test(start_paused = true)]
async fn an_agent_starts_its_vms_after_a_boot_of_the_host() {
    let host = Host::new();
    drop(one_vm(&host).await);
    host.guests.reboot();
    let drivers = host.agent("boot-2").await;
    let engine = engine(Arc::clone(&drivers), Duration::from_secs(3600)).await;
    engine.recover().await;
    // Its pool comes late.
    host.faults.fail_nth("compute.start", 1, Fault::before());
    host.faults.fail_nth("compute.start", 2, Fault::before());
    engine.wake().await;
    let mut changes = drivers.vms.subscribe();
    let running = async {
        while drivers.vms.object(uuid(), false).unwrap()["state"] != "running" {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap();
    assert_eq!(host.guests.starts(uuid()), 2);
    // And it is noticed when the guest ends by itself.
    host.guests.exit(uuid(), 7);
    let stopped = async {
        while drivers.vms.object(uuid(), false).unwrap()["exit_status"] != 7 {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_millis(250), stopped).await.unwrap();
    engine.shut_down(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ends_by_itself_is_noticed() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let cancelled = CancellationToken::new();
    let watcher = tokio::spawn(startup::watch(Arc::clone(&drivers), cancelled.clone()));
    tokio::task::yield_now().await;
    let mut changes = drivers.vms.subscribe();
    host.guests.exit(uuid(), 5);
    tokio::time::timeout(Duration::from_millis(250), changes.changed()).await.unwrap().unwrap();
    assert_eq!(drivers.vms.object(uuid(), false).unwrap()["exit_status"], 5);
    cancelled.cancel();
    watcher.await.unwrap();
}
