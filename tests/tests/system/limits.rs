//! What a VM was promised and what it is held to, measured in its cgroup.

use std::collections::BTreeMap;

use serde_json::json;

use crate::node::{LONG, Node};

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

/// What takes more memory than its VM was promised is ended by the kernel, and nothing else is.
#[tokio::test]
async fn memory_is_held_to_what_was_promised() {
    let node = Node::start().await;
    let vm = node.create("small", "button", &json!({ "max_swap": 320 })).await;
    assert_eq!(limits(&node, &vm).await["memory.swap.max"], "0");
    let before = node.process(&vm).await;
    // Among the guest's processes, and the first to go: what it reads has no lines, so it keeps all.
    let script = format!(
        "cd {}; count() {{ sed -n 's/^oom_kill //p' memory.events; }}
         count
         sh -c 'echo 1000 >/proc/self/oom_score_adj; echo $$ >cgroup.procs; exec tail /dev/zero'
         echo $?; count; cat memory.peak memory.max memory.current",
        folder(&vm)
    );
    // Near the limit the kernel slows it down first.
    let ran = node.system.try_run(&script, LONG).await.expect("the machine answers");
    let shown = ran.stdout;
    println!("{shown}");
    let numbers: Vec<u64> = shown.lines().filter_map(|line| line.parse().ok()).collect();
    let [ended_before, code, ended, peak, max, now] = numbers[..] else { panic!("{shown}") };
    assert_eq!((code, ended), (137, ended_before + 1), "{shown}");
    assert_eq!(max, 320 * MIB);
    // It was stopped at the limit, not before.
    assert!(peak <= max && peak > max / 10 * 9, "{shown}");
    assert!(now < max, "{shown}");
    assert_eq!(node.process(&vm).await, before);
    assert_eq!(node.vm(&vm).await["state"], "running");
}
