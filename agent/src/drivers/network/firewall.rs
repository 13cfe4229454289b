//! The firewall of one NIC, as rules of nftables: what comes in must be asked for or allowed, what
//! goes out must not be blocked.
//!
//! Who was asked is kept in sets of the NIC's own, in the kernel: bridges have no connection tracking
//! that every kernel offers. The sets outlive a change of the rules.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use muster_shared::vm::{Action, Direction, Rule, Traffic};
use serde::{Deserialize, Serialize};

/// Connections of one NIC that are remembered, in each set: what bounds the kernel's memory.
const CONNECTIONS: usize = 16_384;
/// A TCP connection that nothing is sent on is forgotten after this long: longer than the two hours
/// after which systems ask whether the other end is still there.
const TCP_IDLE: &str = "3h";
/// The same after one end closed it.
const TCP_CLOSED: &str = "1m";
/// The same of UDP.
const UDP_IDLE: &str = "3m";
/// The same of what was let in, which anybody may fill a set with.
const LET_IN_IDLE: &str = "10m";

/// How long a connection is remembered after such a packet. The last packet of TCP is none of them: it
/// acknowledges the end.
const KINDS: [(&str, &str); 3] = [
    ("tcp flags & (fin | rst) != 0", TCP_CLOSED),
    ("tcp flags & (syn | psh) != 0", TCP_IDLE),
    ("meta l4proto udp", UDP_IDLE),
];

/// Of addresses.
#[derive(Clone, Copy, Debug)]
struct Family {
    digit: char,
    /// Its header, in the words of nftables.
    header: &'static str,
    /// The type of its addresses.
    address: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { digit: '4', header: "ip", address: "ipv4_addr" },
    Family { digit: '6', header: "ip6", address: "ipv6_addr" },
];

/// A connection as the guest's own packets have it.
const SENT: Ends = Ends { addresses: ["saddr", "daddr"], ports: ["sport", "dport"] };
/// The same connection in packets that the guest gets.
const RECEIVED: Ends = Ends { addresses: ["daddr", "saddr"], ports: ["dport", "sport"] };

/// Where a packet has the guest's address and port, and then the other side's.
#[derive(Clone, Copy, Debug)]
struct Ends {
    addresses: [&'static str; 2],
    ports: [&'static str; 2],
}

impl Family {
    /// What tells a connection from others.
    fn key(self, ends: Ends) -> String {
        let Self { header, .. } = self;
        let ([near, far], [near_port, far_port]) = (ends.addresses, ends.ports);
        format!("{header} {near} . {header} {far} . meta l4proto . th {near_port} . th {far_port}")
    }

    fn set(self, kind: &str, tap: &str) -> String {
        format!("{kind}{}_{tap}", self.digit)
    }

    fn declare(self, kind: &str, tap: &str) -> String {
        let Self { address, .. } = self;
        format!(
            "set {} {{ type {address} . {address} . inet_proto . inet_service . inet_service; flags \
             dynamic,timeout; size {CONNECTIONS}; }}",
            self.set(kind, tap)
        )
    }

    /// Remembers the connection of a packet for so long.
    fn remember(self, kind: &str, tap: &str, ends: Ends, idle: &str) -> String {
        format!("update @{} {{ {} timeout {idle} }}", self.set(kind, tap), self.key(ends))
    }

    /// Matches packets of connections that are remembered.
    fn known(self, kind: &str, tap: &str, ends: Ends) -> String {
        format!("{} @{}", self.key(ends), self.set(kind, tap))
    }
}

/// Messages without which connections that are allowed don't work: errors of ICMP, answers to the
/// guest's pings, and neighbours.
const ALWAYS: [&str; 5] = [
    "ether type arp accept",
    "icmp type { echo-reply, destination-unreachable, time-exceeded, parameter-problem } accept",
    "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem, \
     echo-reply, mld-listener-query, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, \
     nd-redirect } accept",
    // A packet's later parts are worth nothing without the first.
    "ip frag-off & 0x1fff != 0 accept",
    "exthdr frag exists frag frag-off != 0 accept",
];

/// What is let in and out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Firewall {
    inbound: Vec<Line>,
    outbound: Vec<Line>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    allow: bool,
    /// Which packets, in the words of nftables.
    packets: String,
}

/// The parts of the table that are one NIC's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Sets, as they are declared.
    pub(super) sets: Vec<String>,
    /// Further chains, as name and rules.
    pub(super) chains: Vec<(String, Vec<String>)>,
    /// At the end of what the guest sends.
    pub(super) from: Vec<String>,
    /// At the end of what is sent to the guest.
    pub(super) to: Vec<String>,
}

impl Firewall {
    /// Rules that are for the NIC's VM.
    pub(super) fn new<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut rules: Vec<&Rule> = rules.into_iter().collect();
        // Among equals, the rule that is against the default goes first.
        let is_default =
            |rule: &Rule| (rule.direction == Direction::Inbound) == (rule.action == Action::Block);
        rules.sort_by_key(|rule| (u8::MAX - rule.priority, is_default(rule)));
        let mut firewall = Self::default();
        for rule in rules {
            let (lines, side) = match rule.direction {
                Direction::Inbound => (&mut firewall.inbound, "saddr"),
                Direction::Outbound => (&mut firewall.outbound, "daddr"),
            };
            let allow = rule.action == Action::Allow;
            let packets = addresses(rule, side).into_iter().flat_map(|address| {
                traffic(&rule.traffic).into_iter().map(move |traffic| address.clone() + &traffic)
            });
            lines.extend(packets.map(|packets| Line { allow, packets }));
        }
        firewall
    }

    /// Its parts of the table. The guest asks for its addresses by DHCP with `dhcp`.
    pub(super) fn parts(&self, tap: &str, dhcp: bool) -> Parts {
        let mut parts = Parts::default();
        let blocks = self.outbound.iter().any(|line| !line.allow);
        parts.sets.extend(FAMILIES.map(|family| family.declare("out", tap)));
        parts.to.extend(ALWAYS.map(str::to_owned));
        if dhcp {
            parts.to.push("udp sport 67 udp dport 68 accept".to_owned());
            parts.to.push("udp sport 547 udp dport 546 accept".to_owned());
        }
        for family in FAMILIES {
            let known = family.known("out", tap, RECEIVED);
            parts.to.extend(KINDS.map(|(packets, idle)| {
                let remember = family.remember("out", tap, RECEIVED, idle);
                format!("{known} {packets} {remember} accept")
            }));
            parts.to.push(format!("{known} accept"));
        }
        let let_in = if blocks { format!("goto let_in_{tap}") } else { "accept".to_owned() };
        parts.to.extend(self.inbound.iter().map(|line| line.rule(&let_in)));
        parts.to.push("drop".to_owned());
        if blocks {
            // What the guest answers is not what the rules block.
            parts.sets.extend(FAMILIES.map(|family| family.declare("in", tap)));
            let remember = FAMILIES.map(|family| {
                let remember = family.remember("in", tap, RECEIVED, LET_IN_IDLE);
                format!("meta l4proto {{ tcp, udp }} {remember} accept")
            });
            parts.chains.push((format!("let_in_{tap}"), remember.to_vec()));
            let known = FAMILIES.map(|family| family.known("in", tap, SENT) + " accept");
            parts.from.extend(known);
        }
        let sent = format!("goto sent_{tap}");
        parts.from.extend(self.outbound.iter().map(|line| line.rule(&sent)));
        parts.from.push(sent);
        parts.chains.push((format!("sent_{tap}"), sent_chain(tap)));
        parts
    }
}

impl Line {
    fn rule(&self, allowed: &str) -> String {
        format!("{} {}", self.packets, if self.allow { allowed } else { "drop" })
    }
}

/// What remembers whom the guest sends to. A set that is full keeps nothing from being sent.
fn sent_chain(tap: &str) -> Vec<String> {
    let rules = FAMILIES.into_iter().flat_map(|family| {
        KINDS.map(|(packets, idle)| {
            format!("{packets} {} accept", family.remember("out", tap, SENT, idle))
        })
    });
    rules.collect()
}

/// What matches the other side's addresses, one for each family.
fn addresses(rule: &Rule, side: &str) -> Vec<String> {
    if rule.others.is_empty() {
        return vec![String::new()];
    }
    // Sets of nftables have no members within others.
    let others = IpNet::aggregate(&rule.others);
    let of = |family: &str, wanted: bool, is_v4: bool| {
        let nets = others.iter().filter(|net| net.addr().is_ipv4() == is_v4);
        let nets: Vec<String> = nets.map(ToString::to_string).collect();
        let listed = format!("{family} {side} {{ {} }} ", nets.join(", "));
        (wanted && !nets.is_empty()).then_some(listed)
    };
    let v4 = of("ip", !matches!(rule.traffic, Traffic::Icmp6(_)), true);
    let v6 = of("ip6", !matches!(rule.traffic, Traffic::Icmp(_)), false);
    v4.into_iter().chain(v6).collect()
}

/// What matches the protocol, and its ports or types.
fn traffic(traffic: &Traffic) -> Vec<String> {
    let ports = |protocol: &str, ports: &[RangeInclusive<u16>]| {
        let range = |port: &RangeInclusive<u16>| match (port.start(), port.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        let listed: Vec<String> = merged(ports).iter().map(range).collect();
        vec![format!("{protocol} dport {{ {} }}", listed.join(", "))]
    };
    let types = |protocol: &str, types: &[(u8, Option<u8>)]| match types {
        [] => vec![format!("meta l4proto {protocol}")],
        types => types
            .iter()
            .map(|(number, code)| match code {
                Some(code) => format!("{protocol} type {number} {protocol} code {code}"),
                None => format!("{protocol} type {number}"),
            })
            .collect(),
    };
    match traffic {
        Traffic::Tcp(listed) => ports("tcp", listed),
        Traffic::Udp(listed) => ports("udp", listed),
        Traffic::Icmp(listed) => types("icmp", listed),
        Traffic::Icmp6(listed) => types("icmpv6", listed),
    }
}

/// The same ports in ranges that don't overlap, as sets of nftables want them.
fn merged(ports: &[RangeInclusive<u16>]) -> Vec<RangeInclusive<u16>> {
    let mut sorted = ports.to_vec();
    sorted.sort_by_key(|range| *range.start());
    let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*range.end().max(last.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}
