//! A port of a node that leads to a VM.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Lowest port of a node that may be published: those below are the node's own services'.
pub const MIN_PUBLISHED_PORT: u16 = 1024;
/// What a published port looks like.
pub const PUBLISH_FORM: &str = "must be [ADDRESS:]PORT:GUEST_PORT, e.g. 8080:80, with /udp behind it for UDP; PORT is 1024 or more";

/// A published port, written `[ADDRESS:]PORT:GUEST_PORT[/udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Address of the node; loopback if there is none.
    pub address: Option<Ipv4Addr>,
    /// Port of the node.
    pub port: u16,
    /// Port of the guest.
    pub guest_port: u16,
    /// UDP instead of TCP.
    pub udp: bool,
}

/// The text is no published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", PUBLISH_FORM)]
pub struct NotPublished;

impl FromStr for Publish {
    type Err = NotPublished;

    fn from_str(text: &str) -> Result<Self, NotPublished> {
        let (ends, udp) = match text.rsplit_once('/') {
            Some((ends, "udp")) => (ends, true),
            Some((ends, "tcp")) => (ends, false),
            Some(_) => return Err(NotPublished),
            None => (text, false),
        };
        let parts: Vec<&str> = ends.split(':').collect();
        let (address, port, guest_port) = match parts.as_slice() {
            [port, guest] => (None, port, guest),
            [address, port, guest] => {
                (Some(address.parse().map_err(|_| NotPublished)?), port, guest)
            }
            _ => return Err(NotPublished),
        };
        let number = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or(NotPublished);
        let (port, guest_port) = (number(port)?, number(guest_port)?);
        if port < MIN_PUBLISHED_PORT {
            return Err(NotPublished);
        }
        Ok(Self { address, port, guest_port, udp })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}:")?;
        }
        write!(f, "{}:{}", self.port, self.guest_port)?;
        if self.udp { f.write_str("/udp") } else { Ok(()) }
    }
}

impl Publish {
    /// As `internal_metadata["muster:hostfwd"]` has it: `tcp:127.0.0.1:2222-:22`.
    #[must_use]
    pub fn hostfwd(&self) -> String {
        let protocol = if self.udp { "udp" } else { "tcp" };
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        format!("{protocol}:{address}:{}-:{}", self.port, self.guest_port)
    }

    /// Reads that; `None` also for what a [`Publish`] can't say, such as an address of the guest.
    #[must_use]
    pub fn of_hostfwd(text: &str) -> Option<Self> {
        let (protocol, ends) = text.split_once(':')?;
        let (host, guest) = ends.split_once("-:")?;
        let (address, port) = host.rsplit_once(':')?;
        let colon = if address.is_empty() { "" } else { ":" };
        format!("{address}{colon}{port}:{guest}/{protocol}").parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_written() {
        for (text, hostfwd) in [
            ("2222:22", "tcp::2222-:22"),
            ("127.0.0.1:8080:80", "tcp:127.0.0.1:8080-:80"),
            ("5353:53/udp", "udp::5353-:53"),
        ] {
            let port: Publish = text.parse().unwrap();
            assert_eq!((port.to_string().as_str(), port.hostfwd().as_str()), (text, hostfwd));
            assert_eq!(Publish::of_hostfwd(hostfwd), Some(port));
        }
        assert_eq!("8080:80/tcp".parse::<Publish>().unwrap().to_string(), "8080:80");
    }

    #[test]
    fn what_is_no_port_is_refused() {
        for bad in
            ["", "80", "80:80", "8080:0", "8080:80:x", "x:8080:80", "8080:80/sctp", "1:2:3:4"]
        {
            assert_eq!(bad.parse::<Publish>(), Err(NotPublished), "{bad}");
        }
        for bad in ["tcp::2222-10.0.2.9:22", "tcp::22-:22", "sctp::2222-:22", "x"] {
            assert_eq!(Publish::of_hostfwd(bad), None, "{bad}");
        }
    }
}
