//! Ports of the host that lead to a guest.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::IpNet;
use muster_shared::vm::MIN_PUBLISHED_PORT;
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

/// The key in `internal_metadata`: `tcp:127.0.0.1:2222-:22`, several separated by commas.
const KEY: &str = "muster:hostfwd";

/// One published port: `tcp:127.0.0.1:2222-:22`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    protocol: &'static str,
    /// Without an address on loopback.
    host: End,
    /// Without an address the guest's own.
    guest: End,
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: Option<Ipv4Addr>,
    port: u16,
}

/// It is no published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAForward;

impl FromStr for End {
    type Err = NotAForward;

    fn from_str(text: &str) -> Result<Self, NotAForward> {
        let (address, port) = text.rsplit_once(':').ok_or(NotAForward)?;
        let address = match address {
            "" => None,
            address => Some(address.parse().map_err(|_| NotAForward)?),
        };
        Ok(Self { address, port: port.parse().map_err(|_| NotAForward)? })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}")?;
        }
        write!(f, ":{}", self.port)
    }
}

impl FromStr for Forward {
    type Err = NotAForward;

    fn from_str(text: &str) -> Result<Self, NotAForward> {
        let (protocol, ends) = text.split_once(':').ok_or(NotAForward)?;
        let protocol = ["tcp", "udp"].into_iter().find(|known| *known == protocol);
        let (host, guest) = ends.split_once('-').ok_or(NotAForward)?;
        let protocol = protocol.ok_or(NotAForward)?;
        let host: End = host.parse()?;
        if host.port < MIN_PUBLISHED_PORT {
            return Err(NotAForward);
        }
        Ok(Self { protocol, host, guest: guest.parse()? })
    }
}

/// As QEMU's option `hostfwd` has it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without an address the hypervisor listens on all that the host has.
        let host = End { address: Some(self.host_address()), ..self.host };
        write!(f, "{}:{host}-{}", self.protocol, self.guest)
    }
}

impl Forward {
    fn host_address(&self) -> Ipv4Addr {
        self.host.address.unwrap_or(Ipv4Addr::LOCALHOST)
    }
}

/// `security.publish_on`: the networks whose addresses VMs may publish ports on, beside loopback. A
/// tenant's VM must not be able to take the place of a service of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishOn(pub Vec<IpNet>);

impl PublishOn {
    /// Checks the ports that a VM publishes.
    ///
    /// # Errors
    /// `InvalidParameters` that names the first one that it may not publish.
    pub(super) fn check(&self, forwards: &[Forward]) -> Result<(), DriverError> {
        let Some(forward) = forwards.iter().find(|forward| !self.allows(forward.host_address()))
        else {
            return Ok(());
        };
        let text = format!(
            "internal_metadata[{KEY:?}]: {forward} is not on loopback, and this node's \
             security.publish_on does not name a network of that address"
        );
        Err(DriverError::refused(Code::InvalidParameters, text))
    }

    fn allows(&self, address: Ipv4Addr) -> bool {
        let address = IpAddr::V4(address);
        // 0.0.0.0 is every address there is.
        let named = |net: &IpNet| {
            net.contains(&address) && (!address.is_unspecified() || net.prefix_len() == 0)
        };
        address.is_loopback() || self.0.iter().any(named)
    }
}

/// The ports that a VM publishes.
///
/// # Errors
/// `InvalidParameters` that names the one that can't be read.
pub fn forwards(properties: &Map<String, Value>) -> Result<Vec<Forward>, DriverError> {
    let wanted = match properties.get("internal_metadata").and_then(|map| map.get(KEY)) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => text,
        Some(other) => return Err(bad(&other.to_string())),
    };
    let listed = wanted.split(',').map(str::trim).filter(|forward| !forward.is_empty());
    listed.map(|forward| forward.parse().map_err(|NotAForward| bad(forward))).collect()
}

fn bad(forward: &str) -> DriverError {
    let text = format!(
        "internal_metadata[{KEY:?}]: {forward:?} is not of the form tcp:127.0.0.1:2222-:22 \
         with a port of this host from {MIN_PUBLISHED_PORT} on"
    );
    DriverError::refused(Code::InvalidParameters, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(text: &Value) -> Result<Vec<String>, String> {
        let Value::Object(properties) = json!({ "internal_metadata": { KEY: text } }) else {
            unreachable!()
        };
        let found = forwards(&properties).map_err(|error| error.to_string())?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn they_come_out_as_they_were_given_on_loopback() {
        let both = "tcp:127.0.0.1:2222-:22, udp::5353-10.0.2.15:53,";
        let want = ["tcp:127.0.0.1:2222-:22", "udp:127.0.0.1:5353-10.0.2.15:53"];
        assert_eq!(of(&json!(both)).unwrap(), want);
        assert_eq!(of(&json!("")).unwrap(), Vec::<String>::new());
        assert_eq!(forwards(&Map::new()).unwrap(), []);
    }

    #[test]
    fn others_are_refused_by_name() {
        let bad = [
            "tcp:2222",
            "icmp::1-:1",
            "tcp::99999-:1",
            "tcp:host:1-:1",
            "tcp::2001-:2,guestfwd=x",
            "tcp::1023-:80",
            "udp:127.0.0.1:53-:53",
            "x",
        ];
        for text in bad {
            let error = of(&json!(text)).unwrap_err();
            assert!(error.contains(KEY) && error.contains("tcp:127.0.0.1:2222-:22"), "{error}");
        }
        of(&json!(22)).unwrap_err();
    }

    #[test]
    fn ports_are_published_on_loopback_unless_the_node_says_where_else() {
        let check = |nets: &[&str], text: &str| {
            let on = PublishOn(nets.iter().map(|net| net.parse().unwrap()).collect());
            on.check(&[text.parse().unwrap()]).map_err(|error| error.to_string())
        };
        for loopback in ["tcp::2222-:22", "udp:127.0.0.1:2222-:22", "tcp:127.9.9.9:2222-:22"] {
            check(&[], loopback).unwrap();
        }
        for other in ["tcp:0.0.0.0:8080-:80", "tcp:10.1.2.3:8080-:80"] {
            let refused = check(&[], other).unwrap_err();
            assert!(
                refused.contains(other) && refused.contains("security.publish_on"),
                "{refused}"
            );
            check(&["192.0.2.0/24", "fd00::/8"], other).unwrap_err();
            check(&["192.0.2.0/24", "0.0.0.0/0"], other).unwrap();
        }
        check(&["10.0.0.0/8"], "tcp:10.1.2.3:8080-:80").unwrap();
        // A network of which 0.0.0.0 happens to be an address.
        check(&["0.0.0.0/8"], "tcp:0.0.0.0:8080-:80").unwrap_err();
    }
}
