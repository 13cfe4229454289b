//! Two ways to say a NIC's addresses: `ips` and `gateways`, and for old clients `ip`, `netmask` and
//! `gateway`, which tell the first of each. Whichever way a client uses, both are recorded.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

/// Brings the members that a client did not give in line with those that it gave; `ips` and
/// `gateways` count when it gave both.
pub(super) fn sync(nic: &mut Map<String, Value>, given: &Map<String, Value>) {
    let gives = |name: &str| given.contains_key(name);
    if gives("ips") {
        let (ip, netmask) = first(nic, "ips").map_or((None, None), |first| split(&first));
        set(nic, "ip", ip.map(Value::from));
        set(nic, "netmask", netmask.map(Value::from));
    } else if gives("ip") || gives("netmask") {
        let address = joined(nic);
        set_first(nic, "ips", address);
        if !nic.contains_key("ip") {
            nic.shift_remove("netmask");
        }
    }
    if gives("gateways") {
        let gateway = first(nic, "gateways");
        set(nic, "gateway", gateway.map(Value::from));
    } else if gives("gateway") {
        let gateway = text(nic, "gateway");
        set_first(nic, "gateways", gateway);
    }
}

/// `10.0.0.5/24` is an address and a mask; what has no IPv4 length stands alone.
fn split(address: &str) -> (Option<String>, Option<String>) {
    let (ip, length) = match address.split_once('/') {
        None => return (Some(address.to_owned()), None),
        Some((ip, length)) => (ip, length.parse::<u32>().ok()),
    };
    let is_v4 = ip.parse::<Ipv4Addr>().is_ok();
    let mask = length.filter(|length| is_v4 && *length <= 32).map(|length| {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - length).unwrap_or(0)).to_string()
    });
    (Some(ip.to_owned()), mask)
}

/// The address that `ip` and `netmask` say; `None` when they say none.
fn joined(nic: &Map<String, Value>) -> Option<String> {
    let ip = text(nic, "ip")?;
    if matches!(ip.as_str(), "dhcp" | "addrconf") {
        return Some(ip);
    }
    ip.parse::<Ipv4Addr>().ok()?;
    let mask = text(nic, "netmask")?.parse::<Ipv4Addr>().ok()?.to_bits();
    (mask.leading_ones() == mask.count_ones()).then(|| format!("{ip}/{}", mask.leading_ones()))
}

fn text(nic: &Map<String, Value>, name: &str) -> Option<String> {
    nic.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn first(nic: &Map<String, Value>, list: &str) -> Option<String> {
    nic.get(list)?.as_array()?.first()?.as_str().map(str::to_owned)
}

fn set(nic: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(nic.insert(name.to_owned(), value)),
        None => drop(nic.shift_remove(name)),
    }
}

/// The others of the list stay; without a first one there is no list.
fn set_first(nic: &mut Map<String, Value>, list: &str, value: Option<String>) {
    let Some(value) = value else { return set(nic, list, None) };
    match nic.get_mut(list).and_then(Value::as_array_mut).filter(|list| !list.is_empty()) {
        Some(list) => list[0] = json!(value),
        None => set(nic, list, Some(json!([value]))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("an object is needed") };
        object
    }

    /// What is recorded of a NIC that was `before`, of which a client gives these members.
    #[track_caller]
    fn check(before: Value, given: Value, expected: Value) {
        let given = object(given);
        let mut nic = object(before);
        nic.extend(given.clone());
        nic.retain(|_, value| !value.is_null());
        sync(&mut nic, &given);
        assert_eq!(nic, object(expected));
    }

    #[test]
    fn either_way_says_the_other() {
        let old = json!({ "ip": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1" });
        let new = json!({ "ips": ["10.0.0.5/24"], "gateways": ["10.0.0.1"] });
        let both = json!({
            "ip": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1",
            "ips": ["10.0.0.5/24"], "gateways": ["10.0.0.1"],
        });
        check(json!({}), old, both.clone());
        check(json!({}), new, both.clone());
        check(json!({}), both.clone(), both.clone());
        check(both.clone(), json!({ "mtu": 1400 }), {
            let mut with_mtu = both.clone();
            with_mtu["mtu"] = json!(1400);
            with_mtu
        });
        check(json!({}), json!({ "ip": "dhcp" }), json!({ "ip": "dhcp", "ips": ["dhcp"] }));
        check(
            json!({}),
            json!({ "ips": ["fd00::5/64", "10.0.0.5/8"] }),
            json!({ "ips": ["fd00::5/64", "10.0.0.5/8"], "ip": "fd00::5" }),
        );
        // Without its mask an address has no length.
        check(json!({}), json!({ "ip": "10.0.0.5" }), json!({ "ip": "10.0.0.5" }));
    }

    #[test]
    fn a_change_moves_both() {
        let before = json!({
            "ip": "10.0.0.5", "netmask": "255.255.255.0", "gateway": "10.0.0.1",
            "ips": ["10.0.0.5/24", "10.1.0.5/16"], "gateways": ["10.0.0.1"],
        });
        check(
            before.clone(),
            json!({ "netmask": "255.255.0.0", "gateway": null }),
            json!({
                "ip": "10.0.0.5", "netmask": "255.255.0.0", "ips": ["10.0.0.5/16", "10.1.0.5/16"],
            }),
        );
        check(before.clone(), json!({ "ips": null, "gateways": null }), json!({}));
        check(
            before,
            json!({ "ip": null, "gateways": ["10.0.0.2"] }),
            json!({
                "gateway": "10.0.0.2", "gateways": ["10.0.0.2"],
            }),
        );
    }

    proptest! {
        #[test]
        fn an_address_survives_both_ways(bits in any::<u32>(), length in 0_u32..=32) {
            let address = format!("{}/{length}", Ipv4Addr::from_bits(bits));
            let given = object(json!({ "ips": [address] }));
            let mut nic = given.clone();
            sync(&mut nic, &given);
            let old = object(json!({ "ip": nic["ip"], "netmask": nic["netmask"] }));
            let mut again = old.clone();
            sync(&mut again, &old);
            prop_assert_eq!(&again["ips"], &nic["ips"]);
        }
    }
}
