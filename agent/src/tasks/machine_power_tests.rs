//! Starting and stopping VMs, step by step on a simulated host.

use std::time::Duration;

use serde_json::json;

use super::machine_tests::{Host, act, one_vm, params, run, uuid};
use crate::vms::VmRecord;

#[tokio::test(start_paused = true)]
async fn power_tasks_say_when_there_is_nothing_to_do() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let failure = act(&host, &drivers, "machine_boot", json!({})).await.unwrap_err();
    assert_eq!(failure.code, "EALREADYRUNNING");
    act(&host, &drivers, "machine_boot", json!({ "idempotent": "true" })).await.unwrap();

    let stopped = act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    assert_eq!(stopped["vm"]["state"], "stopped");
    assert_eq!(stopped.get("forced"), None);
    assert_eq!(stopped["vm"]["autoboot"], false);
    for kind in ["machine_shutdown", "machine_kill", "machine_reboot"] {
        let failure = act(&host, &drivers, kind, json!({})).await.unwrap_err();
        assert_eq!(failure.code, "ENOTRUNNING", "{kind}");
        let idempotent = act(&host, &drivers, kind, json!({ "idempotent": true })).await.unwrap();
        assert_eq!(idempotent["vm"]["state"], "stopped", "{kind}");
    }
    let update = json!({ "update": { "set_internal_metadata": { "a": 1 } } });
    let booted = act(&host, &drivers, "machine_boot", update).await.unwrap();
    assert_eq!(booted["vm"]["autoboot"], true);
    assert_eq!(booted["vm"]["internal_metadata"]["a"], 1);
    let rebooted = act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    assert_eq!(rebooted["vm"]["state"], "running");
    let bad = act(&host, &drivers, "machine_shutdown", json!({ "timeout": [] })).await;
    assert!(bad.unwrap_err().message.contains("Invalid type: \"object\" for timeout"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_keeps_the_machine_type_of_its_first_start() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let machine_types = || {
        let given = host.guests.record(uuid()).unwrap().machine_type;
        (drivers.vms.get(uuid()).unwrap().machine_type, given)
    };
    let first = (Some("sim-1".to_owned()), Some("sim-1".to_owned()));
    assert_eq!(machine_types(), first);
    host.guests.upgrade();
    act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let booted = act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    assert_eq!(machine_types(), first);
    assert_eq!(booted["vm"]["machine_type"], "sim-1");
    // A VM of that host that is new has the newer one.
    let other = VmRecord { machine_type: None, ..drivers.vms.get(uuid()).unwrap() };
    assert_eq!(drivers.compute.machine_type(&other).as_deref(), Some("sim-2"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_was_killed_is_told_as_stopped() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    host.guests.die_slowly(uuid());
    let killed = act(&host, &drivers, "machine_kill", json!({ "signal": "SIGKILL" })).await;
    let killed = killed.unwrap();
    assert_eq!(
        (&killed["vm"]["state"], &killed["vm"]["exit_status"]),
        (&json!("stopped"), &json!(137))
    );
}

#[tokio::test(start_paused = true)]
async fn a_vm_does_not_start_without_one_of_its_disks() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    drivers.storage.stash_disk(uuid(), 1, &"other".parse().unwrap()).await.unwrap();
    // What runs goes on: it could not be started again.
    for (kind, extra) in [
        ("machine_reboot", json!({})),
        ("machine_update", json!({ "ram": 256, "reboot": "always" })),
    ] {
        let refused = act(&host, &drivers, kind, extra).await.unwrap_err();
        assert_eq!(refused.code, "DatasetNotFound", "{kind}");
    }
    assert_eq!((host.guests.running().len(), host.guests.starts(uuid())), (1, 1));
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let refused = act(&host, &drivers, "machine_boot", json!({})).await.unwrap_err();
    assert_eq!(refused.code, "DatasetNotFound");
    assert!(refused.message.contains("disk 1 of VM"), "{refused}");
    assert!(refused.message.contains("disk1.qcow2"), "{refused}");
    assert!(host.guests.running().is_empty());
    drivers.storage.restore_disk(uuid(), 1, &"other".parse().unwrap()).await.unwrap();
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ignores_its_power_button_is_killed_in_time() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    host.guests.ignore_acpi(uuid());
    let started = host.clock.monotonic();
    let ctx = host.context(&drivers, &params(json!({ "timeout": "5" })));
    let result = run(&ctx, "machine_shutdown", false).await.unwrap();
    let took = host.clock.monotonic() - started;
    assert!((5..7).contains(&took.as_secs()), "{took:?}");
    assert_eq!(result["vm"]["exit_status"], 137);
    assert_eq!(result["forced"], true, "whoever asked has to know");

    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    let ctx = host.context(&drivers, &params(json!({ "timeout": 3600 })));
    let hurry = ctx.hurried.clone();
    let started = host.clock.monotonic();
    let (result, ()) = tokio::join!(run(&ctx, "machine_shutdown", false), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        hurry.cancel();
    });
    assert_eq!(result.unwrap()["vm"]["state"], "stopped");
    assert!(host.clock.monotonic() - started < Duration::from_secs(4));
}
