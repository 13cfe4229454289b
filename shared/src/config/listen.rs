//! Listen addresses, and the rule on which of them plaintext is allowed.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Longest path of a unix socket, in bytes; the kernel's `sun_path` holds one more for the end.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Where a daemon listens: `127.0.0.1:8480`, `[::1]:8480`, or `unix:/run/muster/agent.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// An IP address and port; port 0 takes any free one.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The text names no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Neither form.
    #[error(
        "{0:?} is not an address to listen on, expected `IP:PORT`, `[IPv6]:PORT` or `unix:/PATH`"
    )]
    Form(String),
    /// A unix socket path that is not absolute.
    #[error("{0:?} is not an absolute path of a unix socket")]
    Relative(String),
    /// A unix socket path over [`MAX_SOCKET_PATH_BYTES`].
    #[error("a unix socket path has at most {MAX_SOCKET_PATH_BYTES} bytes, {0:?} is longer")]
    TooLong(String),
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.len() > MAX_SOCKET_PATH_BYTES {
                return Err(ListenError::TooLong(path.to_owned()));
            }
            if !path.starts_with('/') || path.contains('\0') {
                return Err(ListenError::Relative(path.to_owned()));
            }
            return Ok(Self::Unix(path.into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| ListenError::Form(text.to_owned()))
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address would serve plaintext to others than this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} can be reached from other machines without TLS: {}, or allow plaintext there with \
     `security.allow_plaintext = [\"{network}\"]`",
    .ways.text()
)]
pub struct Exposed {
    /// What this listener could do instead.
    pub ways: Ways,
    /// The address.
    pub address: SocketAddr,
    /// The network that would have to be allowed.
    pub network: IpNet,
}

/// What a listener can do instead of serving plaintext to other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// It knows TLS (`tls.certificate`, `tls.key`) and unix sockets.
    TlsOrUnix,
    /// It has no TLS of its own, but may be a unix socket.
    Unix,
    /// It listens on TCP without TLS, or not at all.
    Loopback,
}

impl Ways {
    fn text(self) -> &'static str {
        match self {
            Self::TlsOrUnix => {
                "configure a certificate (`tls.certificate`, `tls.key`), or listen on 127.0.0.1 \
                 or a unix socket"
            }
            Self::Unix => "listen on 127.0.0.1 or a unix socket",
            Self::Loopback => "listen on 127.0.0.1",
        }
    }
}

/// Refuses plaintext beyond this machine: an address without TLS must be loopback, a unix socket,
/// or inside a network that the operator named. Any address (`0.0.0.0`, `::`) is inside none but
/// the whole internet (`0.0.0.0/0`, `::/0`).
///
/// # Errors
/// [`Exposed`], whose text names the ways out.
pub fn check_exposure(
    address: &ListenAddress,
    ways: Ways,
    allow_plaintext: &[IpNet],
) -> Result<(), Exposed> {
    let ListenAddress::Tcp(address) = *address else { return Ok(()) };
    let ip = address.ip().to_canonical();
    let covered = || allow_plaintext.iter().any(|network| covers(network, ip));
    if ip.is_loopback() || covered() {
        return Ok(());
    }
    let network = match ip {
        ip if ip.is_unspecified() => IpNet::new_assert(ip, 0),
        ip => IpNet::from(ip),
    };
    Err(Exposed { ways, address, network })
}

fn covers(network: &IpNet, ip: IpAddr) -> bool {
    if ip.is_unspecified() {
        // 0.0.0.0 is numerically inside 0.0.0.0/8 but stands for every address.
        return network.prefix_len() == 0 && network.addr().is_ipv4() == ip.is_ipv4();
    }
    network.contains(&ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, allowed: &[&str], fits: bool) {
        let address: ListenAddress = address.parse().unwrap();
        let allowed: Vec<IpNet> = allowed.iter().map(|network| network.parse().unwrap()).collect();
        let checked = check_exposure(&address, Ways::Loopback, &allowed);
        assert_eq!(checked.is_ok(), fits, "{address}");
    }

    #[test]
    fn plaintext_stays_on_this_machine() {
        check("127.0.0.1:8480", &[], true);
        check("127.8.9.1:0", &[], true);
        check("[::1]:8480", &[], true);
        check("[::ffff:127.0.0.1]:8480", &[], true);
        check("unix:/run/muster/api.sock", &[], true);
        check("10.1.2.3:8480", &[], false);
        check("0.0.0.0:8480", &[], false);
        check("[::]:8480", &[], false);
        check("[fe80::1]:8480", &[], false);
    }

    #[test]
    fn a_named_network_opens_it() {
        check("10.1.2.3:8480", &["10.0.0.0/8"], true);
        check("[::ffff:10.1.2.3]:8480", &["10.0.0.0/8"], true);
        check("10.1.2.3:8480", &["192.168.0.0/16", "fd00::/8"], false);
        check("0.0.0.0:8480", &["0.0.0.0/8"], false);
        check("0.0.0.0:8480", &["::/0"], false);
        check("0.0.0.0:8480", &["0.0.0.0/0"], true);
        check("[::]:8480", &["::/0"], true);
    }

    #[test]
    fn refusal_names_the_ways_out() {
        let address: ListenAddress = "10.1.2.3:80".parse().unwrap();
        let text = |ways| check_exposure(&address, ways, &[]).unwrap_err().to_string();
        for (ways, tls, unix) in [
            (Ways::TlsOrUnix, true, true),
            (Ways::Unix, false, true),
            (Ways::Loopback, false, false),
        ] {
            let text = text(ways);
            assert_eq!(text.contains("tls."), tls, "{text}");
            assert_eq!(text.contains("unix"), unix, "{text}");
            assert!(text.contains("[\"10.1.2.3/32\"]") && text.contains("127.0.0.1"), "{text}");
        }
    }

    #[test]
    fn addresses_round_trip_and_bad_ones_are_named() {
        for text in ["127.0.0.1:8480", "[::1]:80", "unix:/run/a.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "8480", ":8480", "localhost:80", "127.0.0.1", "unix:", "unix:a.sock"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
        let long = format!("unix:/{}", "a".repeat(MAX_SOCKET_PATH_BYTES));
        assert!(matches!(long.parse::<ListenAddress>(), Err(ListenError::TooLong(_))));
    }
}
