//! Snapshots of VMs, taken and gone back to on a simulated host.

use muster_shared::ids::TaskId;
use serde_json::{Value, json};

use super::Handler as _;
use super::machine_change_tests::{code, example, snapshot};
use super::machine_tests::{Host, act, create_params, one_vm, params, run, run_with_crash, uuid};
use crate::drivers::faults::Fault;
use crate::drivers::storage::{DiskSpec, Wishes};
use crate::node::Drivers;

pub(super) fn names(vm: &Value) -> Vec<&str> {
    let snapshots = vm["snapshots"].as_array().unwrap();
    snapshots.iter().map(|snapshot| snapshot["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_taken_gone_back_to_and_deleted() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    for name in ["a", "b", "c"] {
        act(&host, &drivers, "machine_create_snapshot", snapshot(name)).await.unwrap();
    }
    let vm = drivers.vms.object(uuid(), true).unwrap();
    assert_eq!(names(&vm), ["c", "b", "a"]);
    let again = code(&host, &drivers, "machine_create_snapshot", snapshot("a")).await;
    assert_eq!(again, "SnapshotExists");
    let missing = code(&host, &drivers, "machine_rollback_snapshot", snapshot("x")).await;
    assert_eq!(missing, "SnapshotNotFound");
    for bad in [json!({}), snapshot("a/b"), snapshot(&"x".repeat(65))] {
        let refused = code(&host, &drivers, "machine_create_snapshot", bad).await;
        assert_eq!(refused, "InvalidParameters");
    }
    let rolled = act(&host, &drivers, "machine_rollback_snapshot", snapshot("b")).await.unwrap();
    assert_eq!(names(&rolled["vm"]), ["b", "a"]);
    assert_eq!(rolled["vm"]["state"], "running");
    assert_eq!(host.guests.starts(uuid()), 2);
    for _ in 0..2 {
        act(&host, &drivers, "machine_delete_snapshot", snapshot("a")).await.unwrap();
    }
    let on_disk = &host.pool.disks()[&(uuid(), 0)].snapshots;
    assert_eq!(on_disk.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["vmsnap-b"]);
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let rolled = act(&host, &drivers, "machine_rollback_snapshot", snapshot("b")).await.unwrap();
    assert_eq!(rolled["vm"]["state"], "stopped");
}

async fn status(drivers: &Drivers) -> Value {
    let info = drivers.compute.info(uuid(), &["status".to_owned()]).await.unwrap();
    info["status"]["status"].clone()
}

/// Also when the agent dies anywhere in between.
#[tokio::test(start_paused = true)]
async fn a_snapshot_leaves_a_guest_paused_or_going_as_it_was() {
    for (signal, expected) in [("STOP", "paused"), ("CONT", "running")] {
        for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
            let host = Host::new();
            let drivers = one_vm(&host).await;
            act(&host, &drivers, "machine_kill", json!({ "signal": signal })).await.unwrap();
            let kind = "machine_create_snapshot";
            if !run_with_crash(&host, kind, &example(kind), step, done).await {
                break;
            }
            assert_eq!(status(&drivers).await, expected, "step {step}, done {done}");
        }
        let host = Host::new();
        let drivers = one_vm(&host).await;
        act(&host, &drivers, "machine_kill", json!({ "signal": signal })).await.unwrap();
        host.faults.fail_nth("storage.create_snapshot", 1, Fault::before());
        let wanted = json!({ "snapshot_name": "a", "quiesce": "pause" });
        act(&host, &drivers, "machine_create_snapshot", wanted).await.unwrap_err();
        assert_eq!(status(&drivers).await, expected, "failed");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_task_left_of_a_snapshot_blocks_nothing() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let wanted = params(snapshot("a"));
    let plan = super::machine_create_snapshot::MachineCreateSnapshot.plan(&wanted).unwrap();
    let lost = host.context(&drivers, &wanted);
    for step in plan.steps.iter().take_while(|step| step.name() != "commit") {
        step.apply(&lost).await.unwrap();
    }
    drivers.vms.update(uuid(), |r| assert!(!r.snapshots[0].complete)).await.unwrap();
    let made = act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    assert_eq!(names(&made["vm"]), ["a"]);
    assert_eq!(drivers.vms.get(uuid()).unwrap().snapshots.len(), 1);
    assert_eq!(host.pool.disks()[&(uuid(), 1)].snapshots.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_vm_without_disks_has_no_snapshots() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let bare = create_params(json!({ "disks": [] }));
    run(&host.context(&drivers, &bare), "machine_create", false).await.unwrap();
    let refused = code(&host, &drivers, "machine_create_snapshot", snapshot("a")).await;
    assert_eq!(refused, "DatasetNotFound");
    assert_eq!(drivers.vms.get(uuid()).unwrap().snapshots, []);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_a_disk_cannot_follow_touches_nothing() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    // Another disk in the place of the second one, without the snapshot.
    let other: TaskId = "other".parse().unwrap();
    drivers.storage.stash_disk(uuid(), 1, &other).await.unwrap();
    let spec = DiskSpec {
        vm: uuid(),
        index: 1,
        pool: None,
        image: None,
        size_mib: Some(8),
        wishes: Wishes::default(),
    };
    drivers.storage.create_disk(&spec, &other).await.unwrap();
    // Its record is older than volumes, and does not know its own disk.
    drivers.vms.update(uuid(), |record| record.volumes = None).await.unwrap();
    act(&host, &drivers, "machine_create_snapshot", snapshot("b")).await.unwrap();
    let (disks, record) = (host.pool.disks(), drivers.vms.get(uuid()));
    let refused = act(&host, &drivers, "machine_rollback_snapshot", snapshot("a")).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, "SnapshotNotFound");
    assert!(refused.message.contains("disk 1"), "{refused}");
    assert_eq!((host.pool.disks(), drivers.vms.get(uuid())), (disks, record));
    assert_eq!((host.guests.running().len(), host.guests.starts(uuid())), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn disks_of_different_moments_are_not_started_from() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    for name in ["a", "b"] {
        act(&host, &drivers, "machine_create_snapshot", snapshot(name)).await.unwrap();
    }
    for fault in [Fault::before(), Fault::after()] {
        host.faults.fail_nth("storage.roll_back", 1, fault);
        let failed = act(&host, &drivers, "machine_rollback_snapshot", snapshot("a")).await;
        failed.unwrap_err();
        // Also by the next agent.
        let drivers = host.agent("boot-1").await;
        let vm = drivers.vms.object(uuid(), true).unwrap();
        assert_eq!((&vm["state"], names(&vm)), (&json!("stopped"), vec!["a"]));
        let refused = act(&host, &drivers, "machine_boot", json!({})).await.unwrap_err();
        assert_eq!(refused.code, "VmNotUsable");
        assert!(refused.message.contains("snapshot \"a\""), "{refused}");
        let refused = code(&host, &drivers, "machine_create_snapshot", snapshot("c")).await;
        assert_eq!(refused, "VmNotUsable");
    }
    let drivers = host.agent("boot-1").await;
    // It ran when the first one began.
    act(&host, &drivers, "machine_rollback_snapshot", snapshot("a")).await.unwrap();
    assert_eq!(host.guests.starts(uuid()), 2);
}

#[tokio::test(start_paused = true)]
async fn a_newer_snapshot_is_listed_as_long_as_the_disks_have_it() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    for name in ["a", "b", "c"] {
        act(&host, &drivers, "machine_create_snapshot", snapshot(name)).await.unwrap();
    }
    host.faults.fail_nth("storage.delete_snapshot", 2, Fault::before());
    let failed = act(&host, &drivers, "machine_rollback_snapshot", snapshot("a")).await;
    failed.unwrap_err();
    assert_eq!(names(&drivers.vms.object(uuid(), true).unwrap()), ["b", "a"]);
    assert_eq!(host.pool.disks()[&(uuid(), 0)].snapshots.len(), 2);
    // Its disks were not touched yet.
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
}

/// Also when the agent dies anywhere in between, or the snapshot can't be taken.
#[tokio::test(start_paused = true)]
async fn a_guest_that_was_frozen_for_a_snapshot_goes_on() {
    let wanted = json!({ "snapshot_name": "a", "quiesce": "guest" });
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        one_vm(&host).await;
        host.guests.install_agent(uuid());
        let all = params(wanted.clone());
        if !run_with_crash(&host, "machine_create_snapshot", &all, step, done).await {
            assert!(step >= 5, "freeze, take and thaw are steps");
            break;
        }
        assert!(!host.guests.is_frozen(uuid()), "step {step}, done {done}");
    }
    let host = Host::new();
    let drivers = one_vm(&host).await;
    host.guests.install_agent(uuid());
    host.faults.fail_nth("storage.create_snapshot", 1, Fault::before());
    act(&host, &drivers, "machine_create_snapshot", wanted).await.unwrap_err();
    assert!(!host.guests.is_frozen(uuid()));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_an_agent_or_that_is_paused_is_not_frozen() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let wanted = || json!({ "snapshot_name": "a", "quiesce": "guest" });
    let refused = code(&host, &drivers, "machine_create_snapshot", wanted()).await;
    assert_eq!(refused, "GuestAgentMissing");
    assert_eq!(drivers.vms.get(uuid()).unwrap().snapshots, []);
    host.guests.install_agent(uuid());
    act(&host, &drivers, "machine_kill", json!({ "signal": "STOP" })).await.unwrap();
    let refused = code(&host, &drivers, "machine_create_snapshot", wanted()).await;
    assert_eq!(refused, "VmNotUsable");
    act(&host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    act(&host, &drivers, "machine_create_snapshot", wanted()).await.unwrap();
}
