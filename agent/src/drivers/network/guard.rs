//! What a guest may send from its NIC: frames with its own addresses, and nothing that takes the
//! place of a router or of a DHCP server. Pure: from the NIC's description to rules of nftables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        })
    }

    /// Whether there is a rule for it at all.
    pub(super) fn filters(&self) -> bool {
        !self.outgoing().is_empty() || self.incoming().is_some()
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
            IpNet::V4(net) => Some(net.to_string()),
            IpNet::V6(_) => None,
        });
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
        own.extend(self.link_local().map(ipnet::Ipv6Net::from));
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

    /// The rule for what is sent to the guest.
    pub(super) fn incoming(&self) -> Option<String> {
        // A bridge sends everywhere what it knows no place for.
        let mac = &self.mac;
        let others = format!(
            "ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {mac} drop"
        );
        (!self.promiscuous && !self.mac_spoofing).then_some(others)
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

/// The whole table, to take the place of the one there is; each guard with the tap of its NIC.
/// A tap without a guard is one that nobody knows what may come out of: nothing does.
pub(super) fn table<'a>(
    name: &str,
    taps: impl IntoIterator<Item = (&'a str, Option<&'a Guard>)>,
) -> String {
    let (mut from, mut to, mut chains) = (String::new(), String::new(), String::new());
    for (tap, guard) in taps {
        let Some(guard) = guard else {
            from += &format!("\t\tiifname \"{tap}\" drop\n");
            continue;
        };
        from += &format!("\t\tiifname \"{tap}\" goto from_{tap}\n");
        let rules: String = guard.outgoing().iter().map(|rule| format!("\t\t{rule}\n")).collect();
        chains += &format!("\tchain from_{tap} {{\n{rules}\t}}\n");
        if let Some(rule) = guard.incoming() {
            to += &format!("\t\toifname \"{tap}\" {rule}\n");
        }
    }
    format!(
        "table bridge {name}\n\
         delete table bridge {name}\n\
         table bridge {name} {{\n\
         {chains}\
         \tchain from_guests {{\n\
         \t\ttype filter hook prerouting priority -300; policy accept;\n\
         {from}\
         \t}}\n\
         \tchain to_guests {{\n\
         \t\ttype filter hook postrouting priority 300; policy accept;\n\
         {to}\
         \t}}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn guard(mut nic: Value) -> Guard {
        nic["mac"] = json!("02:00:00:00:00:01");
        Guard::of(0, &nic).unwrap()
    }

    #[test]
    fn a_nic_with_addresses_sends_from_them_alone() {
        let guard = guard(json!({
            "ips": ["192.0.2.7/24", "2001:db8::7/64"], "allowed_ips": ["198.51.100.9/24"],
            "blocked_outgoing_ports": [25, "465"],
        }));
        let rules = [(("mt000000010"), Some(&guard)), ("mt000000020", None)];
        assert_eq!(table("muster_nics", rules), include_str!("golden/guard.nft"));
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
        assert!(!nic.filters(), "{nic:?}");
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
