//! What a VM was promised and what it is held to, measured in its cgroup.

use std::collections::BTreeMap;

use serde_json::json;

use muster_tests::system::node::{LONG, Node};

const MIB: u64 = 1024 * 1024;
/// How long CPU time is counted, seconds.
const MEASURE_S: u64 = 10;

/// A VM's cgroup.
fn folder(vm: &str) -> String {
    format!("/sys/fs/cgroup/muster.slice/muster-vms.slice/muster-vm-{vm}.scope")
}

/// The limits that the kernel has, by file.
async fn limits(node: &Node, vm: &str) -> BTreeMap<String, String> {
    let files = "memory.max memory.high memory.swap.max cpu.max cpu.weight io.weight pids.max";
    let script = format!("cd {} && grep . {files}", folder(vm));
    let shown = node.system.run(&script).await;
    println!("{shown}");
    let pairs = shown.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(file, value)| (file.to_owned(), value.to_owned())).collect()
}

/// CPU time that a VM takes, percent of one CPU.
async fn cpu_percent(node: &Node, vm: &str) -> u64 {
    let script = format!(
        "cd {}; look() {{ sed -n 's/^usage_usec //p' cpu.stat; date +%s%N; }}
         look; sleep {MEASURE_S}; look",
        folder(vm)
    );
    let shown = node.system.run(&script).await;
    let numbers: Vec<u64> = shown.lines().map(|line| line.parse().expect("a number")).collect();
    let [used, from, used_then, to] = numbers[..] else { panic!("{shown}") };
    (used_then - used) * 100 * 1000 / (to - from)
}

#[tokio::test]
async fn limits_hold_and_change_while_the_machine_runs() {
    let node = Node::start().await;
    let wishes = json!({
        "max_physical_memory": 400, "max_swap": 450, "cpu_cap": 30, "cpu_shares": 300,
        "zfs_io_priority": 200, "max_lwps": 500,
    });
    let vm = node.create("limited", "busy", &wishes).await;
    let asked = [
        ("memory.max", (400 * MIB).to_string()),
        ("memory.swap.max", (50 * MIB).to_string()),
        ("cpu.max", "30000 100000".to_owned()),
        ("cpu.weight", "300".to_owned()),
        ("io.weight", "default 200".to_owned()),
        ("pids.max", "500".to_owned()),
    ];
    let found = limits(&node, &vm).await;
    for (file, value) in asked {
        assert_eq!(found[file], value, "{file}");
    }
    let used = cpu_percent(&node, &vm).await;
    println!("cpu_cap 30: {used} % of one CPU");
    assert!((20..=35).contains(&used), "{used}");

    let before = node.process(&vm).await;
    let changes = json!({ "cpu_cap": 80, "max_physical_memory": 500, "max_lwps": 600 });
    node.update(&vm, &changes).await;
    let found = limits(&node, &vm).await;
    assert_eq!(found["memory.max"], (500 * MIB).to_string());
    assert_eq!((&*found["cpu.max"], &*found["pids.max"]), ("80000 100000", "600"));
    let used = cpu_percent(&node, &vm).await;
    println!("cpu_cap 80: {used} % of one CPU");
    assert!((60..=88).contains(&used), "{used}");

    // Limits are the kernel's: they outlive whoever asked for them.
    node.system.run("systemctl restart muster-agent").await;
    node.wait_usable().await;
    assert_eq!(limits(&node, &vm).await, found);
    node.update(&vm, &json!({ "cpu_cap": 0 })).await;
    assert_eq!(limits(&node, &vm).await["cpu.max"], "max 100000");
    assert_eq!(node.process(&vm).await, before);
}

/// Reads a large file as one of the VM's processes: what the kernel caches of it counts as theirs.
const READ_LARGE_FILE: &str = r#"truncate -s 600M /root/large
sh -c 'echo $$ >cgroup.procs; exec cat /root/large' >/dev/null
echo $?
sed -n 's/^oom_kill //p' memory.events
cat memory.peak memory.max"#;

/// Takes all memory that the VM has left, as a process that the kernel spares.
const TAKE_ALL: &str =
    r#"sh -c 'echo -1000 >/proc/self/oom_score_adj; echo $$ >cgroup.procs; exec tail /dev/zero'"#;

/// A VM gets as much memory as it was promised: first the kernel takes back what it cached, then it
/// ends the VM, and no other.
#[tokio::test]
async fn memory_is_held_to_what_was_promised() {
    let node = Node::start().await;
    let vm = node.create("small", "button", &json!({ "max_swap": 320 })).await;
    let other = node.create("other", "button", &json!({})).await;
    assert_eq!(limits(&node, &vm).await["memory.swap.max"], "0");
    let (small, others) = (node.process(&vm).await, node.process(&other).await);

    // Near the limit the kernel slows it down.
    let read = format!("cd {} && {READ_LARGE_FILE}", folder(&vm));
    let ran = node.system.try_run(&read, LONG).await.expect("the machine answers");
    println!("{}", ran.stdout);
    let numbers: Vec<u64> = ran.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    let [code, ended, peak, max] = numbers[..] else { panic!("{ran:#?}") };
    assert_eq!((code, ended, max), (0, 0, 320 * MIB));
    // It was held at the limit, not before.
    assert!(peak <= max && peak > max / 10 * 9, "{ran:#?}");
    assert_eq!(node.process(&vm).await, small);

    let take = format!("cd {} && {TAKE_ALL}", folder(&vm));
    let ran = node.system.try_run(&take, LONG).await.expect("the machine answers");
    assert_ne!(ran.code, 0, "{ran:#?}");
    let path = format!("http://127.0.0.1:8480/servers/{}/vms/{vm}", node.server);
    let ended = format!(
        "curl -sS --fail {path} | grep '\"exit_status\": *137' || {{ dmesg | tail -n 5; curl -sS {path}; false; }}"
    );
    node.system.wait("the VM's end is known, by SIGKILL", LONG, &ended).await;
    assert_ne!(node.vm(&vm).await["state"], "running");
    assert_eq!(node.vm(&other).await["state"], "running");
    assert_eq!(node.process(&other).await, others);
}
