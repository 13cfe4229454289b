//! A nic tag on a whole machine: its interface has a driver, and a switch at the other end of its cable;
//! its kernel keeps VLANs apart; and it is rebooted.

use muster_tests::system::{CABLE_MAC, SHORT, System};
use serde_json::json;

use muster_tests::system::node::{LONG, Node, parse};

/// The test is what is at the other end: nobody gives the interface an address.
const PREPARE: &str = "set -eu
printf '[Match]\\nMACAddress=CABLE\\n[Link]\\nUnmanaged=yes\\n' >/etc/systemd/network/00-cable.network
networkctl reload
touch /etc/muster/host-actions
";

/// The name of the interface.
const NIC: &str =
    "nic=$(ip -br link show | awk '$3 == \"CABLE\" && $1 !~ /^mt-/ { print $1; exit }')";

fn with_mac(script: &str) -> String {
    script.replace("CABLE", CABLE_MAC)
}

fn element(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("a short one");
    [&[kind << 1, length], value].concat()
}

/// What a switch sends of itself (IEEE 802.1AB).
fn announcement() -> Vec<u8> {
    let group = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
    let switch = [2, 0, 0, 0, 0, 9];
    let elements = [
        element(1, &[&[4], &switch[..]].concat()),
        element(2, b"\x05Ethernet1/7"),
        element(3, &600_u16.to_be_bytes()),
        element(5, b"leaf-1"),
        element(0, &[]),
    ];
    [&group[..], &switch, &0x88cc_u16.to_be_bytes(), &elements.concat()].concat()
}

/// The bridge has the interface as a port, and the guest's tap in VLAN 7 alone.
async fn is_wired(node: &Node, tap: &str) {
    let script = format!(
        "{}
         ip -o link show master mt-one | grep -q \"$nic\"
         bridge vlan show dev $nic | grep -qw 4094
         bridge -o vlan show dev {tap} | grep -q '7 PVID Egress Untagged'
         nft list tables | grep -q '^table bridge muster_.*_nics$'
         nft list ruleset | grep -q {tap}",
        with_mac(NIC)
    );
    node.system.wait("bridge, tap and rules are there", LONG, &format!("set -e\n{script}")).await;
}

#[tokio::test]
async fn a_tag_with_its_bridge_and_its_guest_comes_back_after_a_reboot() {
    let node = Node::install(System::start_with_cable().await).await;
    node.system.run(&with_mac(PREPARE)).await;
    let nics = json!({ "nics": [{ "mac": CABLE_MAC, "nic_tags_provided": ["one"] }] });
    let asked = node.api("POST", &format!("/servers/{}/nics/update", node.server), &nics).await;
    node.complete(&asked).await;
    let nic = json!({ "nics": [{ "nic_tag": "one", "vlan_id": 7, "ips": ["192.0.2.7/24"] }] });
    let vm = node.create("seven", "button", &nic).await;
    let tap = format!("mt{}0", &vm[..8]);
    is_wired(&node, &tap).await;

    // Also as the port of a bridge the interface hears its switch.
    node.system.run("muster-agent --run-dir /run/muster sysinfo -f >/dev/null").await;
    node.system.send_frame(&announcement());
    let heard = "muster-agent --run-dir /run/muster sysinfo -f | grep leaf-1 >/dev/null && \
                 muster-agent --run-dir /run/muster sysinfo";
    let shown = parse(&node.system.wait("the neighbour is known", LONG, heard).await);
    let interfaces = shown["Network Interfaces"].as_object().expect("interfaces");
    let cable =
        interfaces.values().find(|nic| nic["MAC Address"] == CABLE_MAC).expect("it is there");
    println!("{cable:#}");
    assert_eq!(cable["LLDP Neighbor"]["Port ID"], "Ethernet1/7");
    assert_eq!(cable["NIC Names"], json!(["one"]));
    assert_eq!(cable["Counters"]["rx_errors"], 0);

    let boot = node.system.run("cat /proc/sys/kernel/random/boot_id").await;
    drop(node.system.try_run("sync; echo b >/proc/sysrq-trigger", SHORT).await);
    let again = format!("test \"$(cat /proc/sys/kernel/random/boot_id)\" != '{}'", boot.trim());
    node.system.wait("it has started again", LONG, &again).await;
    node.wait_usable().await;
    is_wired(&node, &tap).await;
}
