//! Disks that come and go, with their files, on a simulated host; and memory that a guest gives back.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::TaskFailure;
use super::machine_tests::{Host, IMAGE, act, one_vm, params, run_with_crash, uuid};
use crate::drivers::faults::Fault;
use crate::node::Drivers;
use crate::vm_record::disks::numbers;
use crate::vms::reconcile::{self, Action};

async fn update(host: &Host, drivers: &Arc<Drivers>, change: Value) -> Result<Value, TaskFailure> {
    act(host, drivers, "machine_update", change).await
}

/// Numbers of the disks that the record has.
fn recorded(drivers: &Drivers) -> BTreeSet<u32> {
    numbers(drivers.vms.get(uuid()).unwrap().list("disks")).into_iter().collect()
}

/// Numbers of the disks that have files.
fn files(host: &Host) -> BTreeSet<u32> {
    host.pool.disks().into_keys().map(|(_, number)| number).collect()
}

fn path(drivers: &Drivers, number: u32) -> Value {
    let record = drivers.vms.get(uuid()).unwrap();
    crate::vm_record::disks::with_number(record.list("disks"), number).unwrap()["path"].clone()
}

/// Guest, record and files agree.
#[track_caller]
fn agree(host: &Host, drivers: &Drivers, wanted: &[u32], case: &str) {
    let wanted: BTreeSet<u32> = wanted.iter().copied().collect();
    assert_eq!(recorded(drivers), wanted, "{case}: record");
    assert_eq!(files(host), wanted, "{case}: files");
    assert_eq!(host.guests.disks(uuid()), wanted, "{case}: guest");
    let record = drivers.vms.get(uuid()).unwrap();
    assert_eq!(record.going_disks, [], "{case}");
    let volumes: BTreeSet<u32> = record.volumes.unwrap().iter().map(|it| it.index).collect();
    assert_eq!(volumes, wanted, "{case}: volumes");
    assert_eq!(host.guests.starts(uuid()), 1, "{case}");
}

#[tokio::test(start_paused = true)]
async fn they_come_and_go_without_a_restart() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let add = json!({ "add_disks": [{ "size": 16, "max_iops": 100 }, { "image_uuid": IMAGE }] });
    let result = update(&host, &drivers, add).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert!(result["vm"].get("running_with").is_none());
    let disks = result["vm"]["disks"].as_array().unwrap();
    assert_eq!((&disks[2]["size"], &disks[3]["size"]), (&json!(16), &json!(1)));
    assert!(disks[2]["path"].as_str().unwrap().ends_with("/disk2.qcow2"), "{disks:?}");
    assert_eq!((&disks[2]["zpool"], &disks[2]["model"]), (&json!("zones"), &json!("virtio")));
    agree(&host, &drivers, &[0, 1, 2, 3], "added");

    // Those behind it keep their names.
    let gone = json!({ "remove_disks": [path(&drivers, 2)], "alias": "two" });
    let result = update(&host, &drivers, gone.clone()).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    agree(&host, &drivers, &[0, 1, 3], "removed");
    // Workflows repeat updates.
    let before = drivers.vms.get(uuid()).unwrap();
    update(&host, &drivers, gone).await.unwrap();
    assert_eq!(drivers.vms.get(uuid()).unwrap(), before);
    let grow = json!({ "update_disks": [{ "path": path(&drivers, 3), "size": 64 }] });
    update(&host, &drivers, grow).await.unwrap();
    assert_eq!(host.guests.disk_size(uuid(), 3), Some(64 << 20));

    act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    assert_eq!(host.guests.disks(uuid()), BTreeSet::from([0, 1, 3]));
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    assert!(host.pool.disks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_does_not_run_gets_them_as_well() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let change = json!({
        "remove_disks": [path(&drivers, 1)], "add_disks": [{ "size": 8, "model": "ide" }],
    });
    let result = update(&host, &drivers, change).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!((recorded(&drivers), files(&host)), ([0, 2].into(), [0, 2].into()));
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    assert_eq!(host.guests.disks(uuid()), BTreeSet::from([0, 2]));
}

/// What its bays can't take waits; what can't be pulled out is refused.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_plugged_waits_and_what_can_not_be_pulled_is_refused() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let add = json!({ "add_disks": [{ "size": 8, "model": "ide" }, { "size": 8 }] });
    let result = update(&host, &drivers, add).await.unwrap();
    assert_eq!(result["pending_reboot"], json!(["disks"]));
    assert_eq!(result["vm"]["running_with"], json!({ "disks": null }));
    assert_eq!(host.guests.disks(uuid()), BTreeSet::from([0, 1, 3]));
    assert_eq!((files(&host), host.guests.starts(uuid())), ([0, 1, 2, 3].into(), 1));
    // The guest never had it.
    let result = update(&host, &drivers, json!({ "remove_disks": [path(&drivers, 2)] })).await;
    assert!(result.unwrap()["vm"].get("running_with").is_none());
    agree(&host, &drivers, &[0, 1, 3], "the waiting one is gone");

    let add = json!({ "add_disks": [{ "size": 8, "model": "scsi" }], "reboot": "always" });
    update(&host, &drivers, add).await.unwrap();
    assert_eq!((host.guests.disks(uuid()).len(), host.guests.starts(uuid())), (4, 2));
    let (before, gone) = (drivers.vms.get(uuid()), json!({ "remove_disks": [path(&drivers, 2)] }));
    let refused = update(&host, &drivers, gone.clone()).await.unwrap_err();
    assert_eq!(refused.code, Code::VmNotStopped);
    assert!(refused.message.contains("remove_disks") && refused.message.contains("disk2"));
    assert_eq!((drivers.vms.get(uuid()), host.guests.disks(uuid()).len()), (before, 4));
    let mut restart = gone;
    restart["reboot"] = json!("always");
    update(&host, &drivers, restart).await.unwrap();
    assert_eq!((host.guests.disks(uuid()), files(&host)), ([0, 1, 3].into(), [0, 1, 3].into()));
    assert_eq!(host.guests.starts(uuid()), 3);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_is_refused_and_changes_nothing() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_create_snapshot", json!({ "snapshot_name": "a" })).await.unwrap();
    let (before, record) = (host.content(), drivers.vms.get(uuid()));
    for (change, code, text) in [
        (json!({ "add_disks": [{ "size": 8 }] }), Code::InvalidParameters, "snapshots"),
        (json!({ "remove_disks": [path(&drivers, 0)] }), Code::InvalidVmPayload, "remove_disks"),
        (json!({ "add_disks": [{}] }), Code::InvalidVmPayload, "add_disks.0.size"),
        (json!({ "add_disks": [{ "size": 8, "path": "/x" }] }), Code::InvalidVmPayload, "path"),
    ] {
        let refused = update(&host, &drivers, change).await.unwrap_err();
        assert_eq!(refused.code, code, "{refused}");
        assert!(refused.message.contains(text), "{refused}");
    }
    assert_eq!((host.content(), drivers.vms.get(uuid())), (before, record));
    // One that goes takes its snapshots with it; the others keep theirs.
    update(&host, &drivers, json!({ "remove_disks": [path(&drivers, 1)] })).await.unwrap();
    let back = json!({ "snapshot_name": "a" });
    act(&host, &drivers, "machine_rollback_snapshot", back).await.unwrap();
    act(&host, &drivers, "machine_delete_snapshot", json!({ "snapshot_name": "a" })).await.unwrap();
    let pool = json!({ "add_disks": [{ "size": 8, "zpool": "nowhere" }] });
    let refused = update(&host, &drivers, pool).await.unwrap_err();
    assert!(refused.message.contains("add_disks") && refused.message.contains("nowhere"));
    let missing = "99999999-2222-4333-8444-555555555555";
    let image = json!({ "add_disks": [{ "image_uuid": missing }] });
    assert_eq!(update(&host, &drivers, image).await.unwrap_err().code, Code::ImageNotFound);
    assert_eq!(files(&host), BTreeSet::from([0]));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_one_keeps_it_and_the_failure_says_so() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let record = drivers.vms.get(uuid()).unwrap();
    host.guests.keep_disk(uuid(), 1, true);
    let change = json!({
        "alias": "two", "remove_disks": [path(&drivers, 1)], "add_disks": [{ "size": 8 }],
    });
    let failure = update(&host, &drivers, change.clone()).await.unwrap_err();
    assert_eq!(failure.code, Code::GuestRefused);
    assert!(failure.message.contains("disk 1"), "{failure}");
    assert_eq!(drivers.vms.get(uuid()).unwrap(), record);
    agree(&host, &drivers, &[0, 1], "kept");
    host.guests.keep_disk(uuid(), 1, false);
    update(&host, &drivers, change).await.unwrap();
    agree(&host, &drivers, &[0, 2], "given up");
}

fn change(drivers: &Drivers) -> Value {
    json!({
        "remove_disks": [path(drivers, 1)], "add_disks": [{ "size": 8 }, { "image_uuid": IMAGE }],
        "alias": "two",
    })
}

#[tokio::test(start_paused = true)]
async fn changes_go_on_after_a_crash_at_any_step() {
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let change = params(change(&drivers));
        if !run_with_crash(&host, "machine_update", &change, step, done).await {
            break;
        }
        let drivers = host.agent("boot-1").await;
        agree(&host, &drivers, &[0, 2, 3], &format!("step {step}, done {done}"));
    }
}

async fn needed(drivers: &Drivers) -> Vec<Action> {
    drivers.vms.observe(drivers.compute.as_ref(), uuid()).await.unwrap();
    let plan = drivers.vms.plan(&BTreeSet::new());
    plan.actions.into_iter().map(|(_, action)| action).collect()
}

async fn settle(host: &Host, drivers: &Arc<Drivers>) -> Result<Value, TaskFailure> {
    let record = drivers.vms.get(uuid());
    let wanted = reconcile::params(uuid(), Action::SettleDisks, record.as_ref());
    update(host, drivers, Value::Object(wanted)).await
}

/// Lets each call fail in turn: afterwards everything is as before or as wanted, if need be once the
/// agent has settled it, and the same again does the rest.
#[tokio::test(start_paused = true)]
async fn changes_that_fail_anywhere_leave_guest_record_and_files_agreed() {
    let operations = [
        "compute.disks",
        "compute.observe",
        "compute.plug_disk",
        "compute.unplug_disk",
        "images.install",
        "storage.create_disk",
        "storage.destroy_disk",
        "storage.disks",
        "vms.put",
    ];
    let mut failed = 0;
    for (operation, nth) in
        operations.into_iter().flat_map(|name| [(name, 1), (name, 2), (name, 3)])
    {
        for fault in [Fault::before(), Fault::after()] {
            let host = Host::new();
            let drivers = one_vm(&host).await;
            let change = change(&drivers);
            let case = format!("{operation} {nth} {fault:?}");
            host.faults.fail_nth(operation, nth, fault);
            if let Err(failure) = update(&host, &drivers, change.clone()).await {
                failed += 1;
                // The fault may strike here, if it did not strike before.
                for _ in 0..2 {
                    if needed(&drivers).await == [Action::SettleDisks] {
                        drop(settle(&host, &drivers).await);
                    }
                }
                let wanted: Vec<u32> = recorded(&drivers).into_iter().collect();
                assert!([&[0, 1][..], &[0, 2, 3]].contains(&&wanted[..]), "{case}: {wanted:?}");
                agree(&host, &drivers, &wanted, &format!("{case}: {failure}"));
                if wanted == [0, 2, 3] {
                    continue;
                }
                if update(&host, &drivers, change.clone()).await.is_err() {
                    update(&host, &drivers, change).await.unwrap();
                }
            }
            agree(&host, &drivers, &[0, 2, 3], &format!("{case}: again"));
            assert_eq!(needed(&drivers).await, [], "{case}");
        }
    }
    assert!(failed > 15, "only {failed} changes failed");
}

/// As after an unplug that nobody waits for any more.
#[tokio::test(start_paused = true)]
async fn what_a_guest_gives_up_too_late_it_gets_again() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let record = drivers.vms.get(uuid()).unwrap();
    assert_eq!(needed(&drivers).await, []);
    host.guests.lose_disk(uuid(), 1);
    assert_eq!(needed(&drivers).await, [Action::SettleDisks]);
    settle(&host, &drivers).await.unwrap();
    assert_eq!((needed(&drivers).await, drivers.vms.get(uuid()).unwrap()), (vec![], record));
    agree(&host, &drivers, &[0, 1], "settled");
}

/// The guest keeps what it was given by a change that failed then.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_undone_is_undone_later() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    host.guests.keep_disk(uuid(), 2, true);
    host.faults.fail_nth("vms.put", 1, Fault::before());
    update(&host, &drivers, json!({ "add_disks": [{ "size": 8 }] })).await.unwrap_err();
    assert_eq!(host.guests.disks(uuid()), BTreeSet::from([0, 1, 2]));
    assert_eq!(settle(&host, &drivers).await.unwrap_err().code, Code::GuestRefused);
    assert_eq!(needed(&drivers).await, [Action::SettleDisks]);
    host.guests.keep_disk(uuid(), 2, false);
    settle(&host, &drivers).await.unwrap();
    agree(&host, &drivers, &[0, 1], "settled");
    assert_eq!(needed(&drivers).await, []);
}

/// It has nothing that could be changed, and starts with what its record says.
#[tokio::test(start_paused = true)]
async fn a_guest_that_ends_meanwhile_is_no_failure() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let wanted = params(change(&drivers));
    let ctx = host.context(&drivers, &wanted);
    let plan = super::Handler::plan(&super::machine_update::MachineUpdate, &wanted).unwrap();
    for step in &plan.steps {
        if step.name() == "disks" {
            host.guests.exit(uuid(), 0);
        }
        step.apply(&ctx).await.unwrap();
    }
    assert_eq!((recorded(&drivers), files(&host)), ([0, 2, 3].into(), [0, 2, 3].into()));
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    assert_eq!(host.guests.disks(uuid()), recorded(&drivers));
}

#[tokio::test(start_paused = true)]
async fn memory_is_given_back_and_taken_again_and_more_waits() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    for (ram, has, waits) in [(64, 64, false), (96, 96, false), (128, 128, false), (256, 128, true)]
    {
        let result = update(&host, &drivers, json!({ "ram": ram })).await.unwrap();
        assert_eq!(
            result["pending_reboot"],
            if waits { json!(["ram"]) } else { json!([]) },
            "{ram}"
        );
        let running_with = result["vm"].get("running_with").cloned();
        assert_eq!(running_with, waits.then(|| json!({ "ram": has })), "{ram}");
        assert_eq!(host.guests.memory_mib(uuid()), Some(has), "{ram}");
    }
    assert_eq!(host.guests.starts(uuid()), 1);
    act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    assert_eq!(host.guests.memory_mib(uuid()), Some(256));
    // Its system has no driver.
    host.guests.keep_memory(uuid());
    let result = update(&host, &drivers, json!({ "ram": 128 })).await.unwrap();
    assert_eq!(result["pending_reboot"], json!(["ram"]));
    assert_eq!(result["vm"]["running_with"], json!({ "ram": 256 }));
}

#[tokio::test(start_paused = true)]
async fn memory_is_as_the_record_says_after_a_crash_or_a_failure() {
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        one_vm(&host).await;
        let change = params(json!({ "ram": 64, "alias": "two" }));
        if !run_with_crash(&host, "machine_update", &change, step, done).await {
            break;
        }
        assert_eq!(host.guests.memory_mib(uuid()), Some(64), "step {step}, done {done}");
    }
    let host = Host::new();
    let drivers = one_vm(&host).await;
    host.faults.fail_nth("vms.put", 1, Fault::before());
    update(&host, &drivers, json!({ "ram": 64 })).await.unwrap_err();
    assert_eq!(host.guests.memory_mib(uuid()), Some(128), "as before");
    let vm = drivers.vms.object(uuid(), true).unwrap();
    assert_eq!((&vm["ram"], vm.get("running_with")), (&json!(128), None));
}
