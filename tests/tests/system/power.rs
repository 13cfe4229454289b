//! The machine loses its power in the middle of a task: the task ends once, its VM can be used and
//! destroyed, and nothing is left of it.

use std::time::Duration;

use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_tests::daemon::fresh_uuid;
use muster_tests::system::SHORT;
use serde_json::{Value, json};

use muster_tests::system::node::{LONG, Node, parse};

/// Kinds of tasks, and what has to be done before a VM is as each wants it.
const KINDS: [(&str, &[&str]); 11] = [
    ("machine_create", &[]),
    ("machine_boot", &["machine_create", "machine_shutdown"]),
    ("machine_shutdown", &["machine_create"]),
    ("machine_reboot", &["machine_create"]),
    ("machine_kill", &["machine_create"]),
    ("machine_update", &["machine_create"]),
    ("machine_reprovision", &["machine_create", "machine_shutdown"]),
    ("machine_create_snapshot", &["machine_create"]),
    ("machine_rollback_snapshot", &["machine_create", "machine_create_snapshot"]),
    ("machine_delete_snapshot", &["machine_create", "machine_create_snapshot"]),
    ("machine_destroy", &["machine_create"]),
];

/// Kinds that a run takes, chosen at random: each costs a restart of the emulated machine, which takes
/// minutes. With `MUSTER_KILL_POINTS=all` it takes all.
const KINDS_PER_RUN: usize = 3;

fn chosen() -> Vec<(&'static str, &'static [&'static str])> {
    let mut kinds = KINDS.to_vec();
    if std::env::var("MUSTER_KILL_POINTS").as_deref() != Ok("all") {
        let entropy = SeededEntropy::from_os();
        while kinds.len() > KINDS_PER_RUN {
            kinds.swap_remove(below(&entropy, kinds.len()));
        }
    }
    kinds
}

fn below(entropy: &SeededEntropy, end: usize) -> usize {
    let end = u64::try_from(end).expect("few");
    usize::try_from(entropy.u64() % end).expect("few")
}

/// The agent dies at a point, and the power goes with it: nothing is written any more. The unit's
/// change lies in memory, so that the next start knows nothing of it.
fn arm(point: &str) -> String {
    format!(
        "systemctl stop muster-agent
         mkdir -p /run/systemd/system/muster-agent.service.d
         cat >/run/systemd/system/muster-agent.service.d/power.conf <<'END'
[Service]
Environment=MUSTER_FAULT={point}:kill
ExecStopPost=/bin/sh -c 'echo b >/proc/sysrq-trigger'
END
         systemctl daemon-reload
         sync
         systemctl start muster-agent"
    )
}

/// The point was not on the way of this task.
const DISARM: &str = "rm -r /run/systemd/system/muster-agent.service.d
systemctl daemon-reload
systemctl restart muster-agent";

/// The points of a kind at which the agent can be killed.
async fn points(node: &Node, kind: &str) -> Vec<String> {
    let listed = node.system.run(&format!("muster-agent fault-points --task {kind}")).await;
    serde_json::from_str(&listed).expect("a list")
}

/// The request for a task of a kind about a VM: method, path and body.
fn request(node: &Node, vm: &str, kind: &str, image: &Value) -> (&'static str, String, Value) {
    let vms = format!("/servers/{}/vms", node.server);
    let path = |more: &str| format!("{vms}/{vm}{more}");
    let force = json!({ "force": true });
    match kind {
        "machine_create" => {
            let disks = json!([{ "image_uuid": image["uuid"], "boot": true }]);
            let body = json!({
                "uuid": vm, "brand": "kvm", "alias": "one", "ram": 64, "vnc_port": -1,
                "max_physical_memory": 320, "image": image, "disks": disks,
            });
            ("POST", vms, body)
        }
        "machine_boot" => ("POST", path("/start"), json!({})),
        "machine_shutdown" => ("POST", path("/stop"), force),
        "machine_reboot" => ("POST", path("/reboot"), force),
        "machine_kill" => ("POST", path("/kill"), json!({ "signal": "SIGKILL" })),
        "machine_update" => ("POST", path("/update"), json!({ "alias": "other" })),
        "machine_reprovision" => {
            ("POST", path("/reprovision"), json!({ "image_uuid": image["uuid"] }))
        }
        "machine_create_snapshot" => ("PUT", path("/snapshots"), json!({ "snapshot_name": "a" })),
        "machine_rollback_snapshot" => ("PUT", path("/snapshots/a/rollback"), json!({})),
        "machine_delete_snapshot" => ("DELETE", path("/snapshots/a"), json!({})),
        "machine_destroy" => ("DELETE", path(""), json!({})),
        other => panic!("no request for {other}"),
    }
}

/// The tasks of a kind about a VM.
async fn tasks(node: &Node, vm: &str, kind: &str) -> Option<Vec<Value>> {
    let script = format!("curl -sS --fail 'http://127.0.0.1:8480/tasks?vm_uuid={vm}&task={kind}'");
    let ran = node.system.try_run(&script, Duration::from_secs(10)).await.ok()?;
    serde_json::from_str(&ran.stdout).ok()
}

/// Whether the machine lost its power: it has started again, or has ended the task before.
async fn lost_power(node: &Node, boot: &str, vm: &str, kind: &str) -> bool {
    let what = format!("the power goes during {kind}, or the task ends");
    muster_tests::wait::wait_for(&what, LONG, || async {
        let read = node.system.try_run("cat /proc/sys/kernel/random/boot_id", SHORT).await;
        let now = read.map_err(|error| error.to_string())?.stdout;
        if now != boot {
            return Ok(true);
        }
        let seen = tasks(node, vm, kind).await.unwrap_or_default();
        let ended = !seen.is_empty() && seen.iter().all(|task| task["status"] != "active");
        if ended { Ok(false) } else { Err(format!("{seen:?}")) }
    })
    .await
}

/// Asks for a task and waits for its end.
async fn run(node: &Node, vm: &str, kind: &str, image: &Value) {
    let (method, path, body) = request(node, vm, kind, image);
    let asked = node.api(method, &path, &body).await;
    node.complete(&asked).await;
}

/// Asks for a task whose end nobody waits for: who asks may lose power first.
async fn ask(node: &Node, vm: &str, kind: &str, image: &Value) {
    let (method, path, body) = request(node, vm, kind, image);
    let script = format!(
        "curl -sS -m 5 -X {method} -H content-type:application/json --data @- \
         http://127.0.0.1:8480{path} <<'END'\n{body}\nEND\n"
    );
    drop(node.system.try_run(&script, Duration::from_secs(10)).await);
}

/// Cuts the power at a point of a kind; returns whether the task came there.
async fn cut(node: &Node, kind: &str, before: &[&str], point: &str, image: &Value) -> bool {
    let vm = fresh_uuid();
    for earlier in before {
        run(node, &vm, earlier, image).await;
    }
    let boot = node.system.run("cat /proc/sys/kernel/random/boot_id").await;
    let armed = node.system.try_run(&arm(point), LONG).await.expect("the machine answers");
    assert_eq!(armed.code, 0, "{armed:#?}");
    node.wait_usable().await;
    ask(node, &vm, kind, image).await;
    let lost = lost_power(node, &boot, &vm, kind).await;
    println!("{point}: {}", if lost { "power lost" } else { "not on the way" });
    if !lost {
        let ran = node.system.try_run(DISARM, LONG).await.expect("the machine answers");
        assert_eq!(ran.code, 0, "{ran:#?}");
    }
    node.wait_usable().await;
    ended_once(node, &vm, kind, point).await;
    usable_again(node, &vm, image).await;
    assert_clean(node, &vm, point).await;
    lost
}

/// The task is over, or was never accepted.
async fn ended_once(node: &Node, vm: &str, kind: &str, point: &str) {
    let seen = muster_tests::wait::wait_for("the task is over", LONG, || async {
        let seen = tasks(node, vm, kind).await.ok_or_else(Vec::new)?;
        if seen.iter().all(|task| task["status"] != "active") { Ok(seen) } else { Err(seen) }
    })
    .await;
    assert!(seen.len() <= 1, "{point}: asked for once: {seen:#?}");
    for task in &seen {
        println!("  {}: {}", task["status"], task["error"]);
    }
}

/// A VM that is there starts once more, and goes.
async fn usable_again(node: &Node, vm: &str, image: &Value) {
    let found = node.vm(vm).await;
    if found["uuid"] != vm {
        assert_eq!(found["code"], "ResourceNotFound", "{found}");
        return;
    }
    if found["state"] != "running" {
        run(node, vm, "machine_boot", image).await;
    }
    node.printed(vm, "button: up").await;
    run(node, vm, "machine_destroy", image).await;
}

/// No file, process, cgroup or orphan is left.
async fn assert_clean(node: &Node, vm: &str, point: &str) {
    let script = format!(
        "find /var/lib/muster-agent /run/muster /sys/fs/cgroup -name '*{vm}*'; pgrep -af '{vm} ' || true"
    );
    let left = node.system.run(&script).await;
    // The pattern is in the command line of the shell that looks.
    let left: Vec<&str> = left.lines().filter(|line| !line.contains("pgrep")).collect();
    assert!(left.is_empty(), "{point}: {left:#?}");
    let path = format!("/servers/{}/orphans", node.server);
    let orphans = parse(&node.system.run(&format!("curl -sS http://127.0.0.1:8480{path}")).await);
    assert_eq!(orphans["orphans"], json!([]), "{point}");
}

#[tokio::test]
async fn a_host_that_loses_power_in_the_middle_of_each_kind() {
    let node = Node::start().await;
    let image = parse(&node.system.run("muster image get button -o json").await);
    for (kind, before) in chosen() {
        let (entropy, mut left) = (SeededEntropy::from_os(), points(&node, kind).await);
        // Some points are for other parameters.
        loop {
            assert!(!left.is_empty(), "{kind}: no point is on the way");
            let point = left.swap_remove(below(&entropy, left.len()));
            if cut(&node, kind, before, &point, &image).await {
                break;
            }
        }
    }
}
