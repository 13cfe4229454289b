//! Routes of a VM beside its gateways: `routes` in its record, gateway by destination. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::VmRecord;

/// What a route has to be, for people.
pub const FORM: &str = "a destination is an address or a network as ADDRESS/LENGTH, and its gateway an \
                        address of the same family, nics[NUMBER] or macs[MAC]";

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads.
    pub to: IpNet,
    /// Who knows the way.
    pub gateway: Gateway,
}

/// Where packets of a route are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// To this router.
    Address(IpAddr),
    /// Straight out of the NIC at this place in the list.
    Nic(usize),
    /// Straight out of the NIC with this address, lower case.
    Mac(String),
}

impl Route {
    /// Reads an entry; `None`: it is not of the [`FORM`].
    #[must_use]
    pub fn parse(to: &str, gateway: &str) -> Option<Self> {
        let to: IpNet = to.parse().ok().or_else(|| Some(to.parse::<IpAddr>().ok()?.into()))?;
        let within = |list: &str| gateway.strip_prefix(list)?.strip_prefix('[')?.strip_suffix(']');
        let gateway = if let Some(number) = within("nics") {
            Gateway::Nic(number.parse().ok()?)
        } else if let Some(mac) = within("macs") {
            Gateway::Mac(mac.to_ascii_lowercase())
        } else {
            let address: IpAddr = gateway.parse().ok()?;
            if address.is_ipv4() != to.addr().is_ipv4() {
                return None;
            }
            Gateway::Address(address)
        };
        Some(Self { to: to.trunc(), gateway })
    }

    /// The place of the NIC that it leads through: whose network its gateway is in, else the primary
    /// one. `None`: there is no such NIC.
    #[must_use]
    pub fn nic(&self, nics: &[Value]) -> Option<usize> {
        match &self.gateway {
            Gateway::Nic(number) => (*number < nics.len()).then_some(*number),
            Gateway::Mac(mac) => nics.iter().position(|nic| nic["mac"] == mac.as_str()),
            Gateway::Address(gateway) => nics
                .iter()
                .position(|nic| is_on_link(nic, *gateway))
                .or_else(|| nics.iter().position(|nic| nic["primary"] == true)),
        }
    }
}

/// Whether an address is in one of a NIC's own networks.
#[must_use]
pub fn is_on_link(nic: &Value, address: IpAddr) -> bool {
    let ips = nic["ips"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ips.filter_map(|ip| ip.parse::<IpNet>().ok()).any(|network| network.contains(&address))
}

/// Whether a value of `routes` is of the [`FORM`].
#[must_use]
pub fn are_usable(routes: &Value) -> bool {
    let parse = |(to, gateway): (&String, &Value)| Route::parse(to, gateway.as_str()?);
    routes.as_object().into_iter().flatten().all(|route| parse(route).is_some())
}

/// The VM's routes. One that an earlier agent recorded and nobody can follow is left out.
#[must_use]
pub fn of(vm: &VmRecord) -> Vec<Route> {
    let routes = vm.properties.get("routes").and_then(Value::as_object).into_iter().flatten();
    routes.filter_map(|(to, gateway)| Route::parse(to, gateway.as_str()?)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_are_of_their_form() {
        for (to, gateway) in [
            ("10.1.0.0/16", "10.0.0.1"),
            ("10.1.2.3", "10.0.0.1"),
            ("2001:db8::/32", "fe80::1"),
            ("10.1.0.0/16", "nics[1]"),
            ("10.1.0.0/16", "macs[02:00:00:00:00:0A]"),
        ] {
            assert!(are_usable(&json!({ to: gateway })), "{to} {gateway}");
        }
        for (to, gateway) in [
            ("10.1.0.0/33", "10.0.0.1"),
            ("default", "10.0.0.1"),
            ("10.1.0.0/16", "fe80::1"),
            ("10.1.0.0/16", "nics[x]"),
            ("10.1.0.0/16", "net0"),
        ] {
            assert!(!are_usable(&json!({ to: gateway })), "{to} {gateway}");
        }
        assert!(!are_usable(&json!({ "10.1.0.0/16": 3 })));
    }

    #[test]
    fn a_route_leads_through_the_nic_that_its_gateway_is_on() {
        let nics = [
            json!({ "mac": "02:00:00:00:00:01", "ips": ["10.0.0.2/24"] }),
            json!({ "mac": "02:00:00:00:00:02", "ips": ["dhcp"], "primary": true }),
        ];
        let nic = |gateway: &str| Route::parse("10.9.0.0/16", gateway).unwrap().nic(&nics);
        assert_eq!(nic("10.0.0.1"), Some(0));
        assert_eq!(nic("192.0.2.1"), Some(1));
        assert_eq!(nic("nics[1]"), Some(1));
        assert_eq!(nic("nics[2]"), None);
        assert_eq!(nic("macs[02:00:00:00:00:01]"), Some(0));
    }
}
