//! A node that makes its own pool of whole disks, and a factory reset that takes nothing else away.

use muster_tests::system::node::{LONG, Node, parse};
use muster_tests::system::{SHORT, System};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

use crate::pools::{TOLD_WITHIN, WRITER, told};

/// So that four of them are more than twice the machine's memory, bytes; sparse.
const DISK_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// A node that waits for its setup, and may do to its host what that takes.
const NOT_SET_UP: &str = "set -eu
systemctl stop muster-agent
rm /var/lib/muster-agent/setup.json
sed -i '1i storage = \"zfs\"' /etc/muster/agent.toml
printf '[setup]\\nauto = false\\n' >>/etc/muster/agent.toml
touch /etc/muster/host-actions
systemctl start muster-agent";
/// A pool that is somebody else's, on the last of the disks.
const FOREIGN: &str = "zpool create other /dev/disk/by-id/virtio-spare3
echo kept >/other/file";
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// What says on the disks that they were in use.
const SIGNATURES: &str = "for disk in /dev/disk/by-id/virtio-spare?; do wipefs -n $disk; done";

async fn bare_node() -> Node {
    let node = Node::install(System::start_with_disks(DISK_BYTES).await).await;
    let ran = node.system.try_run(NOT_SET_UP, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{ran:#?}");
    wait_set_up(&node, false).await;
    node
}

/// Waits until the coordinator knows that the node is, or is not, set up.
async fn wait_set_up(node: &Node, is_it: bool) {
    wait_for(&format!("setup is {is_it}"), LONG, || async {
        let ran = node.system.try_run("muster server list -o json", SHORT).await;
        let ran = ran.map_err(|error| error.to_string())?;
        let listed: Value = serde_json::from_str(&ran.stdout).map_err(|_| format!("{ran:?}"))?;
        let server = &listed[0];
        let known = server["uuid"] == node.server && server["status"] == "running";
        if known && server["setup"] == is_it { Ok(()) } else { Err(ran.stdout) }
    })
    .await;
}

/// Has the agent itself run a task; the status and the answer.
async fn ask_agent(node: &Node, task: &str, params: &Value) -> (u16, Value) {
    let body = json!({ "task": task, "params": params });
    let script = format!(
        "curl -sS -w '\\n%{{http_code}}' --unix-socket /run/muster/agent.sock --data @- \
         http://agent/tasks <<'END'\n{body}\nEND\n"
    );
    let ran = node.system.try_run(&script, LONG).await.expect("the machine answers");
    let (answer, status) = ran.stdout.trim_end().rsplit_once('\n').expect("an answer");
    (status.parse().expect("a status"), parse(answer))
}

/// Has the coordinator set the node up; returns when that is done.
async fn set_up(node: &Node, wishes: &Value) {
    let job = node.api("PUT", &format!("/servers/{}/setup", node.server), wishes).await;
    let job = job["job_uuid"].as_str().expect("a job").to_owned();
    let wait = format!("muster job wait {job}");
    let ran = node.system.try_run(&wait, LONG).await.expect("the machine answers");
    let log = "journalctl --no-pager -n 60 -u muster-agent";
    let log = node.system.try_run(log, SHORT).await.map(|ran| ran.stdout);
    assert_eq!(ran.code, 0, "{ran:#?} {log:#?}");
    wait_set_up(node, true).await;
}

/// Has the coordinator reset the node; returns when it was booted anew and is not set up any more.
async fn reset(node: &Node) {
    let boot = node.system.run(BOOT_ID).await;
    node.api("PUT", &format!("/servers/{}/factory-reset", node.server), &json!({})).await;
    let booted =
        format!("test \"$({BOOT_ID})\" != {} && systemctl is-active muster-agent", boot.trim());
    node.system.wait("the machine was booted anew", LONG, &booted).await;
    let said = node.system.run("journalctl --no-pager -b -o cat -u muster-agent-early").await;
    assert!(said.contains("is done"), "{said}");
    wait_set_up(node, false).await;
}

#[tokio::test]
async fn setup_makes_mirrors_of_four_disks_and_only_the_right_token_takes_them_away() {
    let node = bare_node().await;
    let system = &node.system;
    let (status, shown) =
        ask_agent(&node, "server_setup", &json!({ "dry_run": true, "disk_layout": "mirror" }))
            .await;
    let shown = shown.to_string();
    assert!(status == 200 && shown.contains("mirror /dev/disk/by-id/virtio-spare0"), "{shown}");
    assert_eq!(system.run("zpool list -H; ls /var/lib/muster-agent/setup.json || true").await, "");

    set_up(&node, &json!({ "disk_layout": "mirror" })).await;
    let pool = system.run("zpool list -v -H -P zones | awk '{print $1}'").await;
    let disk = |number| format!("/dev/disk/by-id/virtio-spare{number}-part1");
    let [a, b, c, d] = [0, 1, 2, 3].map(disk);
    assert_eq!(
        pool.split_whitespace().collect::<Vec<_>>(),
        ["zones", "mirror-0", &a, &b, "mirror-1", &c, &d]
    );
    let vm = node.create("one", "button", &json!({})).await;

    system.run(WRITER).await;
    system.pull_spare(1).await;
    told(&node, TOLD_WITHIN, |degraded| degraded.contains("zones")).await;
    system.run("systemctl stop writer").await;

    // Neither without its name, nor with a VM.
    for (token, code) in [
        (muster_tests::daemon::fresh_uuid(), "InvalidParameters"),
        (node.server.clone(), "VmsPresent"),
    ] {
        let (status, refused) =
            ask_agent(&node, "server_factory_reset", &json!({ "confirm": token })).await;
        assert_eq!((status >= 400, refused["code"].as_str()), (true, Some(code)), "{refused}");
    }
    let marks = "zfs get -H -o value muster:factoryreset zones; ls /var/lib/muster-agent/factory-reset.json || true";
    assert_eq!(system.run(marks).await, "-\n", "nothing changed");
    node.complete(
        &node.api("DELETE", &format!("/servers/{}/vms/{vm}", node.server), &json!({})).await,
    )
    .await;

    reset(&node).await;
    assert_eq!(system.run(&format!("zpool list -H; {SIGNATURES}")).await, "");
    let left = system.run("ls /var/lib/muster-agent").await;
    assert!(!left.contains("setup.json"), "{left}");
}

#[tokio::test]
async fn setup_makes_raidz_and_a_reset_leaves_other_pools_alone() {
    let node = bare_node().await;
    let system = &node.system;
    system.run(FOREIGN).await;
    // The kernel's name of a disk is not the same at each boot.
    let name = system.run("basename $(readlink /dev/disk/by-id/virtio-spare3)").await;
    let wishes = json!({ "disk_layout": "raidz1", "disk_exclude": name.trim() });
    set_up(&node, &wishes).await;
    let pool = system.run("zpool list -v -H -P zones | awk '{print $1}'").await;
    assert_eq!(pool.split_whitespace().nth(1), Some("raidz1-0"), "{pool}");
    assert_eq!(pool.matches("virtio-spare").count(), 3, "{pool}");

    reset(&node).await;
    assert_eq!(system.run("zpool list -H -o name; cat /other/file").await, "other\nkept\n");
    let left = system.run(SIGNATURES).await;
    assert!(
        left.lines().all(|line| !line.contains("zfs_member") || line.contains("spare3")),
        "{left}"
    );

    // What was wiped is as good as new.
    set_up(&node, &wishes).await;
    assert_eq!(system.run("zpool list -H -o name,health").await, "other\tONLINE\nzones\tONLINE\n");
}
