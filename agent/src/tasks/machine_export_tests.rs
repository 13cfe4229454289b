//! VMs that are copied piece by piece on a simulated host.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::units::MIB;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::machine_change_tests::{code, snapshot};
use super::machine_tests::{Host, act, one_vm, uuid};
use crate::node::Drivers;
use crate::vms::reconcile::BY_ITSELF;

const DISK: u64 = 64 * MIB;

/// An import of a VM with one disk.
fn import() -> Value {
    let volume = json!({ "role": "disk", "index": 0, "size_bytes": DISK });
    json!({
        "brand": "kvm", "alias": "copy", "disks": [{ "size": 64 }], "autoboot": true,
        "import": { "export": "one", "volumes": [volume] },
    })
}

fn piece(offset: u64, data: &str, durable: bool) -> Value {
    json!({
        "volume": 0, "offset": offset, "durable": durable,
        "data": BASE64_STANDARD.encode(data), "sha256": hex::encode(Sha256::digest(data)),
    })
}

fn state(drivers: &Drivers) -> String {
    drivers.vms.object(uuid(), true).unwrap()["state"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_filled_and_is_an_ordinary_one_then() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    act(&host, &drivers, "machine_import", import()).await.unwrap();
    assert_eq!(state(&drivers), "provisioning");
    for (kind, extra) in [("machine_boot", json!({})), ("machine_create_snapshot", snapshot("a"))] {
        assert_eq!(code(&host, &drivers, kind, extra).await, "VmNotUsable", "{kind}");
    }
    for (bad, wanted) in [
        (json!({ "volume": 1 }), "InvalidParameters"),
        (json!({ "sha256": "00" }), "InvalidParameters"),
        (json!({ "offset": DISK }), "InvalidParameters"),
        (json!({ "boot": "boot-0" }), "ImportInterrupted"),
    ] {
        let mut wrong = piece(0, "x", false);
        wrong.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        assert_eq!(code(&host, &drivers, "machine_import_write", wrong).await, wanted, "{bad}");
    }
    act(&host, &drivers, "machine_import_write", piece(0, "one", false)).await.unwrap();
    let told = act(&host, &drivers, "machine_import_state", json!({})).await.unwrap();
    assert_eq!((&told["offset"], &told["boot"]), (&json!(0), &json!("boot-1")));
    act(&host, &drivers, "machine_import_write", piece(4096, "two", true)).await.unwrap();

    // The agent may die: everything up to there is known.
    let drivers = host.agent("boot-1").await;
    let told = act(&host, &drivers, "machine_import_state", json!({})).await.unwrap();
    assert_eq!((&told["export"], &told["offset"]), (&json!("one"), &json!(4099)));
    let content = host.pool.disks()[&(uuid(), 0)].content.clone();
    assert_eq!(content.into_values().collect::<Vec<_>>(), [b"one", b"two"]);

    let ended = act(&host, &drivers, "machine_import_end", json!({})).await;
    // Steps are repeated here, and once it has ended there is nothing to fill.
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(state(&drivers), "stopped");
    let again = code(&host, &drivers, "machine_import_write", piece(0, "x", false)).await;
    assert_eq!(again, "VmNotUsable");
    assert_eq!(code(&host, &drivers, "machine_import_end", json!({})).await, "VmNotUsable");
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();

    // And out again.
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    let export = act(&host, &drivers, "machine_export", snapshot("a")).await.unwrap();
    assert_eq!(
        export["volumes"],
        json!([
            { "role": "disk", "index": 0, "number": 0, "size_bytes": DISK },
        ])
    );
    assert_eq!(
        (&export["vm"]["alias"], &export["vm"]["disks"][0]["size"]),
        (&json!("copy"), &json!(64))
    );
    let read = |from: u64| json!({ "snapshot_name": "a", "disk": 0, "offset": from });
    let first = act(&host, &drivers, "machine_export_read", read(1)).await.unwrap();
    assert_eq!((&first["offset"], &first["next"]), (&json!(4096), &json!(4099)));
    assert_eq!(first["data"], BASE64_STANDARD.encode("two"));
    let last = act(&host, &drivers, "machine_export_read", read(4099)).await.unwrap();
    assert_eq!((&last["data"], &last["next"]), (&json!(""), &json!(DISK)));
    for missing in [snapshot("b"), json!({ "snapshot_name": "a", "disk": 7 })] {
        let refused = code(&host, &drivers, "machine_export_read", missing).await;
        assert_eq!(refused, "SnapshotNotFound");
    }
}

#[tokio::test(start_paused = true)]
async fn an_import_that_is_given_up_leaves_nothing() {
    let host = Host::new();
    let empty = host.content();
    let drivers = host.agent("boot-1").await;
    act(&host, &drivers, "machine_import", import()).await.unwrap();
    // Nobody asked for it, and its time is not over.
    act(&host, &drivers, "machine_import_end", json!({ BY_ITSELF: true })).await.unwrap();
    assert!(!drivers.vms.get(uuid()).unwrap().destroying);
    act(&host, &drivers, "machine_import_end", json!({ "discard": true })).await.unwrap();
    assert!(drivers.vms.get(uuid()).unwrap().destroying);
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    assert_eq!(host.content(), empty);

    // Another VM is never given up.
    let drivers = one_vm(&host).await;
    for extra in [json!({ "discard": true }), json!({ BY_ITSELF: true })] {
        assert_eq!(code(&host, &drivers, "machine_import_end", extra).await, "VmNotUsable");
    }
    assert_eq!(code(&host, &drivers, "machine_import", import()).await, "VmExists");
}
