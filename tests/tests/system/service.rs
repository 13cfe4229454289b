//! The units on a real systemd: they come up, and guests go on whatever happens to the agent.

use muster_tests::system::SHORT;
use serde_json::{Value, json};

use muster_tests::system::node::{LONG, Node};

#[tokio::test]
async fn units_come_up_and_the_node_runs_a_machine() {
    let node = Node::start().await;
    let system = &node.system;
    assert_eq!(system.run("systemctl is-system-running").await.trim(), "running");
    for unit in ["muster-coordinator.service", "muster-agent.service"] {
        let show = format!("systemctl show {unit} -p Type -p ActiveState -p SubState -p NRestarts");
        let shown = system.run(&show).await;
        for line in ["Type=notify", "ActiveState=active", "SubState=running", "NRestarts=0"] {
            assert!(shown.lines().any(|it| it == line), "{unit}: {shown}");
        }
        let exposure = system.run(&format!("systemd-analyze security {unit} | tail -n 1")).await;
        println!("{}", exposure.trim().trim_start_matches("→ "));
    }
    println!("{}", system.run("muster server list").await);

    let vm = node.create("first", "button", &json!({})).await;
    let (pid, _) = pid_of(&node.process(&vm).await);
    let cgroup = system.run(&format!("cat /proc/{pid}/cgroup")).await;
    let place = format!("0::/muster.slice/muster-vms.slice/muster-vm-{vm}.scope");
    assert_eq!(cgroup.trim(), place);
    let sysinfo = node.api("GET", &format!("/servers/{}", node.server), &Value::Null).await;
    let degraded = sysinfo["sysinfo"]["Muster"]["degraded"].clone();
    println!("degraded: {degraded}");
    let named = degraded.as_array().cloned().unwrap_or_default();
    assert!(!named.contains(&json!("systemd")), "{degraded}");
    assert!(!degraded.to_string().contains("limit"), "{degraded}");
}

#[tokio::test]
async fn guests_go_on_while_their_agent_is_replaced() {
    let node = Node::start().await;
    let system = &node.system;
    let vm = node.create("steady", "button", &json!({})).await;
    let before = node.process(&vm).await;
    let main_pid = "systemctl show muster-agent -p MainPID --value";
    let first = system.run(main_pid).await;

    // Frozen, so that nothing but the watchdog can notice.
    system.run(&format!("kill -STOP $({main_pid})")).await;
    let replaced = "[ $(systemctl show muster-agent -p NRestarts --value) = 1 ] && \
                    systemctl is-active muster-agent";
    system.wait("systemd replaces the agent", LONG, replaced).await;
    let journal = system.run("journalctl --no-pager -o cat -u muster-agent").await;
    assert!(journal.contains("Watchdog timeout"), "{journal}");
    let second = system.run(main_pid).await;
    assert_ne!(first, second);
    steady(&node, &vm, &before).await;

    let restarted = system.try_run("systemctl restart muster-agent", SHORT).await;
    assert_eq!(restarted.expect("the machine answers").code, 0);
    assert_ne!(system.run(main_pid).await, second);
    steady(&node, &vm, &before).await;

    system.run("systemctl kill --kill-whom=main --signal=KILL muster-agent").await;
    let again = "[ $(systemctl show muster-agent -p NRestarts --value) -ge 1 ] && \
                 systemctl is-active muster-agent";
    system.wait("systemd starts it again", LONG, again).await;
    steady(&node, &vm, &before).await;

    // A guest that is not in its agent's cgroup ends when it is told to, by the new agent.
    let path = format!("/servers/{}/vms/{vm}/stop", node.server);
    let asked = node.api("POST", &path, &json!({})).await;
    node.complete(&asked).await;
    node.printed(&vm, "button: off").await;
    let scopes = system.run("systemctl list-units --no-legend 'muster-vm-*.scope'").await;
    assert_eq!(scopes, "", "nothing of it stays");
}

/// The VM runs as before, in the same process, and its agent knows.
async fn steady(node: &Node, vm: &str, before: &str) {
    node.wait_usable().await;
    let path = format!("http://127.0.0.1:8480/servers/{}/vms/{vm}", node.server);
    let running = format!("curl -sS --fail {path} | grep -q '\"state\": *\"running\"'");
    node.system.wait("the VM is told of as running", LONG, &running).await;
    assert_eq!(node.process(vm).await, before);
    let loaded = node.vm(vm).await;
    let (pid, _) = pid_of(before);
    assert_eq!(loaded["pid"].to_string(), pid, "{loaded}");
}

fn pid_of(process: &str) -> (String, String) {
    let (pid, start) = process.split_once(' ').expect("pid and start time");
    (pid.to_owned(), start.to_owned())
}
