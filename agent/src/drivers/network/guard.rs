//! What a guest may send from its NIC: frames with its own addresses, and nothing that takes the
//! place of a router or of a DHCP server. Pure: from the NIC's description to rules of nftables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::firewall::{Firewall, Parts};
use crate::drivers::DriverError;

/// Ports that nothing may be sent to, of one NIC.
const MAX_PORTS: usize = 64;

/// What is let out of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Guard {
    /// Its address.
    pub(super) mac: String,
    /// Addresses of its own, and networks that it may send for.
    pub(super) sources: Vec<IpNet>,
    /// It asks for an IPv4 address, so nobody knows which one is its own.
    pub(super) dhcp: bool,
    /// The same of IPv6.
    pub(super) addrconf: bool,
    /// Ports that nothing is sent to.
    pub(super) blocked_ports: Vec<u16>,
    /// Any address as source.
    pub(super) ip_spoofing: bool,
    /// Any MAC address as source.
    pub(super) mac_spoofing: bool,
    /// It may hand out addresses.
    pub(super) dhcp_spoofing: bool,
    /// Any protocol.
    pub(super) any_protocol: bool,
    /// It also receives what is for others.
    pub(super) promiscuous: bool,
    /// It reaches the addresses that the server has on the bridge.
    #[serde(default)]
    pub(super) reaches_server: bool,
    /// Most that is sent, and most that is received, Mbit/s.
    #[serde(default)]
    pub(super) max_mbit_per_second: Option<u64>,
    /// What is let in and out; `None`: everything that the rest allows.
    #[serde(default)]
    pub(super) firewall: Option<Firewall>,
}

impl Guard {
    /// What the record of a NIC says; `index` is its place among those of the VM.
    ///
    /// # Errors
    /// `InvalidParameters`: an address can't be read.
    pub(super) fn of(index: usize, nic: &Value) -> Result<Self, DriverError> {
        let flag = |name: &str| nic.get(name).is_some_and(|value| *value == true);
        let words = |name: &str| -> Vec<&str> {
            let words = nic.get(name).and_then(Value::as_array);
            words.into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let bad = |name: &str, word: &str| {
            let text = format!("nics.{index}.{name}: {word:?} is no address or network");
            DriverError::refused(Code::InvalidParameters, text)
        };
        let (ips, mut sources) = (words("ips"), Vec::new());
        for word in ips.iter().filter(|word| !["dhcp", "addrconf"].contains(*word)) {
            let net = network(word).ok_or_else(|| bad("ips", word))?;
            sources.push(IpNet::from(net.addr()));
        }
        for word in words("allowed_ips") {
            sources.push(network(word).ok_or_else(|| bad("allowed_ips", word))?.trunc());
        }
        let has = |mode: &str| ips.contains(&mode) || nic.get("ip").is_some_and(|ip| ip == mode);
        Ok(Self {
            mac: nic.get("mac").and_then(Value::as_str).unwrap_or_default().to_owned(),
            sources,
            // As its metadata tells it.
            dhcp: ips.is_empty() || has("dhcp"),
            addrconf: has("addrconf"),
            blocked_ports: blocked_ports(index, nic)?,
            ip_spoofing: flag("allow_ip_spoofing"),
            mac_spoofing: flag("allow_mac_spoofing"),
            dhcp_spoofing: flag("allow_dhcp_spoofing") || flag("dhcp_server"),
            any_protocol: flag("allow_restricted_traffic"),
            promiscuous: flag("allow_unfiltered_promisc"),
            reaches_server: false,
            max_mbit_per_second: nic
                .get("max_mbit_per_second")
                .and_then(Value::as_u64)
                .filter(|rate| *rate > 0),
            firewall: None,
        })
    }

    /// Whether there is a rule for it at all.
    pub(super) fn filters(&self) -> bool {
        let Parts { from, to, .. } = self.parts("");
        !from.is_empty() || !to.is_empty() || !self.reaches_server || self.rate().is_some()
    }

    /// All of the table that is for its tap.
    fn parts(&self, tap: &str) -> Parts {
        let (mut from, mut to) = (self.outgoing(), self.incoming());
        let firewall = self.firewall.as_ref();
        let firewall = firewall.map(|firewall| firewall.parts(tap, self.dhcp || self.addrconf));
        let Parts { sets, chains, from: more_from, to: more_to } = firewall.unwrap_or_default();
        from.extend(more_from);
        to.extend(more_to);
        Parts { sets, chains, from, to }
    }

    /// Drops what is more than the NIC may send or receive.
    fn rate(&self) -> Option<String> {
        let bytes = self.max_mbit_per_second?.saturating_mul(1_000_000 / 8);
        // Beyond one second's worth, which the kernel adds: some of the largest packets that a guest
        // hands over at once.
        let burst = 4 * 65_536;
        Some(format!("limit rate over {bytes} bytes/second burst {burst} bytes drop"))
    }

    fn own<Address>(&self, of: impl Fn(&IpNet) -> Option<Address>) -> Vec<Address> {
        self.sources.iter().filter_map(of).collect()
    }

    /// The address that the guest's system makes of the MAC address by itself.
    fn link_local(&self) -> Option<Ipv6Addr> {
        let bytes = hex::decode(self.mac.replace(':', "")).ok()?;
        let [a, b, c, d, e, f] = <[u8; 6]>::try_from(bytes).ok()?;
        let pairs = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]];
        let [w, x, y, z] = pairs.map(u16::from_be_bytes);
        Some(Ipv6Addr::new(0xfe80, 0, 0, 0, w, x, y, z))
    }

    /// Rules for what the guest sends, in their order: what none of them drops goes out.
    pub(super) fn outgoing(&self) -> Vec<String> {
        let mut rules = Vec::new();
        let mac = &self.mac;
        if !self.mac_spoofing {
            rules.push(format!("ether saddr != {mac} drop"));
            rules.push(format!("arp saddr ether != {mac} drop"));
        }
        if !self.any_protocol {
            // Frames of other VLANs among them.
            rules.push("ether type != { ip, arp, ip6 } drop".to_owned());
        }
        if !self.dhcp_spoofing {
            rules.push("udp sport 67 udp dport 68 drop".to_owned());
            rules.push("udp sport 547 udp dport 546 drop".to_owned());
            rules.push("icmpv6 type { nd-router-advert, nd-redirect } drop".to_owned());
        }
        if !self.ip_spoofing {
            self.sources4(&mut rules);
            self.sources6(&mut rules);
        }
        if !self.blocked_ports.is_empty() {
            let ports: Vec<String> = self.blocked_ports.iter().map(ToString::to_string).collect();
            let ports = ports.join(", ");
            rules.push(format!("meta l4proto {{ tcp, udp }} th dport {{ {ports} }} drop"));
        }
        rules
    }

    fn sources4(&self, rules: &mut Vec<String>) {
        if self.dhcp {
            return;
        }
        let own = self.own(|net| match net {
            IpNet::V4(net) => Some(*net),
            IpNet::V6(_) => None,
        });
        // Sets of nftables have no members within others.
        let own = Ipv4Net::aggregate(&own).iter().map(ToString::to_string).collect::<Vec<_>>();
        // Who asks whether an address is taken has none yet.
        let any = [Ipv4Addr::UNSPECIFIED.to_string()];
        let asking: Vec<&str> = own.iter().chain(&any).map(String::as_str).collect();
        rules.push(format!("arp saddr ip != {{ {} }} drop", asking.join(", ")));
        rules.push(match own.as_slice() {
            [] => "ether type ip drop".to_owned(),
            own => format!("ip saddr != {{ {} }} drop", own.join(", ")),
        });
    }

    fn sources6(&self, rules: &mut Vec<String>) {
        let mut own = self.own(|net| match net {
            IpNet::V6(net) => Some(*net),
            IpNet::V4(_) => None,
        });
        own.extend(self.link_local().map(Ipv6Net::from));
        let own = Ipv6Net::aggregate(&own);
        // Who asks whether an address is taken has none yet.
        let asking = "nd-neighbor-solicit, nd-router-solicit, mld-listener-report, \
                      mld2-listener-report";
        rules.push(format!("ip6 saddr :: icmpv6 type {{ {asking} }} accept"));
        let listed: Vec<String> = own.iter().map(ToString::to_string).collect();
        let listed = listed.join(", ");
        rules.push(match self.addrconf {
            true => format!("ip6 saddr fe80::/10 ip6 saddr != {{ {listed} }} drop"),
            false => format!("ip6 saddr != {{ {listed} }} drop"),
        });
        // It speaks for its own addresses alone: bytes 8 to 23 of what it tells.
        let tells = "icmpv6 type nd-neighbor-advert";
        for net in &own {
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            let range =
                if first == last { format!("{first:#x}") } else { format!("{first:#x}-{last:#x}") };
            rules.push(format!("{tells} @th,64,128 {range} accept"));
        }
        if self.addrconf {
            // Any address but those of the link, which are known.
            rules.push(format!("{tells} @th,64,10 != 0x3fa accept"));
        }
        rules.push(format!("{tells} drop"));
    }

    /// Rules for what is sent to the guest.
    fn incoming(&self) -> Vec<String> {
        // A bridge sends everywhere what it knows no place for.
        let mac = &self.mac;
        let others = format!(
            "ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {mac} drop"
        );
        (!self.promiscuous && !self.mac_spoofing).then_some(others).into_iter().collect()
    }
}

/// `192.0.2.1/24`, or an address alone.
fn network(word: &str) -> Option<IpNet> {
    word.parse().ok().or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from))
}

fn blocked_ports(index: usize, nic: &Value) -> Result<Vec<u16>, DriverError> {
    let listed = match nic.get("blocked_outgoing_ports") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(listed) => listed,
    };
    let bad = || {
        let text = format!(
            "nics.{index}.blocked_outgoing_ports: must be a list of at most {MAX_PORTS} ports"
        );
        DriverError::refused(Code::InvalidParameters, text)
    };
    let listed = listed.as_array().filter(|listed| listed.len() <= MAX_PORTS).ok_or_else(bad)?;
    let port = |port: &Value| muster_shared::lenient::number(port)?.try_into().ok();
    listed.iter().map(|value| port(value).ok_or_else(bad)).collect()
}

/// The whole table; each guard with the tap of its NIC. A tap without a guard is one that nobody knows
/// what may come out of: nothing does.
///
/// Chains are emptied and filled again in one transaction. Sets stay: what they hold is not in here.
/// `stale` are sets and chains of taps that are gone, as `set NAME` and `chain NAME`.
pub(super) fn table<'a>(
    name: &str,
    taps: impl IntoIterator<Item = (&'a str, Option<&'a Guard>)>,
    stale: &[String],
) -> String {
    let mut text = Table::default();
    for (tap, guard) in taps {
        text.add(tap, guard);
    }
    let Table { sets, chains, from, to, server, rates_from, rates_to } = text;
    let stale: String = stale
        .iter()
        .filter_map(|words| words.split_once(' '))
        .map(|(kind, gone)| format!("delete {kind} bridge {name} {gone}\n"))
        .collect();
    let hooked = [
        hooked("from_guests", "prerouting", -300, &from),
        hooked("to_guests", "postrouting", 300, &to),
        hooked("to_server", "input", 0, &server),
        hooked("rates_from_guests", "prerouting", -299, &rates_from),
        hooked("rates_to_guests", "postrouting", 301, &rates_to),
    ]
    .concat();
    format!(
        "table bridge {name}\nflush table bridge {name}\n{stale}table bridge {name} {{\n\
         {sets}{chains}{hooked}}}\n"
    )
}

/// A chain that the kernel goes through at one of its hooks.
fn hooked(name: &str, hook: &str, priority: i32, rules: &str) -> String {
    format!(
        "\tchain {name} {{\n\t\ttype filter hook {hook} priority {priority}; policy accept;\n\
         {rules}\t}}\n"
    )
}

/// The table's parts, as text.
#[derive(Default)]
struct Table {
    sets: String,
    chains: String,
    from: String,
    to: String,
    server: String,
    // After the filters: what they drop is not counted.
    rates_from: String,
    rates_to: String,
}

impl Table {
    fn add(&mut self, tap: &str, guard: Option<&Guard>) {
        let Some(guard) = guard else {
            self.from += &format!("\t\tiifname \"{tap}\" drop\n");
            return;
        };
        let Parts { sets, chains, from, to } = guard.parts(tap);
        for set in sets {
            self.sets += &format!("\t{set}\n");
        }
        for (chain, rules) in chains {
            self.chain(&chain, &rules);
        }
        if !from.is_empty() {
            self.chain(&format!("from_{tap}"), &from);
            self.from += &format!("\t\tiifname \"{tap}\" goto from_{tap}\n");
        }
        if !to.is_empty() {
            self.chain(&format!("to_{tap}"), &to);
            self.to += &format!("\t\toifname \"{tap}\" goto to_{tap}\n");
        }
        if !guard.reaches_server {
            self.server += &format!("\t\tiifname \"{tap}\" drop\n");
        }
        if let Some(rate) = guard.rate() {
            self.rates_from += &format!("\t\tiifname \"{tap}\" {rate}\n");
            self.rates_to += &format!("\t\toifname \"{tap}\" {rate}\n");
        }
    }

    fn chain(&mut self, name: &str, rules: &[String]) {
        let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
        self.chains += &format!("\tchain {name} {{\n{rules}\t}}\n");
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::vm::Rule;
    use serde_json::json;

    use super::*;

    fn guard(mut nic: Value) -> Guard {
        nic["mac"] = json!("02:00:00:00:00:01");
        Guard::of(0, &nic).unwrap()
    }

    /// A change of the table is made again with `UPDATE_GOLDEN` set, and read before it is committed.
    #[track_caller]
    fn golden(name: &str, table: &str) {
        let path = std::path::Path::new("src/drivers/network/golden").join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, table).unwrap();
        }
        assert_eq!(table, std::fs::read_to_string(path).unwrap());
    }

    #[test]
    fn a_nic_with_addresses_sends_from_them_alone() {
        let guard = guard(json!({
            "ips": ["192.0.2.7/24", "2001:db8::7/64"], "allowed_ips": ["198.51.100.9/24"],
            "blocked_outgoing_ports": [25, "465"],
        }));
        let rules = [(("mt000000010"), Some(&guard)), ("mt000000020", None)];
        golden("guard.nft", &table("muster_nics", rules, &[]));
    }

    #[test]
    fn each_allowance_takes_its_rules_away() {
        let all = guard(json!({ "ips": ["192.0.2.7/24"] })).outgoing();
        for (allowance, gone) in [
            ("allow_mac_spoofing", "ether saddr"),
            ("allow_mac_spoofing", "arp saddr ether"),
            ("allow_ip_spoofing", "ip saddr"),
            ("allow_ip_spoofing", "ip6 saddr"),
            ("allow_ip_spoofing", "nd-neighbor-advert"),
            ("allow_dhcp_spoofing", "udp sport 67"),
            ("dhcp_server", "nd-router-advert"),
            ("allow_restricted_traffic", "ether type !="),
        ] {
            let has = |rules: &[String]| rules.iter().any(|rule| rule.contains(gone));
            let mut nic = json!({ "ips": ["192.0.2.7/24"] });
            nic[allowance] = json!(true);
            assert!(has(&all) && !has(&guard(nic).outgoing()), "{allowance}");
        }
        let nic = guard(json!({
            "allow_mac_spoofing": true, "allow_ip_spoofing": true, "allow_dhcp_spoofing": true,
            "allow_restricted_traffic": true, "allow_unfiltered_promisc": true,
        }));
        assert!(nic.filters(), "the server's own addresses are not for it");
        let nic = Guard { reaches_server: true, ..nic };
        assert!(!nic.filters(), "{nic:?}");
    }

    #[test]
    fn a_firewall_lets_in_what_was_asked_for_or_is_allowed() {
        let rules = [
            "FROM any TO all vms ALLOW tcp (PORT 80 AND PORT 443 AND PORT 81)",
            "FROM (subnet 10.0.0.0/8 OR ip 10.1.2.3 OR ip 2001:db8::1) TO all vms ALLOW udp PORT 53",
            "FROM ip 192.0.2.9 TO all vms BLOCK tcp PORT all",
            "FROM ip 192.0.2.66 TO all vms BLOCK tcp PORTS 80, 443 PRIORITY 10",
            "FROM any TO all vms ALLOW icmp TYPE 8 CODE 0",
            "FROM all vms TO any BLOCK tcp PORT 25",
            "FROM all vms TO ip 192.0.2.25 ALLOW tcp PORT 25 PRIORITY 1",
            "FROM all vms TO ip 2001:db8::7 BLOCK icmp6 TYPE all",
        ];
        let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let guard = Guard {
            firewall: Some(Firewall::new(&rules)),
            max_mbit_per_second: Some(8),
            ..guard(json!({ "ips": ["192.0.2.7/24"] }))
        };
        let other = Guard { firewall: Some(Firewall::new(&rules[..1])), ..guard.clone() };
        let stale = ["chain from_mt0".to_owned(), "set out4_mt0".to_owned()];
        let taps = [("mt1", Some(&guard)), ("mt2", Some(&other))];
        let text = table("muster_nics", taps, &stale);
        golden("firewall.nft", &text);
    }

    #[test]
    fn of_an_address_that_is_asked_for_nobody_knows() {
        for nic in [json!({}), json!({ "ips": ["dhcp"] })] {
            let rules = guard(nic).outgoing();
            assert!(!rules.iter().any(|rule| rule.starts_with("ip saddr")), "{rules:?}");
            assert!(rules.iter().any(|rule| rule == "ip6 saddr != { fe80::ff:fe00:1/128 } drop"));
        }
        let rules = guard(json!({ "ips": ["addrconf"] })).outgoing();
        assert!(rules.contains(&"ether type ip drop".to_owned()), "{rules:?}");
        assert!(!rules.iter().any(|rule| rule.starts_with("ip6 saddr !=")), "{rules:?}");
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for (member, value) in [
            ("ips", json!(["192.0.2.300/24"])),
            ("allowed_ips", json!(["any; drop"])),
            ("blocked_outgoing_ports", json!([65536])),
            ("blocked_outgoing_ports", json!("25")),
        ] {
            let refused = Guard::of(3, &json!({ member: value })).unwrap_err().to_string();
            assert!(refused.contains(&format!("nics.3.{member}")), "{refused}");
        }
    }
}
