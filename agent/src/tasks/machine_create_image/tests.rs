//! Images made of VMs on a simulated host.

use super::super::machine_change_tests::code;
use super::super::machine_tests::{Host, IMAGE, act, create_params, one_vm, run, uuid};
use super::*;

fn wanted(change: &Value) -> Value {
    let mut params = Value::Object(MachineCreateImage.example());
    params.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    params
}

async fn stopped(host: &Host) -> std::sync::Arc<crate::node::Drivers> {
    let drivers = one_vm(host).await;
    act(host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    drivers
}

#[tokio::test(start_paused = true)]
async fn a_stopped_vm_becomes_an_image_and_is_as_before() {
    let host = Host::new();
    let drivers = stopped(&host).await;
    let before = host.content();
    let manifest = json!({ "name": "made", "version": "1", "uuid": uuid(), "tags": { "a": 1 } });
    let made = act(
        &host,
        &drivers,
        "machine_create_image",
        wanted(&json!({
            "manifest": manifest,
        })),
    )
    .await
    .unwrap();
    assert_eq!(made["image_uuid"], json!(uuid()));
    let published = &made["manifest"];
    assert_eq!((&published["state"], &published["type"]), (&json!("active"), &json!("zvol")));
    assert_eq!(
        (&published["tags"]["a"], published["image_size"].as_u64().is_some()),
        (&json!(1), true)
    );
    assert_eq!(host.content(), before);
    assert_eq!(host.pool.packed_count(), 0);
    assert!(host.pool.disks().values().all(|disk| disk.snapshots.is_empty()));
    // Another task does not get its uuid.
    let again = code(
        &host,
        &drivers,
        "machine_create_image",
        wanted(&json!({
            "manifest": manifest,
        })),
    );
    assert_eq!(again.await, "ImageUuidAlreadyExists");
    assert_eq!((host.content(), host.pool.packed_count()), (before, 0));
    assert!(host.pool.disks().values().all(|disk| disk.snapshots.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_done_is_refused_by_name() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let kind = "machine_create_image";
    assert_eq!(code(&host, &drivers, kind, wanted(&json!({}))).await, "VmNotStopped");
    for (change, wanted_code) in [
        (json!({ "incremental": "some" }), "InvalidParameters"),
        (json!({ "incremental": true, "max_origin_depth": 0 }), "InvalidParameters"),
        (json!({ "prepare_image_script": " " }), "InvalidParameters"),
        (json!({ "prepare_image_script": 7 }), "InvalidParameters"),
        (json!({ "compression": "rar" }), "InvalidParameters"),
        (json!({ "manifest": 7 }), "InvalidParameters"),
        (json!({ "imgapi_url": "ftp://x/" }), "InvalidParameters"),
    ] {
        let found = code(&host, &drivers, kind, wanted(&change)).await;
        assert_eq!(found, wanted_code, "{change}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_incremental_image_names_its_origin_and_is_installed_after_it() {
    let host = Host::new();
    let drivers = stopped(&host).await;
    let kind = "machine_create_image";
    let made = act(&host, &drivers, kind, wanted(&json!({ "incremental": true }))).await.unwrap();
    let manifest = &made["manifest"];
    assert_eq!(
        (&manifest["origin"], &manifest["files"][0]["format"]),
        (&json!(IMAGE), &json!("qcow2"))
    );
    let whole =
        act(&host, &drivers, kind, wanted(&json!({ "incremental": "false" }))).await.unwrap();
    assert_eq!(whole["manifest"].get("origin"), None);

    // One of it, on a node that lost both.
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    let origin = IMAGE.parse().unwrap();
    drivers.images.remove(origin).await.unwrap();
    let create = create_params(json!({ "disks": [{ "image_uuid": made["image_uuid"] }] }));
    run(&host.context(&drivers, &create), "machine_create", false).await.unwrap();
    assert_eq!(host.pool.images().len(), 2);
    drivers.images.remove(origin).await.unwrap_err();
    act(&host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    for (depth, refused) in [(1, true), (2, false)] {
        let wanted = wanted(&json!({ "incremental": true, "max_origin_depth": depth }));
        let again = act(&host, &drivers, kind, wanted).await;
        let code = again.err().map(|failure| failure.code.to_string());
        assert_eq!(code.as_deref(), refused.then_some("MaxOriginDepth"), "{depth}");
    }

    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    let blank = create_params(json!({ "disks": [{ "size": 8 }], "autoboot": false }));
    run(&host.context(&drivers, &blank), "machine_create", false).await.unwrap();
    let refused = code(&host, &drivers, kind, wanted(&json!({ "incremental": true }))).await;
    assert_eq!(refused, "VmHasNoOrigin");
}
