//! The door to the host's network links: what there is, and the few things that are done to it.

mod netlink;
pub mod sim;
mod wires;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use ipnet::IpNet;

pub use self::netlink::NetlinkLinks;
pub use self::wires::{NewBridge, Wires};
use super::Counters;
use crate::drivers::DriverError;

/// A network link of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Further names of it.
    pub other_names: Vec<String>,
    /// What was written on it.
    pub alias: Option<String>,
    /// Its address, e.g. `02:00:00:00:00:01`.
    pub mac: String,
    /// The address that its hardware came with, where there is one.
    pub hardware_mac: Option<String>,
    /// It can carry a network of the host: a device, a bond, or one end of a pair.
    pub is_interface: bool,
    /// It is a bridge.
    pub is_bridge: bool,
    /// Of a bridge that keeps VLANs apart: the VLAN of ports that are given none; 0 is none.
    pub default_vlan: Option<u16>,
    /// The bridge, or bond, that it is a port of.
    pub bridge: Option<u32>,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// It was switched on.
    pub up: bool,
}

impl Link {
    /// Whether this is one of its names.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.other_names.iter().any(|other| other == name)
    }

    /// Whether a nic tag's `mac` means it: by an address, or by the name of a bond.
    #[must_use]
    pub fn is_nic(&self, mac: &str) -> bool {
        let is = |own: &str| own.eq_ignore_ascii_case(mac);
        let by_address = is(&self.mac) || self.hardware_mac.as_deref().is_some_and(is);
        self.is_interface && (by_address || self.name == mac)
    }
}

/// The interface that a nic tag's `mac` means. A bond has the address of one of its members.
#[must_use]
pub fn nic<'a>(links: &'a [Link], mac: &str) -> Option<&'a Link> {
    let is_member = |link: &&Link| {
        links.iter().any(|other| Some(other.index) == link.bridge && !other.is_bridge)
    };
    let mut found = links.iter().filter(|link| link.is_nic(mac));
    found.find(|link| !is_member(link))
}

/// A tap that is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewTap<'a> {
    /// Its name.
    pub name: &'a str,
    /// What is written on it.
    pub alias: &'a str,
}

/// The end of a pair of links that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// The name of its network namespace in the file system.
    pub namespace: PathBuf,
    /// Its name there.
    pub name: String,
    /// Its address.
    pub mac: String,
    /// Its largest packet, bytes.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Where everything else goes.
    pub gateways: Vec<IpAddr>,
    /// It is switched on.
    pub up: bool,
}

/// The network links of the host.
#[async_trait]
pub trait Links: fmt::Debug + Send + Sync + 'static {
    /// Why this process may not change links, for people, with what helps.
    fn lacking(&self) -> Option<String>;

    /// Every link.
    ///
    /// # Errors
    /// They could not be read.
    async fn list(&self) -> Result<Vec<Link>, DriverError>;

    /// Every link, with what guests at their other ends received and sent through them.
    ///
    /// # Errors
    /// They could not be read.
    async fn counters(&self) -> Result<Vec<(Link, Counters)>, DriverError>;

    /// Makes a tap that stays when nobody has it open. It never exists without its alias for longer
    /// than this process lives.
    ///
    /// # Errors
    /// It could not be made, e.g. because there is a link of that name.
    async fn make_tap(&self, tap: NewTap<'_>) -> Result<(), DriverError>;

    /// Makes a pair of links: the one end is here, like a tap, the other one in a namespace, which is
    /// made if need be. A pair that is there stays, and its far end is set up again.
    ///
    /// # Errors
    /// It could not be made.
    async fn make_pair(&self, near: NewTap<'_>, far: &FarEnd) -> Result<(), DriverError>;

    /// Removes a namespace, with the links that are in it once no process is. None is no error.
    ///
    /// # Errors
    /// It could not be removed.
    fn remove_namespace(&self, namespace: &Path) -> Result<(), DriverError>;

    /// Makes a link a port of a bridge, with the bridge's largest packet, and switches it on. With a
    /// VLAN it is in this one alone, and its frames have no tags; the bridge must keep VLANs apart.
    ///
    /// # Errors
    /// It could not be changed, e.g. because one of them is gone.
    async fn plug(&self, link: u32, bridge: &Link, vlan: u16) -> Result<(), DriverError>;

    /// Removes a link. One that is gone is no error.
    ///
    /// # Errors
    /// It could not be removed.
    async fn remove(&self, link: u32) -> Result<(), DriverError>;
}
