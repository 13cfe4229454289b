//! `machine_create` on a simulated host: what it makes, refuses and leaves behind.

use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::HANDLERS;
use super::machine_tests::{Host, IMAGE, act, create_params, one_vm, run, uuid};
use crate::drivers::compute::nocloud;
use crate::drivers::faults::Fault;
use crate::drivers::storage::sim::SimImage;
use crate::vms::VmRecord;

/// Sizes of the disks of a VM that is made from the example image, MiB.
async fn disk_sizes(extra: Value) -> Vec<u64> {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let mut all = create_params(extra);
    all.retain(|_, value| !value.is_null());
    let ctx = host.context(&drivers, &all);
    let result = run(&ctx, "machine_create", true).await.unwrap();
    let shown = result["vm"]["disks"].as_array().unwrap().iter().map(|disk| &disk["size"]);
    let shown: Vec<u64> = shown.map(|size| size.as_u64().unwrap()).collect();
    let made: Vec<u64> = host.pool.disks().values().map(|disk| disk.size_bytes / MIB).collect();
    assert_eq!(shown, made);
    shown
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_the_vms_image_is_as_large_as_the_quota() {
    let made = async |quota: Value| {
        disk_sizes(json!({ "disks": null, "image_uuid": IMAGE, "quota": quota })).await
    };
    assert_eq!(made(json!(5)).await, [5 * 1024]);
    assert_eq!(made(json!(null)).await, [10 * 1024], "kvm's default");
    assert_eq!(made(json!(0)).await, [1], "no quota: as the image");
    // Disks that say what they are made from are sized by what they say.
    let disks = json!([{ "image_uuid": IMAGE }, { "size": 8 }]);
    assert_eq!(disk_sizes(json!({ "disks": disks, "quota": 5 })).await, [1, 8]);
    let disks = json!([{ "image_uuid": IMAGE, "size": 64 }]);
    assert_eq!(disk_sizes(json!({ "image_uuid": IMAGE, "disks": disks, "quota": 5 })).await, [64]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_the_vms_image_is_never_smaller_than_the_image() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let image = SimImage { manifest: json!({ "state": "active" }), size_bytes: 3 * 1024 * MIB };
    host.pool.install(IMAGE.parse().unwrap(), image).unwrap();
    let mut all = create_params(json!({ "image_uuid": IMAGE, "quota": 1 }));
    all.shift_remove("disks");
    run(&host.context(&drivers, &all), "machine_create", false).await.unwrap();
    assert_eq!(host.pool.disks().values().next().unwrap().size_bytes, 3 * 1024 * MIB);
}

/// With an address of the datacentre a guest on a user-mode network reaches nothing.
#[tokio::test(start_paused = true)]
async fn a_guest_is_told_no_address_that_its_network_does_not_have() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let nics = json!([{
        "nic_tag": "admin", "ips": ["192.0.2.17/24"], "gateways": ["192.0.2.1"], "primary": true,
    }]);
    let wanted = json!({ "nics": nics, "resolvers": ["192.0.2.53"], "autoboot": false });
    let wanted = create_params(wanted);
    let made = run(&host.context(&drivers, &wanted), "machine_create", false).await.unwrap();
    assert_eq!(made["vm"]["nics"][0]["ips"], json!(["192.0.2.17/24"]), "the record keeps it");
    let record = drivers.vms.get(uuid()).unwrap();
    let has = |record: &VmRecord, text: &str| {
        let seed = nocloud::volume(record).unwrap();
        seed.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    };
    assert!(has(&record, "192.0.2.17"));
    let is_reachable = |given: &VmRecord| {
        assert!(!has(given, "192.0.2.17") && !has(given, "192.0.2.1\""));
        assert!(has(given, "192.0.2.53") && has(given, "dhcp4"));
    };
    assert_eq!(host.guests.starts(uuid()), 0);
    is_reachable(&host.guests.record(uuid()).unwrap());
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    is_reachable(&host.guests.record(uuid()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_second_create_is_refused_without_harm() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let before = host.content();
    let ctx = host.context(&drivers, &create_params(json!({})));
    let failure = run(&ctx, "machine_create", false).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message),
        (Code::VmExists, format!("Machine {} exists.", uuid()))
    );
    let ctx = host.context(&drivers, &create_params(json!({ "idempotent": true })));
    let result = run(&ctx, "machine_create", true).await.unwrap();
    assert_eq!(result["vm"]["alias"], "one");
    let other = create_params(json!({ "idempotent": true, "ram": 256 }));
    let failure = run(&host.context(&drivers, &other), "machine_create", false).await.unwrap_err();
    assert_eq!(failure.code, "VmExists");
    assert_eq!(host.content(), before);
    assert_eq!(host.guests.starts(uuid()), 1);
}

#[tokio::test(start_paused = true)]
async fn two_creates_at_once_do_not_share_an_address() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == "machine_create").unwrap();
    let nics = json!([{ "nic_tag": "admin", "mac": "02:00:00:00:00:01" }]);
    let other = "99999999-5b5c-4d4e-9f43-2a1f0e2b7c01";
    let creates = [json!({ "nics": nics }), json!({ "nics": nics, "uuid": other })];
    let creates = creates
        .map(create_params)
        .map(|all| (host.context(&drivers, &all), handler.plan(&all).unwrap().steps));
    // Both have looked before either has taken it.
    for (ctx, steps) in &creates {
        steps[0].apply(ctx).await.unwrap();
    }
    let [(first, steps), (second, others)] = &creates;
    steps[1].apply(first).await.unwrap();
    let refused = others[1].apply(second).await.unwrap_err();
    assert_eq!(refused.code, "InvalidParameters");
    assert!(refused.message.contains("02:00:00:00:00:01"), "{refused}");
}

/// Lets each call of a create fail in turn: afterwards the host is as it was before.
#[tokio::test(start_paused = true)]
async fn a_create_that_fails_anywhere_leaves_nothing() {
    let operations = [
        "compute.prepare",
        "compute.start",
        "compute.observe",
        "images.manifest",
        "images.fetch",
        "images.install",
        "storage.create_disk",
        "storage.disks",
        "vms.put",
    ];
    let mut failed = 0;
    for operation in operations {
        for nth in 1..=10 {
            for fault in [Fault::before(), Fault::after(), Fault::refusal(Code::StoreFull)] {
                let host = Host::new();
                let bystander = create_params(json!({
                    "uuid": "99999999-5b5c-4d4e-9f43-2a1f0e2b7c01", "alias": "other",
                }));
                let drivers = host.agent("boot-1").await;
                run(&host.context(&drivers, &bystander), "machine_create", false).await.unwrap();
                let before = host.content();
                host.faults.fail_nth(operation, nth, fault);
                let ctx = host.context(&drivers, &create_params(json!({})));
                if let Err(failure) = run(&ctx, "machine_create", false).await {
                    failed += 1;
                    assert_eq!(host.content(), before, "{operation} {nth}: {failure}");
                }
            }
        }
    }
    assert!(failed > 40, "only {failed} creates failed");
}

#[tokio::test(start_paused = true)]
async fn a_failed_vm_is_kept_when_asked_and_can_be_destroyed() {
    let host = Host::new();
    let empty = host.content();
    let drivers = host.agent("boot-1").await;
    host.faults.fail_nth("compute.start", 1, Fault::after());
    let ctx = host.context(&drivers, &create_params(json!({ "keep_failed": true })));
    run(&ctx, "machine_create", false).await.unwrap_err();
    assert_eq!(ctx.result.lock()["vm"]["state"], "failed");
    assert!(host.guests.running().is_empty());
    assert_eq!(host.pool.disks().len(), 2);
    let refused = act(&host, &drivers, "machine_boot", json!({})).await.unwrap_err();
    assert_eq!(refused.code, "VmNotUsable");
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    assert_eq!(host.content(), empty);
}
