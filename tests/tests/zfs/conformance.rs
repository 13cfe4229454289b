//! The driver of disks on a real pool, without an agent around it.

use std::time::Duration;

use muster_tests::system::System;
use muster_tests::system::node::LONG;

use crate::pools::datasets;

/// As the suites want it.
const SUITES: &str = "set -eu
zpool create zones /dev/disk/by-id/virtio-spare0
mkdir -p /mnt/payload
mount -o ro /dev/disk/by-id/virtio-payload /mnt/payload
/mnt/payload/tests/zfs-conformance /mnt/payload/bin/muster-zfs";
/// They take minutes on an emulated machine, and twice as many when it has to share the processor.
const SUITES_LIMIT: Duration = Duration::from_secs(800);
/// Asked of `libzfs_core` itself: what it can't tell is asked of `zfs`, which nobody would notice.
const QUESTIONS: &str = r#"set -eu
zfs create -s -V 16M zones/asked
zfs snapshot zones/asked@one
/mnt/payload/bin/muster-zfs <<'END'
{"id":1,"op":"volume_size","pool":"zones","name":"zones/asked"}
{"id":2,"op":"volume_size","pool":"zones","name":"zones/asked@one"}
{"id":3,"op":"exists","name":"zones/asked@one"}
{"id":4,"op":"exists","name":"zones/nothing"}
{"id":5,"op":"exists","name":"nothing/at-all"}
END
udevadm settle
zfs destroy -r zones/asked
"#;
const ANSWERS: &str = r#"{"id":1,"outcome":"size","bytes":16777216,"calls":1}
{"id":2,"outcome":"size","bytes":16777216,"calls":2}
{"id":3,"outcome":"done","calls":3}
{"id":4,"outcome":"failed","errno":2,"of":{},"calls":4}
{"id":5,"outcome":"failed","errno":2,"of":{},"calls":5}
"#;

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
    let ran = system.try_run(SUITES, SUITES_LIMIT).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_eq!(ran.stdout, PASSED);
    println!("{}", ran.stderr);
    let told = system.try_run(QUESTIONS, LONG).await.expect("the machine answers");
    assert_eq!(told.stdout, ANSWERS, "{told:#?}");
    let left = datasets(&system).await;
    let image = "zones/01020304-0506-4708-890a-0b0c0d0e0f1";
    let images = ["0", "0@final", "1", "1@final"].map(|end| format!("{image}{end}"));
    let own = ["zones".to_owned()].into_iter().chain(images).chain(["zones/muster".to_owned()]);
    assert_eq!(left, own.collect::<Vec<_>>(), "nothing else is left");
}
