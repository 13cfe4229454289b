//! A node that loses its agent's folder: its guests go on, and the next agent knows them.

use serde_json::{Value, json};

use muster_tests::system::node::{LONG, Node};

/// Disks apart from what the agent keeps, as on a node whose system disk may be replaced.
const APART: &str = "sed -i '1i storage_dir = \"/var/lib/muster-vms\"' /etc/muster/agent.toml
systemctl restart muster-agent";
/// All that the agent knew.
const LOSE: &str = "systemctl stop muster-agent
find /var/lib/muster-agent -mindepth 1 -delete
systemctl start muster-agent";

#[tokio::test]
async fn guests_are_adopted_after_the_agents_folder_was_lost() {
    let node = Node::start().await;
    let system = &node.system;
    system.run(APART).await;
    node.wait_usable().await;
    let mut guests = Vec::new();
    for image in ["button", "busy"] {
        let vm = node.create(image, image, &json!({})).await;
        let (process, loaded) = (node.process(&vm).await, node.vm(&vm).await);
        guests.push((vm, process, loaded["boot_timestamp"].clone()));
    }

    let lost = system.try_run(LOSE, LONG).await.expect("the machine answers");
    assert_eq!(lost.code, 0, "{lost:#?}");
    node.wait_usable().await;
    for (vm, process, booted) in &guests {
        let running = format!("muster vm get {vm} -o json | grep -q '\"state\": *\"running\"'");
        system.wait("the VM is told of as running", LONG, &running).await;
        assert_eq!(node.process(vm).await, *process, "it is the same process");
        let loaded = node.vm(vm).await;
        assert_eq!(loaded["boot_timestamp"], *booted, "its uptime goes on: {loaded}");
    }
    let path = format!("/servers/{}", node.server);
    let server = node.api("GET", &path, &Value::Null).await;
    println!("degraded: {}", server["sysinfo"]["Muster"]["degraded"]);
    let orphans = node.api("GET", &format!("{path}/orphans"), &Value::Null).await;
    assert_eq!(orphans["orphans"], json!([]));

    // They are the agent's as before: one leaves when it is asked to, and its disks with it.
    let (vm, ..) = &guests[0];
    let asked = node.api("POST", &format!("{path}/vms/{vm}/stop"), &json!({})).await;
    node.complete(&asked).await;
    let asked = node.api("DELETE", &format!("{path}/vms/{vm}"), &json!({})).await;
    node.complete(&asked).await;
    let left = format!("find /var/lib/muster-vms /var/lib/muster-agent -name '*{vm}*'");
    assert_eq!(system.run(&left).await, "");
}
