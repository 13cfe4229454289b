//! Ports of the host that lead to a guest.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use muster_shared::wire::Code;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

/// Lowest port of the host that leads to a guest: those below are the host's own services'.
const LEAST_PORT: u16 = 1024;
/// The key in `internal_metadata`: `tcp:127.0.0.1:2222-:22`, several separated by commas.
const KEY: &str = "muster:hostfwd";

/// One published port: `tcp:127.0.0.1:2222-:22`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    protocol: &'static str,
    host: End,
    guest: End,
}

/// An address and a port; without an address any of the host's, or the guest's own.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        if host.port < LEAST_PORT {
            return Err(NotAForward);
        }
        Ok(Self { protocol, host, guest: guest.parse()? })
    }
}

/// As QEMU's option `hostfwd` has it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.protocol, self.host, self.guest)
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
         with a port of this host from {LEAST_PORT} on"
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
    fn they_come_out_as_they_were_given() {
        let both = "tcp:127.0.0.1:2222-:22, udp::5353-10.0.2.15:53,";
        assert_eq!(of(&json!(both)).unwrap(), ["tcp:127.0.0.1:2222-:22", "udp::5353-10.0.2.15:53"]);
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
}
