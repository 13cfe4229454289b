//! The task kinds that change a VM, of one that is a container, run step by step on a simulated host.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Params;
use super::machine_change_tests::{code, snapshot};
use super::machine_snapshot_tests::names;
use super::machine_tests::{CONTAINER_IMAGE, Host, IMAGE, act, params, run, run_with_crash, uuid};
use crate::drivers::faults::Fault;
use crate::node::{Drivers, orphans};

/// The parameters of a create.
pub(super) fn container_params() -> Params {
    params(json!({
        "brand": "joyent-minimal", "alias": "one", "ram": 128, "image_uuid": CONTAINER_IMAGE,
        "nics": [{ "nic_tag": "admin" }], "internal_metadata": { "docker:env": "[]" },
    }))
}

pub(super) async fn one_container(host: &Host) -> Arc<Drivers> {
    let drivers = host.agent("boot-1").await;
    run(&host.context(&drivers, &container_params()), "machine_create", false).await.unwrap();
    drivers
}

#[tokio::test(start_paused = true)]
async fn a_reprovision_replaces_the_root_and_nothing_else() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    let before = drivers.vms.get(uuid()).unwrap();
    let image = json!({ "image_uuid": CONTAINER_IMAGE });
    let done = act(&host, &drivers, "machine_reprovision", image.clone()).await.unwrap();
    assert_eq!((&done["vm"]["state"], host.guests.starts(uuid())), (&json!("running"), 2));
    let after = drivers.vms.get(uuid()).unwrap();
    assert_eq!(after.properties, before.properties);
    assert_eq!((after.provisioning, after.failed), (false, false));
    assert_eq!(host.pool.roots(), ([uuid()].into(), [uuid()].into()));
    assert_eq!(host.pool.stashed_roots(), 0);
    let of_a_disk = json!({ "image_uuid": IMAGE });
    assert_eq!(code(&host, &drivers, "machine_reprovision", of_a_disk).await, "ImageInvalid");
    assert_eq!(drivers.vms.object(uuid(), true).unwrap()["state"], "running");
    let drivers = host.agent("boot-1").await;
    drivers.storage.destroy_root(uuid(), None).await.unwrap();
    assert_eq!(code(&host, &drivers, "machine_reprovision", image).await, "DatasetNotFound");
}

#[tokio::test(start_paused = true)]
async fn a_reprovision_goes_on_after_a_crash_at_any_step() {
    let image = params(json!({ "image_uuid": CONTAINER_IMAGE }));
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::of_containers();
        one_container(&host).await;
        let owner = host.pool.root_owner(uuid());
        if !run_with_crash(&host, "machine_reprovision", &image, step, done).await {
            break;
        }
        let case = format!("step {step}, done {done}");
        let vm = host.agent("boot-1").await.vms.object(uuid(), true).unwrap();
        assert_eq!((&vm["state"], host.guests.starts(uuid())), (&json!("running"), 2), "{case}");
        assert_ne!(host.pool.root_owner(uuid()), owner, "{case}");
        assert_eq!(host.pool.stashed_roots(), 0, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reprovision_that_fails_anywhere_leaves_a_whole_container() {
    let mut failed = 0;
    for operation in [
        "compute.start",
        "compute.signal",
        "storage.stash_root",
        "storage.create_root",
        "storage.purge_root_stash",
        "storage.mount_root",
        "images.container",
        "vms.put",
    ] {
        for nth in 1..=4 {
            for fault in [Fault::before(), Fault::after()] {
                let host = Host::of_containers();
                let drivers = one_container(&host).await;
                let (owner, record) = (host.pool.root_owner(uuid()), drivers.vms.get(uuid()));
                let case = format!("{operation} {nth} {fault:?}");
                host.faults.fail_nth(operation, nth, fault);
                let image = params(json!({ "image_uuid": CONTAINER_IMAGE }));
                let ctx = host.context(&drivers, &image);
                let result = run(&ctx, "machine_reprovision", false).await;
                let now = drivers.vms.get(uuid()).unwrap();
                assert!(!now.provisioning && !now.failed, "{case}");
                assert_eq!(host.pool.stashed_roots(), 0, "{case}: {result:?}");
                if result.is_err() && now.reprovision_task.is_none() {
                    assert_eq!(host.pool.root_owner(uuid()), owner, "{case}");
                    assert_eq!(now.properties, record.unwrap().properties, "{case}");
                }
                failed += u32::from(result.is_err());
            }
        }
    }
    assert!(failed > 10, "only {failed} failed");
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_a_root_are_taken_gone_back_to_and_deleted() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    for name in ["a", "b", "c"] {
        act(&host, &drivers, "machine_create_snapshot", snapshot(name)).await.unwrap();
    }
    let frozen = json!({ "snapshot_name": "d", "quiesce": "guest" });
    assert_eq!(code(&host, &drivers, "machine_create_snapshot", frozen).await, "NotSupported");
    let missing = code(&host, &drivers, "machine_rollback_snapshot", snapshot("x")).await;
    assert_eq!(missing, "SnapshotNotFound");
    let rolled = act(&host, &drivers, "machine_rollback_snapshot", snapshot("b")).await.unwrap();
    assert_eq!(names(&rolled["vm"]), ["b", "a"]);
    assert_eq!((&rolled["vm"]["state"], host.guests.starts(uuid())), (&json!("running"), 2));
    act(&host, &drivers, "machine_delete_snapshot", snapshot("a")).await.unwrap();
    assert_eq!(host.pool.root_snapshots(uuid()), ["vmsnap-b"]);
    let image = json!({ "image_uuid": CONTAINER_IMAGE });
    let done = act(&host, &drivers, "machine_reprovision", image).await.unwrap();
    assert_eq!((&done["lost_snapshots"], &done["vm"]["snapshots"]), (&json!(["b"]), &json!([])));
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    let rolled = act(&host, &drivers, "machine_rollback_snapshot", snapshot("a")).await.unwrap();
    assert_eq!(rolled["vm"]["state"], "stopped");
}

/// Its quota changes while it runs; one that can't be had leaves all as it was.
#[tokio::test(start_paused = true)]
async fn a_root_is_kept_as_its_record_says() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    let quota = |host: &Host| host.pool.root_wishes(uuid()).unwrap().quota_bytes;
    assert_eq!(quota(&host), Some(10 << 30), "what a VM has that names none");
    let change = json!({ "quota": 20, "zfs_root_compression": "zstd" });
    for fault in [Fault::before(), Fault::after()] {
        host.faults.fail_nth("storage.change_root", 1, fault);
        act(&host, &drivers, "machine_update", change.clone()).await.unwrap_err();
        assert_eq!(quota(&host), Some(10 << 30));
        assert_eq!(drivers.vms.get(uuid()).unwrap().number("quota"), Some(10));
    }
    let done = act(&host, &drivers, "machine_update", change).await.unwrap();
    assert_eq!((&done["vm"]["quota"], &done["vm"]["state"]), (&json!(20), &json!("running")));
    assert_eq!((quota(&host), host.guests.starts(uuid())), (Some(20 << 30), 1));
    act(&host, &drivers, "machine_update", json!({ "quota": 0 })).await.unwrap();
    assert_eq!(quota(&host), None);
    let image = json!({ "image_uuid": CONTAINER_IMAGE });
    act(&host, &drivers, "machine_reprovision", image).await.unwrap();
    let compression = host.pool.root_wishes(uuid()).unwrap().compression;
    assert_eq!(compression.as_deref(), Some("zstd"));
}

/// Held still while it is copied, and then as before; also when the agent dies anywhere in between.
#[tokio::test(start_paused = true)]
async fn a_snapshot_holds_a_container_still_and_lets_it_go_on() {
    for (signal, running) in [("STOP", false), ("CONT", true)] {
        for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
            let host = Host::of_containers();
            let drivers = one_container(&host).await;
            act(&host, &drivers, "machine_kill", json!({ "signal": signal })).await.unwrap();
            let kind = "machine_create_snapshot";
            if !run_with_crash(&host, kind, &params(snapshot("a")), step, done).await {
                break;
            }
            let info = drivers.compute.info(uuid(), &["status".to_owned()]).await.unwrap();
            assert_eq!(info["status"]["running"], running, "step {step}, done {done}");
            assert_eq!(host.pool.root_snapshots(uuid()), ["vmsnap-a"], "step {step}, done {done}");
        }
        let host = Host::of_containers();
        let drivers = one_container(&host).await;
        act(&host, &drivers, "machine_kill", json!({ "signal": signal })).await.unwrap();
        let signals = host.faults.calls("compute.signal");
        host.faults.fail_nth("storage.create_snapshot", 1, Fault::before());
        act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap_err();
        let info = drivers.compute.info(uuid(), &["status".to_owned()]).await.unwrap();
        assert_eq!(info["status"]["running"], running, "failed");
        assert_eq!(host.faults.calls("compute.signal") > signals, running, "it was held still");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollback_goes_on_after_a_crash_at_any_step() {
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::of_containers();
        let drivers = one_container(&host).await;
        for name in ["a", "b"] {
            act(&host, &drivers, "machine_create_snapshot", snapshot(name)).await.unwrap();
        }
        let kind = "machine_rollback_snapshot";
        if !run_with_crash(&host, kind, &params(snapshot("a")), step, done).await {
            break;
        }
        let vm = host.agent("boot-1").await.vms.object(uuid(), true).unwrap();
        assert_eq!((&vm["state"], names(&vm)), (&json!("running"), vec!["a"]), "{step}, {done}");
        assert_eq!(host.pool.root_snapshots(uuid()), ["vmsnap-a"], "step {step}, done {done}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_container_becomes_an_image_of_containers_and_is_as_before() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    let wanted =
        || json!({ "compression": "gzip", "manifest": { "name": "made", "version": "1" } });
    let kind = "machine_create_image";
    assert_eq!(code(&host, &drivers, kind, wanted()).await, "VmNotStopped");
    act(&host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    let before = host.content();
    let made = act(&host, &drivers, kind, wanted()).await.unwrap();
    let manifest = &made["manifest"];
    assert_eq!((&manifest["type"], &manifest["os"]), (&json!("docker"), &json!("linux")));
    assert_eq!(manifest["files"][0]["format"], "docker-archive");
    assert!(manifest.get("image_size").is_none(), "{manifest}");
    assert_eq!((host.content(), host.pool.packed_count()), (before, 0));
    assert_eq!(host.pool.root_snapshots(uuid()), Vec::<String>::new());
    host.faults.fail_nth("storage.pack_root", 1, Fault::after());
    act(&host, &drivers, kind, wanted()).await.unwrap_err();
    assert_eq!(host.pool.root_snapshots(uuid()), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_container_is_exported_and_imported_with_its_root() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    let export = act(&host, &drivers, "machine_export", snapshot("a")).await.unwrap();
    let size = export["volumes"][0]["size_bytes"].clone();
    assert_eq!(export["volumes"], json!([{ "role": "root", "size_bytes": size, "number": 0 }]));
    assert_eq!(export["vm"]["image_uuid"], CONTAINER_IMAGE);
    let read = json!({ "snapshot_name": "a", "offset": 6 });
    let piece = act(&host, &drivers, "machine_export_read", read).await.unwrap();
    assert_eq!((&piece["offset"], &piece["next"]), (&json!(6), &size));
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();

    let import = |volumes: Value| {
        let mut params = Value::Object(container_params());
        params["import"] = json!({ "export": "one", "volumes": volumes });
        params
    };
    let disk = json!([{ "role": "disk", "index": 0, "size_bytes": 8 }]);
    let both = json!([disk[0], { "role": "root", "size_bytes": 8 }]);
    for bad in [disk, both] {
        let refused = code(&host, &drivers, "machine_import", import(bad)).await;
        assert_eq!(refused, "InvalidParameters");
    }
    let root = json!([{ "role": "root", "size_bytes": size }]);
    act(&host, &drivers, "machine_import", import(root)).await.unwrap();
    assert_eq!(drivers.vms.object(uuid(), true).unwrap()["state"], "provisioning");
    let write = json!({
        "volume": 0, "offset": 0, "data": "b2s=", "durable": true,
        "sha256": hex::encode(<sha2::Sha256 as sha2::Digest>::digest("ok")),
    });
    act(&host, &drivers, "machine_import_write", write).await.unwrap();
    let ended = act(&host, &drivers, "machine_import_end", json!({ "start": true })).await;
    assert_eq!(ended.unwrap()["vm"]["state"], "running");
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    assert_eq!(host.content(), Host::of_containers().content());
}

#[tokio::test(start_paused = true)]
async fn an_orphan_tells_of_its_root_and_is_removed_with_it() {
    let host = Host::of_containers();
    let drivers = one_container(&host).await;
    let owner = host.pool.root_owner(uuid());
    host.records.lose(uuid());
    host.pool.set_copy(uuid(), b"damaged".to_vec());
    let drivers = {
        drop(drivers);
        host.agent("boot-1").await
    };
    let shown = orphans::get(&drivers, uuid()).await.unwrap().describe(uuid());
    assert_eq!((shown.runs, shown.disks, shown.adoptable), (true, 0, false));
    let root = &shown.volumes[0];
    assert_eq!((shown.volumes.len(), root.disk, root.aside), (1, None, false));
    assert_eq!(root.image_uuid, Some(CONTAINER_IMAGE.parse().unwrap()));
    assert_eq!(root.task_id, owner);
    let create = host.context(&drivers, &container_params());
    assert_eq!(run(&create, "machine_create", false).await.unwrap_err().code, "VmExists");
    let confirmed = json!({ "confirm": uuid() });
    act(&host, &drivers, "orphan_remove", confirmed).await.unwrap();
    assert_eq!(host.content(), Host::of_containers().content());
}
