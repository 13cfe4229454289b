//! Addresses that only one NIC of a node may have. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

/// A kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// Of a card: nowhere twice.
    Mac,
    /// Of a guest: not twice in one network, which is a nic tag and a VLAN.
    Ip,
}

impl Address {
    pub(super) const ALL: &[Self] = &[Self::Mac, Self::Ip];
}

/// An address with where it may be only once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    Mac(String),
    Ip { tag: String, vlan: u64, ip: IpAddr },
}

impl Taken {
    fn refused(&self, index: usize) -> DriverError {
        let text = match self {
            Self::Mac(mac) => format!("nics.{index}.mac: MAC {mac} is in use"),
            Self::Ip { tag, vlan: 0, ip } => {
                format!("nics.{index}.ips: {ip} is in use on nic tag {tag}")
            }
            Self::Ip { tag, vlan, ip } => {
                format!("nics.{index}.ips: {ip} is in use on nic tag {tag}, VLAN {vlan}")
            }
        };
        DriverError::refused(Code::InvalidParameters, text)
    }
}

/// Addresses of these kinds that a NIC is described with. What is none is left out.
fn of(nic: &Value, kinds: &[Address]) -> BTreeSet<Taken> {
    let text = |name: &str| nic.get(name).and_then(Value::as_str);
    let mut taken = BTreeSet::new();
    if kinds.contains(&Address::Mac) {
        taken.extend(text("mac").map(|mac| Taken::Mac(mac.to_owned())));
    }
    if kinds.contains(&Address::Ip) {
        let tag = text("nic_tag").unwrap_or_default();
        let vlan = nic.get("vlan_id").and_then(Value::as_u64).unwrap_or(0);
        let ips = nic.get("ips").and_then(Value::as_array).into_iter().flatten();
        // `dhcp` and `addrconf` are none.
        let ip = |word: &str| {
            word.parse().map(|net: IpNet| net.addr()).or_else(|_| word.parse::<IpAddr>()).ok()
        };
        let ips = ips.filter_map(Value::as_str).filter_map(ip);
        taken.extend(ips.map(|ip| Taken::Ip { tag: tag.to_owned(), vlan, ip }));
    }
    taken
}

/// Refuses properties of a VM with addresses that one of these other NICs has, or two of its own.
///
/// # Errors
/// `InvalidParameters`, naming the NIC and the address.
pub(super) fn check<'a>(
    others: impl Iterator<Item = &'a Value>,
    properties: &Map<String, Value>,
    kinds: &[Address],
) -> Result<(), DriverError> {
    let mut taken: BTreeSet<Taken> = others.flat_map(|nic| of(nic, kinds)).collect();
    let nics = properties.get("nics").and_then(Value::as_array);
    for (index, nic) in nics.into_iter().flatten().enumerate() {
        let own = of(nic, kinds);
        if let Some(twice) = own.intersection(&taken).next() {
            return Err(twice.refused(index));
        }
        taken.extend(own);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Why these NICs are refused beside that one.
    fn refusal(other: &Value, nics: Value) -> Option<String> {
        let properties = Map::from_iter([("nics".to_owned(), nics)]);
        let checked = check(std::iter::once(other), &properties, Address::ALL);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn an_address_that_is_there_twice_is_named() {
        let other = json!({
            "mac": "02:00:00:00:00:01", "nic_tag": "one", "ips": ["10.0.0.5/24", "fd77::5/64"],
        });
        let nic = |mac: &str, tag: &str, vlan: u16, ips: &[&str]| json!({ "mac": mac, "nic_tag": tag, "vlan_id": vlan, "ips": ips });
        let (first, second) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        for (nics, named) in [
            (json!([nic(first, "two", 0, &[])]), "nics.0.mac: MAC 02:00:00:00:00:01 is in use"),
            (json!([nic(second, "one", 0, &["10.0.0.5/16"])]), "nics.0.ips: 10.0.0.5 is in use on"),
            (
                json!([nic(second, "one", 0, &["dhcp", "fd77:0::5"])]),
                "fd77::5 is in use on nic tag one",
            ),
            (
                json!([
                    nic(second, "two", 7, &["10.0.0.5/24"]),
                    nic("02:00:00:00:00:03", "two", 7, &["10.0.0.5/24"]),
                ]),
                "nics.1.ips: 10.0.0.5 is in use on nic tag two, VLAN 7",
            ),
            (json!([nic(second, "two", 0, &[]), nic(second, "two", 0, &[])]), "nics.1.mac"),
        ] {
            let refusal = refusal(&other, nics).unwrap_or_default();
            assert!(refusal.contains(named), "{refusal:?} for {named:?}");
        }
    }

    #[test]
    fn other_networks_have_addresses_of_their_own() {
        let other = json!({ "nic_tag": "one", "vlan_id": 7, "ips": ["10.0.0.5/24", "dhcp"] });
        let nic = |tag: &str, vlan: u16, ip: &str| json!({ "nic_tag": tag, "vlan_id": vlan, "ips": [ip] });
        for free in [
            nic("one", 0, "10.0.0.5/24"),
            nic("one", 8, "10.0.0.5/24"),
            nic("two", 7, "10.0.0.5/24"),
            nic("one", 7, "10.0.0.6/24"),
            nic("one", 7, "dhcp"),
            nic("one", 7, "what is refused elsewhere"),
            json!({ "nic_tag": "two", "ips": ["10.0.0.5/24", "10.0.0.5/24"] }),
        ] {
            assert_eq!(refusal(&other, json!([free])), None, "{free}");
        }
    }
}
