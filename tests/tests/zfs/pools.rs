//! A node whose disks are in a pool.

use std::time::Duration;

use muster_shared::clock::{Clock as _, SystemClock};
use muster_tests::system::System;
use muster_tests::system::node::{LONG, Node};
use muster_tests::wait::wait_for;
use serde_json::json;

/// The pool of the tests, over the first two spare disks. On a busy machine ZFS may look for a partition
/// that it has just made before udev has.
pub(crate) const MIRROR: &str = "mirror() {
    zpool create -O compression=lz4 zones mirror \
        /dev/disk/by-id/virtio-spare0 /dev/disk/by-id/virtio-spare1
}
mirror || { udevadm settle && mirror; }";
const USE_IT: &str = "sed -i '1i storage = \"zfs\"' /etc/muster/agent.toml
systemctl restart muster-agent";

/// A node whose VMs go to a mirrored pool `zones`.
pub(crate) async fn node() -> Node {
    node_with(MIRROR).await
}

/// A node whose VMs go to the pool `zones` that this script makes.
pub(crate) async fn node_with(pool: &str) -> Node {
    let node = Node::install(System::start().await).await;
    let script = format!("set -eu\n{pool}\n{USE_IT}");
    let made = node.system.try_run(&script, LONG).await.expect("the machine answers");
    assert_eq!(made.code, 0, "{made:#?}");
    node.wait_usable().await;
    node
}

/// What is in the pool, by name.
pub(crate) async fn datasets(system: &System) -> Vec<String> {
    let listed = system.run("zfs list -H -o name -t all -r zones").await;
    listed.lines().map(str::to_owned).collect()
}

/// A property of a dataset, as ZFS tells it.
pub(crate) async fn property(system: &System, dataset: &str, name: &str) -> String {
    system.run(&format!("zfs get -Hp -o value {name} {dataset}")).await.trim().to_owned()
}

/// Waits until what is wrong with the server is this.
pub(crate) async fn told(node: &Node, within: Duration, is_it: impl Fn(&str) -> bool) {
    let clock = SystemClock::new();
    let told = wait_for("the server says what is wrong", within, || async {
        let degraded = node.degraded().await;
        if is_it(&degraded) { Ok(degraded) } else { Err(degraded) }
    });
    println!("degraded: {}", told.await);
    println!("told after {:.1?}", clock.monotonic());
}

/// Longest until the pool is said to be degraded.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Writes again and again, so that the loss of a disk is met.
pub(crate) const WRITER: &str = "systemd-run -q --unit=writer bash -c \
    'while :; do dd if=/dev/urandom of=/zones/noise bs=64k count=8 conv=fsync status=none; sleep 0.2; done'";

#[tokio::test]
async fn a_pool_that_lost_a_disk_is_told_to_be_degraded_within_ten_seconds() {
    let node = node().await;
    node.system.run(WRITER).await;
    node.system.pull_spare(1).await;
    told(&node, TOLD_WITHIN, |degraded| degraded.contains("zones")).await;
    // A disk goes where the other one is.
    node.create("one", "button", &json!({})).await;
}
