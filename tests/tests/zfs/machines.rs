//! Virtual machines whose disks are volumes of a pool.

use muster_tests::system::node::{LONG, Node};
use serde_json::{Value, json};

use crate::pools::{datasets, node, property};

/// Beyond the boot sector, which the guest needs, bytes of a block.
const BLOCK: &str = "bs=512 seek=1000 count=1 conv=notrunc,fsync oflag=direct status=none";

/// Asks for something of a VM, and waits until it is done.
pub(crate) async fn act(node: &Node, method: &str, vm: &str, path: &str, body: &Value) {
    let asked = node.api(method, &format!("/servers/{}/vms/{vm}{path}", node.server), body).await;
    node.complete(&asked).await;
}

pub(crate) async fn take_snapshot(node: &Node, vm: &str, name: &str) {
    act(node, "PUT", vm, "/snapshots", &json!({ "snapshot_name": name })).await;
}

/// The device of a VM's boot disk.
pub(crate) fn device(vm: &str) -> String {
    format!("/dev/zvol/zones/{vm}/disk0")
}

/// Fills a block of a disk with a letter.
pub(crate) async fn write(node: &Node, device: &str, letter: &str) {
    let script = format!("head -c 512 /dev/zero | tr '\\0' {letter} | dd of={device} {BLOCK}");
    node.system.run(&script).await;
}

/// The letters of that block.
pub(crate) async fn read(node: &Node, device: &str) -> String {
    let skip = BLOCK.replace("seek", "skip").replace("conv=notrunc,fsync oflag", "iflag");
    node.system.run(&format!("dd if={device} {skip} | tr -s 'a-z' | tr -d '\\0'")).await
}

/// What a VM leaves behind: processes, datasets, devices, files.
async fn left_of(node: &Node, vm: &str) -> String {
    let script = format!(
        "pgrep -af 'qemu-system.* -uuid {vm} '; zfs list -H -o name -t all -r zones | grep {vm}; \
         find /dev/zvol /zones /var/lib/muster-agent /run/muster -name '*{vm}*' | grep -v '/history/'; \
         grep {vm} /proc/mounts; true"
    );
    node.system.run(&script).await
}

/// The whole life of a VM, with content that is written past its guest.
#[tokio::test]
async fn machine_lives_on_volumes_and_leaves_nothing() {
    let node = node().await;
    let system = &node.system;
    let before = datasets(system).await;
    let vm = node.create("one", "button", &json!({})).await;
    let disk = format!("zones/{vm}/disk0");
    let device = device(&vm);

    // A clone of the image, with its owner on it.
    let origin = property(system, &disk, "origin").await;
    assert!(origin.starts_with("zones/") && origin.ends_with("@final"), "{origin}");
    assert_eq!(property(system, &disk, "muster:server_uuid").await, node.server);
    assert_eq!(property(system, &disk, "muster:vm_uuid").await, vm);
    let size = property(system, &disk, "volsize").await;
    assert_eq!(property(system, &disk, "refreservation").await, size);
    // Its hypervisor has the volume itself open, as a user that owns nothing.
    let pid = node.process(&vm).await.split(' ').next().expect("a pid").to_owned();
    let opened = system.run(&format!("ls -l /proc/{pid}/fd; grep Uid /proc/{pid}/status")).await;
    assert!(opened.contains("/dev/zd"), "{opened}");
    assert!(opened.contains("Uid:\t1900000"), "{opened}");

    // A second disk, larger while it runs; a snapshot of both at one moment.
    act(&node, "POST", &vm, "/update", &json!({ "add_disks": [{ "size": 16 }] })).await;
    let second = format!("zones/{vm}/disk1");
    take_snapshot(&node, &vm, "a").await;
    let mut moments = Vec::new();
    for volume in [&disk, &second] {
        moments.push(property(system, &format!("{volume}@vmsnap-a"), "createtxg").await);
    }
    assert_eq!(moments[0], moments[1], "they are of one moment");

    // What was written after it is gone once the VM goes back.
    act(&node, "POST", &vm, "/stop", &json!({ "force": true })).await;
    write(&node, &device, "a").await;
    take_snapshot(&node, &vm, "b").await;
    write(&node, &device, "b").await;
    take_snapshot(&node, &vm, "c").await;
    assert_eq!(read(&node, &device).await, "b");
    act(&node, "PUT", &vm, "/snapshots/b/rollback", &json!({})).await;
    assert_eq!(read(&node, &device).await, "a");
    let names = datasets(system).await;
    assert!(!names.iter().any(|name| name.ends_with("@vmsnap-c")), "{names:?}");
    assert!(names.contains(&format!("{disk}@vmsnap-a")), "{names:?}");

    // The image over the old disk, and nothing of that stays.
    let image = system.run("muster image get button -o json").await;
    let image: Value = serde_json::from_str(&image).expect("JSON");
    act(&node, "POST", &vm, "/reprovision", &json!({ "image_uuid": image["uuid"] })).await;
    assert_eq!(read(&node, &device).await, "");
    let names = datasets(system).await;
    assert!(!names.iter().any(|name| name.contains("reprovisioning")), "{names:?}");

    act(&node, "DELETE", &vm, "", &json!({})).await;
    assert_eq!(left_of(&node, &vm).await, "");
    // But for the image, which the next VM is made from, and the agent's own file system.
    let image = image["uuid"].as_str().expect("a uuid");
    let after = datasets(system).await.into_iter();
    let after: Vec<_> = after.filter(|name| !name.contains(image)).collect();
    assert_eq!(after, before);
}

/// What is on a volume goes into an image, and into a file, and comes back out of both.
#[tokio::test]
async fn machine_on_volumes_becomes_an_image_and_a_file() {
    let node = node().await;
    let system = &node.system;
    let vm = node.create("one", "button", &json!({})).await;
    act(&node, "POST", &vm, "/stop", &json!({ "force": true })).await;
    write(&node, &device(&vm), "a").await;

    try_run(&node, "muster image create --name made --version 1 one").await;
    let copy = node.create("two", "made", &json!({})).await;
    let origin = property(system, &format!("zones/{copy}/disk0"), "origin").await;
    let image = system.run("muster image get made -o json").await;
    let image: Value = serde_json::from_str(&image).expect("JSON");
    assert_eq!(origin, format!("zones/{}@final", image["uuid"].as_str().expect("a uuid")));
    act(&node, "POST", &copy, "/stop", &json!({ "force": true })).await;
    assert_eq!(read(&node, &device(&copy)).await, "a");
    // Each has blocks of its own.
    write(&node, &device(&copy), "b").await;
    assert_eq!(read(&node, &device(&vm)).await, "a");

    try_run(&node, "muster vm export one /root/one.vm").await;
    act(&node, "DELETE", &vm, "", &json!({})).await;
    assert_eq!(left_of(&node, &vm).await, "");
    // Its disks are too small for the allocator, which keeps some for itself.
    try_run(&node, &format!("muster vm import /root/one.vm --server {}", node.server)).await;
    assert_eq!(read(&node, &device(&vm)).await, "a");
    assert_eq!(property(system, &format!("zones/{vm}/disk0"), "origin").await, "-");
    act(&node, "POST", &vm, "/start", &json!({})).await;

    for vm in [&vm, &copy] {
        act(&node, "DELETE", vm, "", &json!({})).await;
        assert_eq!(left_of(&node, vm).await, "");
    }
}

/// The manifest of the image of this name.
async fn image(node: &Node, name: &str) -> Value {
    let found = node.system.run(&format!("muster image get {name} -o json")).await;
    serde_json::from_str(&found).expect("JSON")
}

/// The volume of an image.
fn volume(image: &Value) -> String {
    format!("zones/{}", image["uuid"].as_str().expect("a uuid"))
}

/// Only what differs from its origin is in an image. It becomes a clone of the origin's volume, also when
/// both have gone from the node, and the origin has another snapshot now.
#[tokio::test]
async fn machine_on_volumes_becomes_an_image_of_what_differs() {
    let node = node().await;
    let system = &node.system;
    let vm = node.create("one", "button", &json!({})).await;
    act(&node, "POST", &vm, "/stop", &json!({ "force": true })).await;
    write(&node, &device(&vm), "a").await;
    try_run(&node, "muster image create --name less --version 1 --incremental one").await;
    let (whole, less) = (image(&node, "button").await, image(&node, "less").await);
    assert_eq!(less["origin"], whole["uuid"], "{less:#}");
    act(&node, "DELETE", &vm, "", &json!({})).await;
    assert_eq!(left_of(&node, &vm).await, "");
    let images = format!("/servers/{}/images", node.server);
    let first = property(system, &format!("{}@final", volume(&whole)), "guid").await;
    let path = format!("{images}/{}", whole["uuid"].as_str().expect("a uuid"));
    node.complete(&node.api("DELETE", &path, &json!({})).await).await;

    let copy = node.create("two", "less", &json!({})).await;
    assert_ne!(property(system, &format!("{}@final", volume(&whole)), "guid").await, first);
    let clone = property(system, &volume(&less), "origin").await;
    assert_eq!(clone, format!("{}@final", volume(&whole)));
    let disk = property(system, &format!("zones/{copy}/disk0"), "origin").await;
    assert_eq!(disk, format!("{}@final", volume(&less)));
    // The rest is the origin's: its guest came up.
    act(&node, "POST", &copy, "/stop", &json!({ "force": true })).await;
    assert_eq!(read(&node, &device(&copy)).await, "a");

    // One that builds on it in turn.
    write(&node, &device(&copy), "b").await;
    try_run(&node, "muster image create --name least --version 1 --incremental two").await;
    assert_eq!(image(&node, "least").await["origin"], less["uuid"]);
    let last = node.create("three", "least", &json!({})).await;
    act(&node, "POST", &last, "/stop", &json!({ "force": true })).await;
    assert_eq!(read(&node, &device(&last)).await, "b");
    for vm in [&copy, &last] {
        act(&node, "DELETE", vm, "", &json!({})).await;
        assert_eq!(left_of(&node, vm).await, "");
    }
}

/// Runs a command that may take its time.
pub(crate) async fn try_run(node: &Node, command: &str) {
    let ran = node.system.try_run(command, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{command}: {ran:#?}");
}
