//! The driver of disks on a real pool, without an agent around it.

use muster_tests::system::System;
use muster_tests::system::node::LONG;

use crate::pools::datasets;

/// As the suites want it.
const SUITES: &str = "set -eu
zpool create zones /dev/disk/by-id/virtio-spare0
mkdir -p /mnt/payload
mount -o ro /dev/disk/by-id/virtio-payload /mnt/payload
/mnt/payload/tests/zfs-conformance /mnt/payload/bin/muster-zfs";

const PASSED: &str = "\
zfs by its programs: ok
zfs by libzfs_core: ok
disks: ok
snapshots: ok
variables: ok
filling: ok
roots: ok
snapshots of roots: ok
content of roots: ok
quota: ok
";

#[tokio::test]
async fn the_storage_driver_conforms_on_a_real_pool() {
    let system = System::start().await;
    let ran = system.try_run(SUITES, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_eq!(ran.stdout, PASSED);
    let left = datasets(&system).await;
    let image = "zones/01020304-0506-4708-890a-0b0c0d0e0f1";
    let images = ["0", "0@final", "1", "1@final"].map(|end| format!("{image}{end}"));
    let own = ["zones".to_owned()].into_iter().chain(images).chain(["zones/muster".to_owned()]);
    assert_eq!(left, own.collect::<Vec<_>>(), "nothing else is left");
}
