//! What really gets out of a tap: frames go in at the guest's end, and a witness on the same bridge
//! sees what comes out.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::unix::AsyncFd;

use super::*;
use crate::host::Tap as Opened;

pub(super) const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(super) const ALL: [u8; 6] = [0xff; 6];
pub(super) const IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
pub(super) const OTHER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP6: u8 = 58;
/// Before each frame of a tap.
const VNET_HEADER: usize = 10;
pub(super) const SOON: Duration = Duration::from_secs(20);

/// One end of a tap.
pub(super) struct Port(AsyncFd<OwnedFd>);

impl Port {
    fn new(tap: Opened) -> Self {
        let fd = tap.register().unwrap();
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(fd.get_ref(), flags).unwrap();
        Self(fd)
    }

    pub(super) fn send(&self, frame: &[u8]) {
        let packet = [&[0; VNET_HEADER], frame].concat();
        assert_eq!(nix::unistd::write(self.0.get_ref(), &packet), Ok(packet.len()));
    }

    pub(super) async fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 2048];
        loop {
            let mut ready = self.0.readable().await.unwrap();
            let read = ready.try_io(|fd| Ok(nix::unistd::read(fd.get_ref(), &mut buffer)?));
            if let Ok(length) = read {
                return buffer[VNET_HEADER..length.unwrap()].to_vec();
            }
        }
    }
}

pub(super) fn frame(to: [u8; 6], from: [u8; 6], kind: u16, content: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), content].concat()
}

/// From the guest's own MAC address.
fn sent(kind: u16, content: &[u8]) -> Vec<u8> {
    frame(ALL, GUEST, kind, content)
}

/// `192.0.2.1 is-at`.
fn arp(mac: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    sent(ARP, &[&head[..], &mac, &ip.octets(), &[0; 6], &OTHER_IP.octets()].concat())
}

fn ipv4(from: Ipv4Addr, protocol: u8, content: &[u8]) -> Vec<u8> {
    sent(IPV4, &packet(from, OTHER_IP, protocol, content))
}

pub(super) fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + content.len()).unwrap().to_be_bytes();
    let head = [0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, protocol];
    let addresses = [from.octets(), to.octets()].concat();
    // A bridge whose packets pass through iptables takes none with a wrong checksum.
    let summed = [&head[..], &addresses].concat();
    let words = summed.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    [&head[..], &sum.to_be_bytes(), &addresses, content].concat()
}

pub(super) fn ipv6(from: &str, protocol: u8, content: &[u8]) -> Vec<u8> {
    let from: Ipv6Addr = from.parse().unwrap();
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    let head = [0x60, 0, 0, 0, length[0], length[1], protocol, 255];
    sent(IPV6, &[&head[..], &from.octets(), &to.octets(), content].concat())
}

pub(super) fn ports(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 16]].concat()
}

/// A message of neighbour discovery about an address.
fn about(kind: u8, target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().unwrap();
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat()
}

/// A VM with one NIC on a bridge, and a witness on another port of it.
pub(super) struct Bench {
    pub(super) node: Node,
    pub(super) networks: BridgedNetworks,
    pub(super) guest: Port,
    pub(super) witness: Port,
    markers: AtomicU32,
}

impl Bench {
    /// `None`: there are no rights for it.
    pub(super) async fn new(nic: &Value) -> Option<Self> {
        if !enter_own_network() {
            return None;
        }
        ip("link add mt-one type bridge");
        ip("link set mt-one up");
        let node = Node::real();
        let networks = node.agent().await;
        let witness = Opened::make("witness", nix::unistd::geteuid().as_raw()).unwrap();
        ip("link set witness master mt-one up");
        let (vm, nics) = nics(1, json!([described(nic)]));
        networks.attach(vm, &nics).await.unwrap();
        let guest = Port::new(Opened::open("mt000000000").unwrap());
        let (witness, markers) = (Port::new(witness), AtomicU32::default());
        let bench = Self { node, networks, guest, witness, markers };
        for (from, to) in [(&bench.guest, &bench.witness), (&bench.witness, &bench.guest)] {
            bench.wait_forwarding(from, to).await;
        }
        Some(bench)
    }

    /// A bridge takes a moment until it forwards what a new port sends.
    async fn wait_forwarding(&self, from: &Port, to: &Port) {
        let forwards = async {
            let mut again = tokio::time::interval(Duration::from_millis(20));
            loop {
                tokio::select! {
                    _ = again.tick() => from.send(&self.marker(from)),
                    received = to.receive() => if is_marker(&received) { return },
                }
            }
        };
        tokio::time::timeout(SOON, forwards).await.expect("the bridge forwards");
    }

    /// A question for an address, which every guest may ask.
    pub(super) fn marker(&self, from: &Port) -> Vec<u8> {
        let mac = if std::ptr::eq(from, &self.guest) { GUEST } else { OTHER };
        let number = self.markers.fetch_add(1, Ordering::Relaxed);
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        let nobody = Ipv4Addr::UNSPECIFIED.octets();
        let asks = [&head[..], &mac, &nobody, &[0; 6], &number.to_be_bytes()].concat();
        frame(ALL, mac, ARP, &asks)
    }

    /// Whether a frame comes out before one that is sent after it.
    pub(super) async fn gets_through(&self, from: &Port, to: &Port, wanted: &[u8]) -> bool {
        let marker = self.marker(from);
        from.send(wanted);
        from.send(&marker);
        let found = async {
            let mut seen = false;
            loop {
                let received = to.receive().await;
                seen |= received == wanted;
                if received == marker {
                    return seen;
                }
            }
        };
        tokio::time::timeout(SOON, found).await.expect("the marker comes out")
    }

    pub(super) async fn gets_out(&self, wanted: &[u8]) -> bool {
        self.gets_through(&self.guest, &self.witness, wanted).await
    }

    pub(super) async fn change(&self, nic: &Value) {
        let (vm, nics) = nics(1, json!([described(nic)]));
        self.networks.attach(vm, &nics).await.unwrap();
    }

    /// Gives the VM these properties beside its NIC.
    pub(super) async fn change_vm(&self, properties: &Value) {
        let mut vm = record(1);
        vm.properties.extend(properties.as_object().unwrap().clone());
        vm.properties.insert("nics".to_owned(), json!([described(&static_nic())]));
        self.networks.attach(vm.uuid, &Nic::all(&vm).unwrap()).await.unwrap();
    }
}

fn is_marker(frame: &[u8]) -> bool {
    frame[12..].starts_with(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1])
}

pub(super) fn described(nic: &Value) -> Value {
    let mut nic = nic.clone();
    nic["mac"] = json!("02:00:00:00:00:01");
    nic["nic_tag"] = json!("one");
    nic
}

pub(super) fn static_nic() -> Value {
    json!({ "ips": ["192.0.2.7/24", "2001:db8::7/64"] })
}

/// What each name of a frame is, and the allowance that lets it out.
fn spoofed() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let solicit = about(135, "2001:db8::1");
    vec![
        ("MAC", "allow_mac_spoofing", frame(ALL, OTHER, IPV4, &ipv4(IP, TCP, &ports(1, 2))[14..])),
        ("ARP MAC", "allow_mac_spoofing", arp(OTHER, IP)),
        ("ARP address", "allow_ip_spoofing", arp(GUEST, OTHER_IP)),
        ("IPv4", "allow_ip_spoofing", ipv4(OTHER_IP, TCP, &ports(1, 2))),
        ("no IPv4", "allow_ip_spoofing", ipv4(Ipv4Addr::UNSPECIFIED, UDP, &ports(68, 67))),
        ("IPv6", "allow_ip_spoofing", ipv6("2001:db8::1", TCP, &ports(1, 2))),
        ("link-local", "allow_ip_spoofing", ipv6("fe80::1", TCP, &ports(1, 2))),
        ("solicitation", "allow_ip_spoofing", ipv6("2001:db8::1", ICMP6, &solicit)),
        ("advertisement", "allow_ip_spoofing", ipv6("2001:db8::7", ICMP6, &about(136, "fe80::1"))),
        ("router", "allow_dhcp_spoofing", ipv6("fe80::ff:fe00:1", ICMP6, &[134; 16])),
        ("redirect", "allow_dhcp_spoofing", ipv6("fe80::ff:fe00:1", ICMP6, &[137; 40])),
        ("DHCP", "dhcp_server", ipv4(IP, UDP, &ports(67, 68))),
        ("DHCPv6", "allow_dhcp_spoofing", ipv6("fe80::ff:fe00:1", UDP, &ports(547, 546))),
        ("protocol", "allow_restricted_traffic", sent(0x88b5, &[0; 46])),
        ("VLAN", "allow_restricted_traffic", sent(0x8100, &[0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1])),
    ]
}

#[tokio::test]
async fn what_is_not_the_guests_own_does_not_get_out() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    for (name, allowance, frame) in spoofed() {
        assert!(!bench.gets_out(&frame).await, "{name}");
        let mut nic = static_nic();
        nic[allowance] = json!(true);
        bench.change(&nic).await;
        assert!(bench.gets_out(&frame).await, "{name} with {allowance}");
        bench.change(&static_nic()).await;
    }
    let from_port_25 = ipv4(IP, TCP, &ports(40000, 25));
    assert!(bench.gets_out(&from_port_25).await);
    let mut nic = static_nic();
    nic["blocked_outgoing_ports"] = json!([25]);
    bench.change(&nic).await;
    assert!(!bench.gets_out(&from_port_25).await);
}

#[tokio::test]
async fn what_is_the_guests_own_gets_out() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    let asking = about(135, "2001:db8::7");
    let own = [
        ("ARP", arp(GUEST, IP)),
        ("ARP probe", arp(GUEST, Ipv4Addr::UNSPECIFIED)),
        ("IPv4", ipv4(IP, UDP, &ports(1, 2))),
        ("IPv6", ipv6("2001:db8::7", TCP, &ports(1, 2))),
        ("link-local", ipv6("fe80::ff:fe00:1", ICMP6, &about(133, "::"))),
        ("is it taken?", ipv6("::", ICMP6, &asking)),
        ("advertisement", ipv6("2001:db8::7", ICMP6, &about(136, "2001:db8::7"))),
        ("of the link", ipv6("fe80::ff:fe00:1", ICMP6, &about(136, "fe80::ff:fe00:1"))),
    ];
    for (name, frame) in &own {
        assert!(bench.gets_out(frame).await, "{name}");
    }
    let more = ipv4(Ipv4Addr::new(198, 51, 100, 200), TCP, &ports(1, 2));
    assert!(!bench.gets_out(&more).await);
    let mut nic = static_nic();
    nic["allowed_ips"] = json!(["198.51.100.0/24"]);
    bench.change(&nic).await;
    assert!(bench.gets_out(&more).await);
    // One that asks for its addresses.
    bench.change(&json!({ "ips": ["dhcp", "addrconf"] })).await;
    for (name, frame) in own.iter().chain(&[
        ("DHCP", ipv4(Ipv4Addr::UNSPECIFIED, UDP, &ports(68, 67))),
        ("any IPv4", ipv4(OTHER_IP, TCP, &ports(1, 2))),
        ("any IPv6", ipv6("2001:db8::99", TCP, &ports(1, 2))),
    ]) {
        assert!(bench.gets_out(frame).await, "{name}, asked for");
    }
    for (name, _, frame) in spoofed() {
        if ["MAC", "link-local", "router", "DHCP", "VLAN"].contains(&name) {
            assert!(!bench.gets_out(&frame).await, "{name}, asked for");
        }
    }
}

#[tokio::test]
async fn a_guest_receives_what_is_for_it() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    let (witness, guest) = (&bench.witness, &bench.guest);
    let content = ipv4(OTHER_IP, TCP, &ports(1, 2))[14..].to_vec();
    let nobody = frame([2, 0, 0, 0, 0, 9], OTHER, IPV4, &content);
    assert!(bench.gets_through(witness, guest, &frame(GUEST, OTHER, IPV4, &content)).await);
    assert!(bench.gets_through(witness, guest, &frame(ALL, OTHER, IPV4, &content)).await);
    assert!(!bench.gets_through(witness, guest, &nobody).await);
    bench.change(&json!({ "allow_unfiltered_promisc": true })).await;
    assert!(bench.gets_through(witness, guest, &nobody).await);
}

#[tokio::test]
async fn rules_that_somebody_took_away_are_made_again() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    let spoofed = arp(GUEST, OTHER_IP);
    let flush = Command::new(["nft", "flush", "ruleset"], Duration::from_secs(60));
    let flush = async || {
        bench
            .node
            .exec
            .run(&flush, &CancellationToken::new())
            .await
            .unwrap()
            .checked("nft")
            .unwrap();
        assert!(bench.gets_out(&spoofed).await);
    };
    flush().await;
    bench.networks.mend().await;
    assert!(!bench.gets_out(&spoofed).await && bench.gets_out(&arp(GUEST, IP)).await);
    // By the next agent, which has not attached the NIC.
    flush().await;
    let next = bench.node.agent().await;
    assert!(!bench.gets_out(&spoofed).await && bench.gets_out(&arp(GUEST, IP)).await);
    assert!(next.degraded().is_empty());
    assert!(tables(&bench.node).await.contains("table bridge muster_00000000_nics"));
}

#[tokio::test]
async fn a_tap_that_nothing_is_known_about_is_cut_off() {
    let Some(bench) = Bench::new(&static_nic()).await else { return };
    std::fs::remove_dir_all(bench.node.data.path()).unwrap();
    bench.networks.mend().await;
    assert!(bench.networks.degraded()[0].contains("tap mt000000000 is cut off"));
    bench.guest.send(&arp(GUEST, IP));
    bench.change(&static_nic()).await;
    bench.networks.mend().await;
    assert!(bench.networks.degraded().is_empty() && bench.gets_out(&arp(GUEST, IP)).await);
}
