//! Pools that are not there, locked or full under an agent that works with them.

use muster_tests::system::node::{LONG, Node};
use serde_json::{Value, json};

use crate::pools::{node_with, told};

/// Its key is in a file, and asked for by nobody.
const ENCRYPTED: &str = "umask 077
echo 'correct horse' >/root/key
umask 022
zpool create -O encryption=on -O keyformat=passphrase -O keylocation=file:///root/key zones \
    /dev/disk/by-id/virtio-spare0";
const SMALL: &str = "zpool create zones /dev/disk/by-id/virtio-spare0";

/// Why a VM can't be made now; and nothing is left of it.
async fn refused(node: &Node, alias: &str) -> String {
    let (vm, asked) = node.ask_for_vm(alias, "button", &json!({})).await;
    let why = node.failure(&asked).await;
    let listed = node.system.run("muster vm list -o json").await;
    assert!(!listed.contains(&vm), "{listed}");
    why
}

async fn act(node: &Node, vm: &str, path: &str, body: &Value) {
    let path = format!("/servers/{}/vms/{vm}{path}", node.server);
    let asked = node.api("POST", &path, body).await;
    node.complete(&asked).await;
}

#[tokio::test]
async fn a_pool_that_is_exported_or_locked_is_named_and_comes_back_with_its_machines() {
    let node = node_with(ENCRYPTED).await;
    let vm = node.create("one", "button", &json!({})).await;
    act(&node, &vm, "/stop", &json!({ "force": true })).await;

    node.system.run("udevadm settle; zpool export zones").await;
    told(&node, LONG, |degraded| degraded.contains("pool zones is gone")).await;
    let why = refused(&node, "two").await;
    assert!(why.contains("zones"), "{why}");
    // Its machine has a record, and nobody says that it is gone.
    assert_eq!(node.vm(&vm).await["uuid"], vm);

    // Its datasets can be seen again, and not what is in them.
    node.system.run("zpool import zones").await;
    told(&node, LONG, |degraded| degraded.contains("zones/muster is not mounted")).await;
    let why = refused(&node, "three").await;
    assert!(why.contains("zones"), "{why}");

    node.system.run("zfs load-key -a && zfs mount -a").await;
    told(&node, LONG, |degraded| !degraded.contains("zones")).await;
    act(&node, &vm, "/start", &json!({})).await;
    node.create("four", "button", &json!({})).await;
}

#[tokio::test]
async fn a_full_pool_refuses_machines_and_takes_them_once_there_is_room() {
    let node = node_with(SMALL).await;
    let script = "dd if=/dev/urandom of=/zones/noise bs=1M status=none; sync; zfs list zones";
    println!("{}", node.system.try_run(script, LONG).await.expect("the machine answers").stdout);
    let why = refused(&node, "one").await;
    assert!(why.contains("StoreFull"), "{why}");
    node.system.run("rm /zones/noise; zpool sync zones").await;
    node.create("two", "button", &json!({})).await;
}
