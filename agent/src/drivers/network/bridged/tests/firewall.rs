//! Firewalls, limits and the server's own addresses, with frames through a real tap.

use std::net::Ipv4Addr;
use std::time::Instant;

use muster_shared::vm;

use super::frames::{
    ALL, ARP, Bench, GUEST, ICMP6, IP, IPV4, IPV6, OTHER, OTHER_IP, SOON, TCP, UDP, described,
    frame, ipv6, packet, ports, static_nic,
};
use super::*;

const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const ICMP: u8 = 1;

fn to_guest(from: Ipv4Addr, protocol: u8, content: &[u8]) -> Vec<u8> {
    frame(GUEST, OTHER, IPV4, &packet(from, IP, protocol, content))
}

fn from_guest(to: Ipv4Addr, protocol: u8, content: &[u8]) -> Vec<u8> {
    frame(OTHER, GUEST, IPV4, &packet(IP, to, protocol, content))
}

/// A TCP header with these flags.
fn tcp(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut header = ports(from, to);
    (header[12], header[13]) = (0x50, flags);
    header
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

impl Bench {
    async fn gets_in(&self, wanted: &[u8]) -> bool {
        self.gets_through(&self.witness, &self.guest, wanted).await
    }

    async fn firewall(&self, rules: &[&str]) {
        let rules: Vec<Value> =
            rules.iter().map(|rule| json!({ "rule": rule, "enabled": true })).collect();
        self.change_vm(&json!({
            "firewall_enabled": true, "firewall_rules": rules, "tags": { "role": "web" },
        }))
        .await;
    }
}

#[tokio::test]
async fn a_firewall_lets_in_answers_alone() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    let asked = to_guest(OTHER_IP, TCP, &tcp(80, 40_000, ACK));
    assert!(bench.gets_in(&asked).await, "without a firewall");
    bench.firewall(&[]).await;
    for (name, frame) in [
        ("TCP", asked.clone()),
        ("SYN", to_guest(OTHER_IP, TCP, &tcp(40_000, 22, SYN))),
        ("UDP", to_guest(OTHER_IP, UDP, &ports(53, 40_000))),
        ("ping", to_guest(OTHER_IP, ICMP, &[8, 0, 0, 0, 0, 0, 0, 0])),
        ("SCTP", to_guest(OTHER_IP, 132, &[0; 12])),
        ("DHCP", to_guest(OTHER_IP, UDP, &ports(67, 68))),
    ] {
        assert!(!bench.gets_in(&frame).await, "{name}");
    }
    for (name, frame) in [
        ("unreachable", to_guest(OTHER_IP, ICMP, &[3; 28])),
        ("echo", to_guest(OTHER_IP, ICMP, &[0; 8])),
    ] {
        assert!(bench.gets_in(&frame).await, "{name}");
    }
    // By TCP, UDP and both families.
    assert!(bench.gets_out(&from_guest(OTHER_IP, TCP, &tcp(40_000, 80, SYN))).await);
    assert!(bench.gets_in(&asked).await);
    assert!(!bench.gets_in(&to_guest(FAR, TCP, &tcp(80, 40_000, ACK))).await, "from another");
    assert!(!bench.gets_in(&to_guest(OTHER_IP, TCP, &tcp(81, 40_000, ACK))).await);
    assert!(bench.gets_out(&from_guest(OTHER_IP, UDP, &ports(40_000, 53))).await);
    assert!(bench.gets_in(&to_guest(OTHER_IP, UDP, &ports(53, 40_000))).await);
    // They stay when rules come and go, and end with the firewall.
    bench.firewall(&["FROM any TO all vms ALLOW tcp PORT 22"]).await;
    assert!(bench.gets_in(&asked).await);
    bench.change(&static_nic()).await;
    bench.firewall(&[]).await;
    assert!(!bench.gets_in(&asked).await);
}

#[tokio::test]
async fn a_connection_that_was_closed_is_soon_forgotten() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    bench.firewall(&[]).await;
    let expires = async || {
        let list = ["nft", "list", "set", "bridge", "muster_00000000_nics", "out4_mt000000000"];
        let list = Command::new(list, Duration::from_secs(60));
        let output = bench.node.exec.run(&list, &CancellationToken::new()).await.unwrap();
        let text = String::from_utf8(output.checked("nft").unwrap().stdout).unwrap();
        let (_, left) = text.rsplit_once("expires ").expect(&text);
        left.split_whitespace().next().unwrap().to_owned()
    };
    assert!(bench.gets_out(&from_guest(OTHER_IP, TCP, &tcp(40_000, 80, SYN))).await);
    let left = expires().await;
    assert!(left.contains('h'), "{left}");
    assert!(bench.gets_in(&to_guest(OTHER_IP, TCP, &tcp(80, 40_000, FIN | ACK))).await);
    assert!(bench.gets_out(&from_guest(OTHER_IP, TCP, &tcp(40_000, 80, ACK))).await);
    let left = expires().await;
    assert!(!left.contains('h'), "{left}");
}

#[tokio::test]
async fn rules_let_in_and_keep_in_what_they_name() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    bench
        .firewall(&[
            "FROM any TO tag role=web ALLOW tcp (PORT 80 AND PORT 443)",
            "FROM any TO tag role=db ALLOW tcp PORT 5432",
            "FROM subnet 203.0.113.0/24 TO all vms BLOCK tcp PORT 80 PRIORITY 1",
            "FROM any TO all vms ALLOW icmp TYPE 8 CODE 0",
            "FROM any TO all vms ALLOW icmp6 TYPE 128",
            "FROM all vms TO any BLOCK tcp PORT all",
            "FROM all vms TO ip 203.0.113.9 ALLOW tcp PORT 25 PRIORITY 5",
        ])
        .await;
    let echo6 = &ipv6("2001:db8::7", ICMP6, &[128, 0, 0, 0, 0, 0, 0, 0])[14..];
    for (name, passes, frame) in [
        ("web", true, to_guest(OTHER_IP, TCP, &tcp(40_000, 80, SYN))),
        ("database", false, to_guest(OTHER_IP, TCP, &tcp(40_000, 5432, SYN))),
        ("blocked first", false, to_guest(FAR, TCP, &tcp(40_000, 80, SYN))),
        ("not blocked", true, to_guest(FAR, TCP, &tcp(40_000, 443, SYN))),
        ("ping", true, to_guest(FAR, ICMP, &[8, 0, 0, 0, 0, 0, 0, 0])),
        ("ping of another code", false, to_guest(FAR, ICMP, &[8, 1, 0, 0, 0, 0, 0, 0])),
        ("ping of IPv6", true, frame(GUEST, OTHER, IPV6, echo6)),
    ] {
        assert_eq!(bench.gets_in(&frame).await, passes, "{name}");
    }
    for (name, passes, frame) in [
        ("its own", false, from_guest(OTHER_IP, TCP, &tcp(40_000, 443, SYN))),
        ("allowed", true, from_guest(FAR, TCP, &tcp(40_000, 25, SYN))),
        ("an answer", true, from_guest(OTHER_IP, TCP, &tcp(80, 40_000, ACK))),
        ("no answer", false, from_guest(OTHER_IP, TCP, &tcp(80, 40_001, ACK))),
        ("UDP", true, from_guest(OTHER_IP, UDP, &ports(40_000, 53))),
    ] {
        assert_eq!(bench.gets_out(&frame).await, passes, "{name}");
    }
}

/// Whether the server answers a question for its own address.
async fn answers(bench: &Bench, address: Ipv4Addr) -> bool {
    let asks =
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &GUEST, &IP.octets(), &[0; 6], &address.octets()].concat();
    let marker = bench.marker(&bench.witness);
    bench.guest.send(&frame(ALL, GUEST, ARP, &asks));
    bench.witness.send(&marker);
    let found = async {
        loop {
            let received = bench.guest.receive().await;
            if received == marker {
                return false;
            }
            // A reply.
            if received[12..].starts_with(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]) {
                return true;
            }
        }
    };
    tokio::time::timeout(SOON, found).await.expect("the marker comes out")
}

#[tokio::test]
async fn the_server_itself_answers_where_its_guests_may_reach_it() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    ip("addr add 192.0.2.254/24 dev mt-one");
    let server = Ipv4Addr::new(192, 0, 2, 254);
    assert!(!answers(&bench, server).await);
    let Bench { node, guest, witness, .. } = &bench;
    let open = Node {
        server_tags: vec!["one".to_owned()],
        links: node.links.clone(),
        exec: node.exec.clone(),
        data: tempfile::tempdir().unwrap(),
    };
    let networks = open.agent().await;
    let (vm, nics) = nics(1, json!([described(&static_nic())]));
    networks.attach(vm, &nics).await.unwrap();
    assert!(answers(&bench, server).await);
    let between = frame(GUEST, OTHER, IPV4, &packet(OTHER_IP, IP, TCP, &ports(1, 2)));
    assert!(bench.gets_through(witness, guest, &between).await);
}

/// Bytes that pass before any is dropped, beside what the limit carries in a second.
const BURST: f64 = 4.0 * 65_536.0;

/// Share of the limit that gets through when much more is sent, over a few seconds.
async fn share(bench: &Bench, mbit: u32, to_guest: bool) -> f64 {
    let rate = f64::from(mbit) * 1e6 / 8.0;
    let content = packet(if to_guest { OTHER_IP } else { IP }, FAR, UDP, &[0; 1400]);
    let (from, to, frame) = match to_guest {
        true => (&bench.witness, &bench.guest, frame(GUEST, OTHER, IPV4, &content)),
        false => (&bench.guest, &bench.witness, frame(OTHER, GUEST, IPV4, &content)),
    };
    #[expect(clippy::disallowed_methods, reason = "the kernel's clock is measured against")]
    let start = Instant::now();
    let (mut passed, mut sent) = (0.0, 0.0);
    let length = f64::from(u32::try_from(content.len()).unwrap());
    // What passes at once, and twice as much.
    while passed < 3.0 * (BURST + rate) {
        for _ in 0..8 {
            from.send(&frame);
            sent += length;
        }
        // What has passed is there at once.
        while let Ok(received) = tokio::time::timeout(Duration::from_millis(1), to.receive()).await
        {
            if received == frame {
                passed += length;
            }
        }
    }
    assert!(sent > 1.5 * passed, "{sent} bytes were sent");
    passed / (BURST + rate + rate * start.elapsed().as_secs_f64())
}

#[tokio::test]
async fn a_nic_carries_what_its_limit_says() {
    let mut nic = static_nic();
    nic["max_mbit_per_second"] = json!(2);
    let Some(bench) = Bench::new(&nic).await else { return };
    // A table with more than the kernel takes would be in force for no guest.
    let largest = vm::NIC.iter().find(|property| property.name == "max_mbit_per_second").unwrap();
    let mut most = nic.clone();
    most["max_mbit_per_second"] = json!(largest.limits().unwrap().1);
    bench.change(&most).await;
    bench.change(&nic).await;
    for to_guest in [false, true] {
        let share = share(&bench, 2, to_guest).await;
        println!("a limit of 2 Mbit/s: {:.1} % of it", share * 100.0);
        assert!((0.85..1.15).contains(&share), "{share}");
    }
}
