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
";

#[tokio::test]
async fn the_storage_driver_conforms_on_a_real_pool() {
    let system = System::start().await;
    let ran = system.try_run(SUITES, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_eq!(ran.stdout, PASSED);
    let left = datasets(&system).await;
    let image = "zones/01020304-0506-4708-890a-0b0c0d0e0f10";
    let all = ["zones", image, &format!("{image}@final"), "zones/muster"];
    assert_eq!(left, all, "nothing else is left");
}
