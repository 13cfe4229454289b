//! What the firmware of a VM keeps, through the tasks that change its disks.

use serde_json::json;

use super::machine_tests::{Host, IMAGE, create_params, params, run, uuid};
use crate::drivers::faults::Fault;
use crate::drivers::storage::{Role, Storage};

const ALL: [Role; 3] = [Role::Firmware, Role::Disk(0), Role::Disk(1)];

async fn having(storage: &dyn Storage, name: &str) -> Vec<Role> {
    let found = storage.snapshots(uuid()).await.unwrap().into_iter();
    found.filter(|found| found.name == name).map(|found| found.volume).collect()
}

#[tokio::test(start_paused = true)]
async fn what_firmware_keeps_goes_the_way_of_the_boot_disk() {
    let host = Host::new();
    let empty = host.content();
    let drivers = host.agent("boot-1").await;
    let storage = drivers.storage.as_ref();
    let create = create_params(json!({ "bootrom": "uefi" }));
    run(&host.context(&drivers, &create), "machine_create", true).await.unwrap();
    assert_eq!(storage.roles(uuid()).await.unwrap(), ALL);
    let snapshot = params(json!({ "snapshot_name": "a" }));
    for kind in ["machine_create_snapshot", "machine_rollback_snapshot"] {
        run(&host.context(&drivers, &snapshot), kind, true).await.unwrap();
        assert_eq!(having(storage, "vmsnap-a").await, ALL, "{kind}");
    }

    let again = params(json!({ "image_uuid": IMAGE }));
    host.faults.fail_nth("storage.create_disk", 1, Fault::before());
    run(&host.context(&drivers, &again), "machine_reprovision", false).await.unwrap_err();
    assert_eq!(having(storage, "vmsnap-a").await, ALL);
    run(&host.context(&drivers, &again), "machine_reprovision", true).await.unwrap();
    // Fresh ones, made for the start.
    assert_eq!(storage.roles(uuid()).await.unwrap(), ALL);
    assert_eq!(having(storage, "vmsnap-a").await, []);

    run(&host.context(&drivers, &params(json!({}))), "machine_destroy", true).await.unwrap();
    assert_eq!(host.content(), empty);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_runs_gets_no_other_variables() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let create = create_params(json!({ "bootrom": "uefi" }));
    run(&host.context(&drivers, &create), "machine_create", true).await.unwrap();
    let made = host.faults.calls("storage.variables");
    let boot = params(json!({ "idempotent": true }));
    run(&host.context(&drivers, &boot), "machine_boot", true).await.unwrap();
    assert_eq!(host.faults.calls("storage.variables"), made);
}
