//! What becomes of the network interfaces of a guest that runs when its record changes. Pure.

use serde_json::{Map, Value};

use super::VmRecord;
use super::at_start::published;
use crate::drivers::compute::{GuestNic, GuestNics};
use crate::drivers::network::numbers;

/// Members that only another device, or another end on the host, can give.
const OF_DEVICE: [&str; 6] = ["interface", "mac", "model", "mtu", "nic_tag", "vlan_id"];
/// Members that a guest on a bridge is told when it starts.
const TOLD: [&str; 5] = ["gateway", "gateways", "ip", "ips", "netmask"];

fn nics(properties: &Map<String, Value>) -> &[Value] {
    properties.get("nics").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn mac(nic: &Value) -> &str {
    nic["mac"].as_str().unwrap_or_default()
}

fn of_mac<'a>(nics: &'a [Value], mac: &str) -> Option<&'a Value> {
    nics.iter().find(|nic| self::mac(nic) == mac)
}

/// The NICs that the guest runs with, as far as they are described.
#[must_use]
pub fn running(record: &VmRecord) -> &[Value] {
    match record.started_with.get("nics") {
        Some(Value::Array(nics)) => nics,
        Some(_) => &[],
        None => record.list("nics"),
    }
}

/// The numbers and addresses of NICs.
fn devices(nics: &[Value]) -> Vec<(usize, &str)> {
    let mut devices: Vec<_> = numbers(nics).into_iter().zip(nics.iter().map(mac)).collect();
    devices.sort_unstable();
    devices
}

/// Whether a guest with these NICs needs others for those.
#[must_use]
pub fn differ(old: &[Value], new: &[Value]) -> bool {
    devices(old) != devices(new)
}

/// Whether a guest that is to have these NICs is to keep this one.
#[must_use]
pub fn is_among(nics: &[Value], nic: &GuestNic) -> bool {
    of_mac(nics, &nic.mac).is_some()
}

/// Whether a guest that has `present` can be given what it is to have while it runs.
#[must_use]
pub fn can_have(present: &GuestNics, running: &[Value], wanted: &Map<String, Value>) -> bool {
    let nics = nics(wanted);
    let goes = |nic: &&GuestNic| of_mac(nics, &nic.mac).is_none();
    let all_can_go = present.present.iter().filter(goes).all(|nic| nic.removable);
    let will_be_free = |number: &usize| {
        let mut going = present.present.iter().filter(goes);
        present.free.contains(number) || going.any(|nic| nic.number == *number)
    };
    let can_come =
        |nic: &Value, number: usize| match present.present.iter().find(|it| it.mac == mac(nic)) {
            Some(had) => had.number == number,
            None => nic["model"] == "virtio" && will_be_free(&number),
        };
    all_can_go
        && nics.iter().zip(numbers(nics)).all(|(nic, number)| can_come(nic, number))
        && !moves_ports(running, wanted)
}

/// Published ports lead to the first NIC; they can't be given to another one while it runs.
fn moves_ports(running: &[Value], wanted: &Map<String, Value>) -> bool {
    let has_ports = published(wanted).is_some_and(|ports| ports.as_str() != Some(""));
    let (Some(was), Some(is)) = (running.first(), nics(wanted).first()) else { return false };
    has_ports && mac(was) != mac(is)
}

/// What the host is to give a guest: the devices and networks that it runs with, and all else as it is
/// wanted. With `hot`, also devices that come, and none that go.
#[must_use]
pub fn live(running: &[Value], wanted: &[Value], hot: bool) -> Vec<Value> {
    let merged = |wanted: &Value, has: &Value| {
        let (Some(wanted), Some(has)) = (wanted.as_object(), has.as_object()) else {
            return wanted.clone();
        };
        let of_device = |name: &&String| OF_DEVICE.contains(&name.as_str());
        let mut merged = wanted.clone();
        merged.retain(|name, _| !of_device(&name));
        let kept = has.iter().filter(|(name, _)| of_device(name));
        merged.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(merged)
    };
    if hot {
        let with = |nic: &Value| match of_mac(running, mac(nic)) {
            Some(has) => merged(nic, has),
            None => nic.clone(),
        };
        return wanted.iter().map(with).collect();
    }
    let with = |has: &Value| match of_mac(wanted, mac(has)) {
        Some(nic) => merged(nic, has),
        None => has.clone(),
    };
    running.iter().map(with).collect()
}

/// The NICs that the guest was not started with, and whose addresses it would be told then.
#[must_use]
pub fn untold<'a>(running: &[Value], live: &'a [Value]) -> Vec<&'a str> {
    let has_addresses = |nic: &&Value| {
        let ips = nic["ips"].as_array().into_iter().flatten().filter_map(Value::as_str);
        ips.into_iter().any(|ip| ip.contains('/'))
    };
    let new = live.iter().filter(|nic| of_mac(running, mac(nic)).is_none());
    new.filter(has_addresses).map(mac).collect()
}

/// What the guest knows of its NICs `live`: of those that it had, what it was told when it started; of
/// those named in `untold` no address.
#[must_use]
pub fn known(running: &[Value], live: &[Value], untold: &[String]) -> Vec<Value> {
    let known = |nic: &Value| {
        let mut nic = nic.clone();
        let had = of_mac(running, mac(&nic)).and_then(Value::as_object);
        let is_untold = untold.iter().any(|it| it == mac(&nic));
        let Some(members) = nic.as_object_mut() else { return nic };
        match had {
            Some(had) => {
                let is_told = |name: &str| TOLD.contains(&name) || name == "primary";
                members.retain(|name, _| !is_told(name));
                let told = had.iter().filter(|(name, _)| is_told(name));
                members.extend(told.map(|(name, value)| (name.clone(), value.clone())));
            }
            None if is_untold => members.retain(|name, _| !TOLD.contains(&name.as_str())),
            None => {}
        }
        nic
    };
    live.iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::slice::from_ref;

    use serde_json::json;

    use super::*;

    fn nic(number: usize, tag: &str) -> Value {
        json!({
            "mac": format!("02:00:00:00:00:0{number}"), "interface": format!("net{number}"),
            "nic_tag": tag, "model": "virtio",
        })
    }

    fn vm(nics: &[Value]) -> Map<String, Value> {
        Map::from_iter([("nics".to_owned(), json!(nics))])
    }

    fn guest(numbers: &[usize], removable: bool) -> GuestNics {
        let present = numbers.iter().map(|number| GuestNic {
            number: *number,
            mac: format!("02:00:00:00:00:0{number}"),
            removable,
        });
        let free = (0..4).filter(|number| !numbers.contains(number));
        GuestNics { present: present.collect(), free: free.collect::<BTreeSet<_>>() }
    }

    #[test]
    fn nics_come_and_go_where_the_guest_has_slots() {
        let (zero, one) = (nic(0, "a"), nic(1, "a"));
        let can =
            |present: &GuestNics, nics: &[Value]| can_have(present, &[nic(0, "a")], &vm(nics));
        let has_zero = guest(&[0], true);
        assert!(can(&has_zero, from_ref(&zero)) && can(&has_zero, &[zero.clone(), one.clone()]));
        assert!(can(&has_zero, &[]) && can(&has_zero, from_ref(&one)));
        // Another one in its slot.
        let other = json!({ "mac": "02:00:00:00:00:09", "interface": "net0", "model": "virtio" });
        assert!(can(&has_zero, &[other]));
        assert!(!can(&guest(&[0], false), from_ref(&one)), "it can't go");
        assert!(can(&guest(&[0], false), &[zero.clone(), one.clone()]));
        assert!(!can(&has_zero, &[zero.clone(), nic(4, "a")]), "there is no slot");
        let card = json!({ "mac": "02:00:00:00:00:01", "interface": "net1", "model": "e1000" });
        assert!(!can(&has_zero, &[zero.clone(), card]), "that card has no slot");
        let renamed = json!({ "mac": "02:00:00:00:00:00", "interface": "net3", "model": "virtio" });
        assert!(!can(&has_zero, &[renamed]), "it is elsewhere");
    }

    #[test]
    fn published_ports_stay_where_they_are() {
        let (zero, one) = (nic(0, "a"), nic(1, "a"));
        let with_ports = |nics: &[Value]| {
            let mut vm = vm(nics);
            let ports = json!({ "muster:hostfwd": "tcp::2222-:22" });
            vm.insert("internal_metadata".to_owned(), ports);
            vm
        };
        let running = [zero.clone(), one.clone()];
        let has = guest(&[0, 1], true);
        assert!(can_have(&has, &running, &with_ports(&[zero])));
        assert!(!can_have(&has, &running, &with_ports(from_ref(&one))));
        assert!(can_have(&has, &running, &vm(&[one])));
        assert!(can_have(&has, &running, &with_ports(&[])));
    }

    #[test]
    fn what_needs_no_other_device_is_live() {
        let (zero, one) = (nic(0, "a"), nic(1, "a"));
        let mut moved = nic(0, "b");
        moved["allow_ip_spoofing"] = json!(true);
        let mut loose = zero.clone();
        loose["allow_ip_spoofing"] = json!(true);
        let running = [zero];
        assert_eq!(
            live(&running, &[moved.clone(), one.clone()], true),
            [loose.clone(), one.clone()]
        );
        assert_eq!(live(&running, &[moved, one.clone()], false), [loose]);
        assert_eq!(live(&running, from_ref(&one), true), from_ref(&one));
        assert_eq!(live(&running, &[one], false), running);
    }

    #[test]
    fn a_guest_knows_the_addresses_that_it_was_told() {
        let with = |mut nic: Value, ip: &str| {
            nic["ips"] = json!([ip]);
            nic["ip"] = json!(ip.split('/').next());
            nic
        };
        let running = [with(nic(0, "a"), "10.0.0.1/24")];
        let wanted = [
            with(nic(0, "a"), "10.0.0.2/24"),
            with(nic(1, "a"), "10.0.1.1/24"),
            with(nic(2, "a"), "dhcp"),
        ];
        let live = live(&running, &wanted, true);
        assert_eq!(live, wanted, "its host lets the new addresses through at once");
        let untold = untold(&running, &live);
        assert_eq!(untold, ["02:00:00:00:00:01"]);
        let untold: Vec<String> = untold.into_iter().map(str::to_owned).collect();
        let known = known(&running, &live, &untold);
        assert_eq!(known, [running[0].clone(), nic(1, "a"), wanted[2].clone()]);
        // The same again changes nothing.
        let again = super::live(&known, &wanted, true);
        assert_eq!(super::known(&known, &again, &untold), known);
    }

    #[test]
    fn the_order_of_nics_is_no_difference() {
        let (zero, one) = (nic(0, "a"), nic(1, "a"));
        assert!(!differ(&[zero.clone(), one.clone()], &[one.clone(), zero.clone()]));
        assert!(differ(from_ref(&zero), from_ref(&one)));
        assert!(is_among(from_ref(&one), &guest(&[1], true).present[0]));
        assert!(!is_among(&[zero], &guest(&[1], true).present[0]));
    }
}
