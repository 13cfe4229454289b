//! What the records of VMs know of their volumes.

use std::sync::Arc;

use muster_shared::ids::TaskId;
use serde_json::{Value, json};

use super::machine_tests::{Host, act, create_params, one_vm, run, uuid};
use crate::drivers::faults::Fault;
use crate::drivers::storage::sim::SimPool;
use crate::drivers::storage::{DiskSpec, Wishes};
use crate::node::{Drivers, orphans, startup};
use crate::vms::VolumeRecord;

/// As the record has them, and as the host has them.
async fn volumes(drivers: &Drivers) -> (Vec<VolumeRecord>, Vec<VolumeRecord>) {
    let disks = drivers.storage.disks(uuid()).await.unwrap();
    let known = drivers.vms.get(uuid()).unwrap().volumes.unwrap();
    (known, crate::vms::volumes::of(&disks))
}

#[tokio::test(start_paused = true)]
async fn a_record_names_the_volumes_that_there_are() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let (made, found) = volumes(&drivers).await;
    assert_eq!((made.len(), &made), (2, &found));
    let origins: Vec<_> = made.iter().map(|volume| volume.identity.origin).collect();
    assert_eq!(origins, [Some(super::machine_tests::IMAGE.parse().unwrap()), None]);

    act(&host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    let path = drivers.vms.get(uuid()).unwrap().list("disks")[1]["path"].clone();
    let grow = json!({ "update_disks": [{ "path": path, "size": 64 }] });
    act(&host, &drivers, "machine_update", grow).await.unwrap();
    let (grown, found) = volumes(&drivers).await;
    assert_eq!((grown[1].size_bytes, &grown), (64 << 20, &found));
    assert_eq!(grown[1].identity, made[1].identity);

    let other = "01020304-0506-4708-890a-0b0c0d0e0f10";
    act(&host, &drivers, "machine_reprovision", json!({ "image_uuid": other })).await.unwrap();
    let (replaced, found) = volumes(&drivers).await;
    assert_eq!(replaced, found);
    assert_eq!(replaced[0].identity.origin, Some(other.parse().unwrap()));
    assert_ne!(replaced[0].identity.uuid, made[0].identity.uuid);
    assert_eq!(replaced[1], grown[1]);
}

#[tokio::test(start_paused = true)]
async fn a_vm_starts_from_no_other_disk_than_its_own() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
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
    let refused = act(&host, &drivers, "machine_boot", json!({})).await.unwrap_err();
    assert_eq!(refused.code, "DatasetNotFound");
    let known = drivers.vms.get(uuid()).unwrap().volumes.unwrap()[1].identity.uuid.to_string();
    assert!(refused.message.contains("disk 1 ") && refused.message.contains(&known), "{refused}");
    assert_eq!(host.guests.starts(uuid()), 1);
    // Its own is back.
    drivers.storage.restore_disk(uuid(), 1, &other).await.unwrap();
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
}

/// An agent of this version after one that knew no volumes.
async fn upgraded(host: &Host) -> Arc<Drivers> {
    let drivers = one_vm(host).await;
    drivers.vms.update(uuid(), |record| record.volumes = None).await.unwrap();
    host.agent("boot-1").await
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_older_than_volumes_learns_of_its_own() {
    let host = Host::new();
    let drivers = upgraded(&host).await;
    // What can't be shown now is shown at the next start, and the VM is used as before.
    host.faults.fail_nth("storage.disks", 1, Fault::before());
    startup::mend(&drivers, &Default::default()).await;
    assert_eq!(drivers.vms.get(uuid()).unwrap().volumes, None);
    act(&host, &drivers, "machine_reboot", json!({ "force": true })).await.unwrap();
    let drivers = host.agent("boot-1").await;
    startup::mend(&drivers, &Default::default()).await;
    let (known, found) = volumes(&drivers).await;
    assert_eq!((known.len(), &known), (2, &found));
}

#[tokio::test(start_paused = true)]
async fn storage_that_hangs_holds_up_no_start_of_the_agent() {
    let host = Host::new();
    let drivers = upgraded(&host).await;
    host.faults.fail_nth("storage.disks", 1, Fault::hangs());
    let started = host.clock.monotonic();
    startup::mend(&drivers, &Default::default()).await;
    assert!((host.clock.monotonic() - started).as_secs() < 60);
    assert_eq!(drivers.vms.get(uuid()).unwrap().volumes, None);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_tells_each_of_its_volumes() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let ctx = host.context(&drivers, &create_params(json!({ "autoboot": false })));
    run(&ctx, "machine_create", false).await.unwrap();
    let (known, _) = volumes(&drivers).await;
    host.records.lose(uuid());
    host.pool.set_copy(uuid(), b"damaged".to_vec());
    let drivers = host.agent("boot-1").await;
    let shown = orphans::get(&drivers, uuid()).await.unwrap().describe(uuid());
    assert_eq!((shown.disks, shown.volumes.len()), (2, 2));
    for (volume, known) in shown.volumes.iter().zip(known) {
        assert_eq!((volume.uuid, volume.disk), (Some(known.identity.uuid), Some(known.index)));
        assert_eq!(volume.image_uuid, known.identity.origin);
        assert_eq!(volume.task_id.as_ref(), Some(&ctx.task_id));
    }
}

#[tokio::test(start_paused = true)]
async fn disks_lie_in_the_pools_that_were_asked_for() {
    let mut host = Host::new();
    host.fast = Some(SimPool::default());
    let drivers = host.agent("boot-1").await;
    let image = super::machine_tests::IMAGE;
    let disks = json!([{ "image_uuid": image }, { "size": 8, "zpool": "zones" }, { "size": 8 }]);
    // As old clients name it.
    let wanted = create_params(json!({ "zfs_storage_pool_name": "fast", "disks": disks }));
    let made = run(&host.context(&drivers, &wanted), "machine_create", true).await.unwrap();
    let shown = |vm: &Value| -> Vec<String> {
        let disks = vm["disks"].as_array().unwrap().iter();
        disks.map(|disk| disk["zpool"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((made["vm"]["zpool"].as_str(), shown(&made["vm"])), (Some("fast"), pools()));
    let (known, found) = volumes(&drivers).await;
    let named: Vec<_> = known.iter().map(|volume| volume.identity.pool.clone()).collect();
    assert_eq!((named, &known), (pools(), &found));
    assert_eq!((host.pool.copies().len(), host.fast.as_ref().unwrap().copies().len()), (0, 1));

    let other = json!({ "image_uuid": "01020304-0506-4708-890a-0b0c0d0e0f10" });
    let again = act(&host, &drivers, "machine_reprovision", other).await.unwrap();
    assert_eq!(shown(&again["vm"]), pools());
    // An agent that lost its records has the VM back from there.
    host.records.lose(uuid());
    let drivers = host.agent("boot-1").await;
    assert!(drivers.vms.get(uuid()).is_some());
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    let left = host.pool.disks().len() + host.fast.unwrap().disks().len();
    assert_eq!(left, 0);
}

fn pools() -> Vec<String> {
    ["fast", "zones", "fast"].map(str::to_owned).to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_none_is_refused_by_name() {
    let mut host = Host::new();
    host.fast = Some(SimPool::default());
    let drivers = host.agent("boot-1").await;
    let empty = host.content();
    for (wanted, field) in [
        (json!({ "zpool": "slow" }), "zpool"),
        (json!({ "disks": [{ "size": 8 }, { "size": 8, "zpool": "slow" }] }), "disks.1.zpool"),
    ] {
        let ctx = host.context(&drivers, &create_params(wanted));
        let refused = run(&ctx, "machine_create", false).await.unwrap_err();
        assert_eq!(refused.code, "InvalidParameters");
        assert_eq!(refused.details.as_ref().unwrap()["field"], field);
        assert!(refused.message.ends_with("there are zones, fast"), "{refused}");
        assert_eq!(host.content(), empty);
    }
    // Nobody has to know what the first one is called.
    let zones = create_params(json!({ "zfs_storage_pool_name": "zones" }));
    run(&host.context(&drivers, &zones), "machine_create", false).await.unwrap();
}
