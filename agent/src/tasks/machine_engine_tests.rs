//! Tasks about VMs, run by the engine on a simulated host: who waits for whom.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::wire::{Outcome, TaskResult};
use serde_json::{Value, json};

use super::Engine;
use super::machine_tests::{Host, engine, one_vm, params, submission, uuid};
use crate::drivers::faults::Fault;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(100_000);

fn task(id: &str) -> TaskId {
    id.parse().unwrap()
}

/// A node with one VM, whose guest does not hear its power button.
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) engine: Arc<Engine>,
}

impl Node {
    pub(super) async fn new(ceiling: Duration) -> Self {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        host.guests.ignore_acpi(uuid());
        let engine = engine(drivers, ceiling).await;
        Self { host, engine }
    }

    pub(super) async fn submit(&self, id: &str, kind: &str, extra: Value) {
        self.engine.submit(submission(&task(id), kind, params(extra))).await.unwrap();
    }

    pub(super) async fn ended(&self, id: &str) -> TaskResult {
        assert!(self.engine.wait(&task(id), LONG).await);
        self.engine.result(&task(id)).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn who_cuts_a_shutdown_short_has_done_what_was_asked() {
    for (kind, extra) in [
        ("machine_shutdown", json!({ "force": true })),
        ("machine_kill", json!({ "signal": "SIGKILL" })),
    ] {
        let node = Node::new(Duration::from_secs(3600)).await;
        node.submit("waits", "machine_shutdown", json!({ "timeout": 3000 })).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let started = node.host.clock.monotonic();
        node.submit("hurries", kind, extra).await;
        for id in ["waits", "hurries"] {
            let result = node.ended(id).await;
            assert_eq!((result.status, result.error), (Outcome::Complete, None), "{kind}: {id}");
        }
        let took = node.host.clock.monotonic() - started;
        assert!(took < Duration::from_secs(5), "{kind}: {took:?}");
        assert!(node.host.guests.running().is_empty(), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_half_way_is_finished_without_anybody_asking() {
    let node = Node::new(LONG).await;
    node.engine.wake().await;
    let snapshot = || json!({ "snapshot_name": "a" });
    node.submit("snapshot", "machine_create_snapshot", snapshot()).await;
    assert_eq!(node.ended("snapshot").await.status, Outcome::Complete);
    for fault in 1..=2 {
        node.host.faults.fail_nth("storage.roll_back", fault, Fault::before());
    }
    node.submit("back", "machine_rollback_snapshot", snapshot()).await;
    let error = node.ended("back").await.error.unwrap();
    assert!(error.message.contains("continues with it by itself"), "{error:?}");
    let vms = Arc::clone(&node.engine.parts.drivers.vms);
    let mut changes = vms.subscribe();
    let back = async {
        while vms.get(uuid()).unwrap().rolling_back_to.is_some()
            || node.host.guests.starts(uuid()) < 2
        {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.unwrap();
    assert!(!vms.get(uuid()).unwrap().start_when_rolled_back);
    node.engine.shut_down(Duration::from_secs(1)).await;
}

/// The VM is stopped by then, and newer snapshots may be gone.
#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_at_any_step_ends_with_the_vm_as_it_was_to_be() {
    let faults = [
        ("storage.delete_snapshot", "starts the VM again", 2),
        ("storage.roll_back", "continues with it", 1),
        ("compute.start", "starts the VM again", 1),
    ];
    for (fault, says, snapshots) in faults {
        let node = Node::new(LONG).await;
        node.engine.wake().await;
        for name in ["a", "b"] {
            let snapshot = json!({ "snapshot_name": name });
            node.submit(name, "machine_create_snapshot", snapshot).await;
            assert_eq!(node.ended(name).await.status, Outcome::Complete);
        }
        node.host.faults.fail_nth(fault, 1, Fault::before());
        node.submit("back", "machine_rollback_snapshot", json!({ "snapshot_name": "a" })).await;
        let error = node.ended("back").await.error.unwrap();
        assert!(error.message.contains(says), "{fault}: {error:?}");
        let vms = Arc::clone(&node.engine.parts.drivers.vms);
        let mut changes = vms.subscribe();
        let is_back = || {
            let record = vms.get(uuid()).unwrap();
            record.rolling_back_to.is_none()
                && !record.start_when_rolled_back
                && record.snapshots.len() == snapshots
                && node.host.guests.starts(uuid()) == 2
        };
        let back = async {
            while !is_back() {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), back).await.expect(fault);
        node.engine.shut_down(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_refused_is_not_counted_as_one() {
    let node = Node::new(LONG).await;
    let vms = Arc::clone(&node.engine.parts.drivers.vms);
    let policy = json!({ "muster:restart_policy": "on-failure:1" });
    let set = |record: &mut crate::vms::VmRecord| {
        record.properties.insert("internal_metadata".to_owned(), policy);
        record.properties.insert("autoboot".to_owned(), json!(false));
    };
    vms.update(uuid(), set).await.unwrap();
    node.engine.wake().await;
    node.engine.pause("operator", "maintenance").await.unwrap();
    node.host.guests.exit(uuid(), 1);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(vms.get(uuid()).unwrap().restarts.count, 0);
    node.engine.resume(None).await.unwrap();
    let mut changes = vms.subscribe();
    let back = async {
        while vms.get(uuid()).unwrap().restarts.count == 0 || node.host.guests.running().is_empty()
        {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(600), back).await.unwrap();
    // What its policy does says nothing about the next boot of the host.
    assert!(!vms.get(uuid()).unwrap().flag("autoboot"));
    node.engine.shut_down(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_panicked_is_reset_by_policy_and_not_waited_for() {
    let node = Node::new(LONG).await;
    let vms = Arc::clone(&node.engine.parts.drivers.vms);
    node.engine.wake().await;
    let reboots = || {
        let entry = vms.entry(uuid()).unwrap();
        let live = entry.observed.live().unwrap();
        (live.activity.word(), live.reboots)
    };
    let mut changes = vms.subscribe();
    node.host.guests.panic(uuid());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(reboots(), ("panicked", 0));
    let policy = json!({ "set_internal_metadata": { "muster:restart_policy": "on-failure:2" } });
    node.submit("policy", "machine_update", policy).await;
    for resets in 1..=2 {
        let again = async {
            while reboots() != ("running", resets) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(120), again).await.unwrap();
        node.host.guests.panic(uuid());
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((reboots(), vms.get(uuid()).unwrap().restarts.count), (("panicked", 2), 2));
    let before = node.host.clock.monotonic();
    node.submit("off", "machine_shutdown", json!({})).await;
    assert_eq!(node.ended("off").await.status, Outcome::Complete);
    assert!(node.host.clock.monotonic() - before < Duration::from_secs(5));
    node.engine.shut_down(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_runs_out_of_time_does_not_kill_its_guest() {
    let node = Node::new(Duration::from_secs(300)).await;
    node.submit("waits", "machine_shutdown", json!({ "timeout": 3000 })).await;
    let error = node.ended("waits").await.error.unwrap();
    assert_eq!(error.code, "Timeout");
    assert_eq!(node.host.guests.running().len(), 1);
    let vm = node.host.records.records()[&uuid()].clone();
    assert_eq!((vm.stopping_until, vm.properties["autoboot"].clone()), (None, json!(false)));
}

/// How often a guest that was up for so long has its button pressed within three minutes.
async fn presses(up: Duration) -> u64 {
    let node = Node::new(Duration::from_secs(3600)).await;
    tokio::time::sleep(up).await;
    let signals = || node.host.faults.calls("compute.signal");
    let before = signals();
    node.submit("waits", "machine_shutdown", json!({ "timeout": 179 })).await;
    node.ended("waits").await;
    // The last signal kills.
    signals() - before - 1
}

#[tokio::test(start_paused = true)]
async fn the_button_of_a_guest_that_is_up_is_not_pressed_all_the_time() {
    assert_eq!(presses(Duration::from_secs(600)).await, 3);
    // At 0, 10, … 120 s.
    assert_eq!(presses(Duration::ZERO).await, 13);
}
