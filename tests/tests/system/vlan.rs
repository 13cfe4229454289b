//! VLANs on a bridge: a kernel with them is needed, which the build's own may not have.

use serde_json::json;

use muster_tests::system::node::{LONG, Node};

/// A bridge that keeps VLANs apart, with a port that leads to another host, which is in VLANs 7 and 8.
const NETWORK: &str = "set -eu
modprobe 8021q
ip link add mt-one type bridge vlan_filtering 1
ip link set mt-one up
ip netns add far
# It sends nothing by itself.
ip netns exec far sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
ip link add near type veth peer name uplink netns far
ip link set near master mt-one up
for vlan in 7 8; do
    bridge vlan add dev near vid $vlan
    ip -n far link add link uplink name uplink.$vlan type vlan id $vlan
done
ip -n far link set uplink up
for vlan in 7 8; do
    ip -n far link set uplink.$vlan up
    ip -n far addr add 10.0.$vlan.1/24 dev uplink.$vlan
done
";

/// Frames that the tap was given while the other host asked for addresses of a VLAN. The guest takes
/// none: it has no driver.
async fn heard(node: &Node, tap: &str, vlan: u16) -> u64 {
    let script = format!(
        "count() {{ tc -s qdisc show dev {tap} | sed -n 's/^ Sent .* bytes \\([0-9]*\\) pkt.*/\\1/p'; }}
         count
         for n in 2 3 4; do ip netns exec far bash -c \"echo >/dev/udp/10.0.{vlan}.$n/9\"; done
         count"
    );
    let ran = node.system.try_run(&script, LONG).await.expect("the machine answers");
    let counts: Vec<u64> = ran.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    let [before, after] = counts[..] else { panic!("{ran:#?}") };
    after - before
}

#[tokio::test]
async fn a_guest_is_in_its_vlan_and_in_no_other() {
    let node = Node::start().await;
    node.system.run(NETWORK).await;
    let nic = |vlan: u16| json!({ "nics": [{ "nic_tag": "one", "vlan_id": vlan }] });
    let vm = node.create("seven", "button", &nic(7)).await;
    let tap = format!("mt{}0", &vm[..8]);
    let shown = node.system.run(&format!("bridge -o vlan show dev {tap}")).await;
    println!("{shown}");
    assert!(shown.contains("7 PVID Egress Untagged") && !shown.contains("1 PVID"), "{shown}");
    // It goes on asking for a while.
    let other = heard(&node, &tap, 8).await;
    let own = heard(&node, &tap, 7).await;
    println!("{own} frames of VLAN 7, {other} of VLAN 8");
    assert!(own >= 3 && other == 0, "{own} {other}");

    // The bridge is made anew: the guest goes back into its VLAN.
    let again = "ip link del mt-one && ip link add mt-one type bridge vlan_filtering 1 && \
                 ip link set mt-one up && ip link set near master mt-one && bridge vlan add dev near vid 7";
    node.system.run(again).await;
    let back = format!("bridge -o vlan show dev {tap} | grep -q '7 PVID Egress Untagged'");
    node.system.wait("the tap is in its VLAN again", LONG, &back).await;
}
