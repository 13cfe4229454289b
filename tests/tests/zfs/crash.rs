//! Agents that are killed at points of their tasks while their VMs are in a pool: the tests of
//! `agent_crash`, run on the node.

use std::time::Duration;

use muster_tests::system::System;

/// Points are tried for so long: each restarts an agent twice under emulation, and all points of a
/// brand are about 150.
const LIMIT: Duration = Duration::from_secs(4 * 3600);
/// Which points are tried; without, a random tenth of each kind.
const POINTS: &str = "MUSTER_KILL_POINTS";

async fn crash(tests: &str, count: usize) {
    let system = System::start().await;
    let points = std::env::var(POINTS).map(|points| format!("export {POINTS}={points}"));
    let script = format!(
        "set -eu
        mkdir -p /mnt/payload /opt/crash
        mount -o ro /dev/disk/by-id/virtio-payload /mnt/payload
        cp /mnt/payload/bin/* /opt/crash/
        cp /mnt/payload/tests/busybox /usr/bin/busybox
        export MUSTER_TEST_GUEST_DIR=/mnt/payload/guest MUSTER_TEST_POOL=1
        {}
        /opt/crash/agent_crash --test-threads=1 --nocapture {tests} 2>/tmp/complaints || {{
            tail -c 20000 /tmp/complaints >&2
            exit 1
        }}",
        points.unwrap_or_default()
    );
    let ran = system.try_run(&script, LIMIT).await.expect("the machine answers");
    println!("{}", ran.stdout);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let clean = ran.stdout.matches("× zfs: ").count();
    assert_eq!(clean, count, "each kind was tried");
    let left = system.run("zpool list -H -o name; pgrep -a qemu-system; true").await;
    assert_eq!(left, "", "a pool, or a guest");
}

#[tokio::test]
async fn killed_agents_leave_nothing_of_hardware_vms_in_a_pool() {
    crash("machine_ --skip killed_at --skip containers::", 14).await;
}

#[tokio::test]
async fn killed_agents_leave_nothing_of_containers_in_a_pool() {
    crash("containers::machine_", 14).await;
}
