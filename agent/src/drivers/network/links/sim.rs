//! Simulated links, which outlive the simulated agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Counters, FarEnd, Link, Links, NewBridge, NewTap, Wires};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// The links of one simulated host; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SimLinks {
    host: Arc<Mutex<Host>>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Host {
    links: Vec<Link>,
    /// Of ports, by name.
    vlans: BTreeMap<String, u16>,
    /// Of the host, with the index of their link.
    addresses: Vec<(u32, IpAddr)>,
    leased: Vec<IpAddr>,
    made: u32,
    /// The far ends of pairs, by the names of the near ones.
    pairs: BTreeMap<String, FarEnd>,
    lacking: Option<String>,
}

impl SimLinks {
    /// Operations in `faults`: `links.list`, `links.make_tap`, `links.make_pair`, `links.plug`, `links.remove`,
    /// `links.bridge`, `links.name`, `links.wire`, `links.hand_over`.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { host: Arc::default(), faults }
    }

    /// Adds a link, as an operator does; its index is chosen.
    pub fn add(&self, link: Link) {
        self.host.lock().add(link);
    }

    /// Removes a link, as an operator does. Its ports are ports no longer.
    pub fn take_away(&self, name: &str) {
        self.host.lock().remove(|link| link.name == name);
    }

    /// The link of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Link> {
        self.host.lock().links.iter().find(|link| link.name == name).cloned()
    }

    /// Gives the host an address on a link; `leased`: for some time.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn add_address(&self, link: &str, address: IpAddr, leased: bool) {
        let link = self.get(link).expect("a link").index;
        let mut host = self.host.lock();
        host.addresses.push((link, address));
        if leased {
            host.leased.push(address);
        }
    }

    /// The names of the links that the host's addresses are on.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<IpAddr, String> {
        let host = self.host.lock();
        let name = |index: u32| host.links.iter().find(|link| link.index == index);
        let of = |(link, address): &(u32, IpAddr)| Some((*address, name(*link)?.name.clone()));
        host.addresses.iter().filter_map(of).collect()
    }

    /// Every link.
    #[must_use]
    pub fn all(&self) -> Vec<Link> {
        self.host.lock().links.clone()
    }

    /// The VLAN that a port was put into; 0: none.
    #[must_use]
    pub fn vlan(&self, port: &str) -> Option<u16> {
        self.host.lock().vlans.get(port).copied()
    }

    /// As after ports were taken out of their bridges.
    pub fn forget_vlans(&self) {
        self.host.lock().vlans.clear();
    }

    /// The far end of a pair.
    #[must_use]
    pub fn far_end(&self, near: &str) -> Option<FarEnd> {
        self.host.lock().pairs.get(near).cloned()
    }

    /// The namespaces that there are.
    #[must_use]
    pub fn namespaces(&self) -> Vec<PathBuf> {
        self.host.lock().pairs.values().map(|far| far.namespace.clone()).collect()
    }

    /// Takes the agent's rights away, or gives them back.
    pub fn lack(&self, why: Option<&str>) {
        self.host.lock().lacking = why.map(str::to_owned);
    }
}

impl Host {
    fn add(&mut self, link: Link) {
        self.made += 1;
        self.links.push(Link { index: self.made, ..link });
    }

    fn remove(&mut self, which: impl Fn(&Link) -> bool) {
        let gone = |index: u32, links: &[Link]| !links.iter().any(|link| link.index == index);
        self.links.retain(|link| !which(link));
        let left = self.links.clone();
        self.addresses.retain(|(link, _)| !gone(*link, &left));
        for link in &mut self.links {
            link.bridge = link.bridge.filter(|bridge| !gone(*bridge, &left));
        }
    }
}

fn refused(action: &str, why: std::io::ErrorKind) -> DriverError {
    DriverError::failed(action, std::io::Error::from(why))
}

#[async_trait]
impl Links for SimLinks {
    fn lacking(&self) -> Option<String> {
        self.host.lock().lacking.clone()
    }

    async fn list(&self) -> Result<Vec<Link>, DriverError> {
        self.faults.call("links.list", || Ok(self.host.lock().links.clone())).await
    }

    /// One packet that each guest sent.
    async fn counters(&self) -> Result<Vec<(Link, Counters)>, DriverError> {
        let counters = Counters { sent_bytes: 64, sent_packets: 1, ..Counters::default() };
        Ok(self.host.lock().links.iter().map(|link| (link.clone(), counters)).collect())
    }

    async fn make_tap(&self, tap: NewTap<'_>) -> Result<(), DriverError> {
        let make = || {
            let mut host = self.host.lock();
            if host.links.iter().any(|link| link.name == tap.name) {
                return Err(refused("make a tap", std::io::ErrorKind::AlreadyExists));
            }
            let (name, alias) = (tap.name.to_owned(), Some(tap.alias.to_owned()));
            host.add(Link { name, alias, mtu: 1500, ..Link::default() });
            Ok(())
        };
        self.faults.call("links.make_tap", make).await
    }

    async fn make_pair(&self, near: NewTap<'_>, far: &FarEnd) -> Result<(), DriverError> {
        let make = || {
            let mut host = self.host.lock();
            if !host.links.iter().any(|link| link.name == near.name) {
                let (name, alias) = (near.name.to_owned(), Some(near.alias.to_owned()));
                host.add(Link { name, alias, mtu: 1500, ..Link::default() });
            }
            host.pairs.insert(near.name.to_owned(), far.clone());
            Ok(())
        };
        self.faults.call("links.make_pair", make).await
    }

    fn remove_namespace(&self, namespace: &Path) -> Result<(), DriverError> {
        self.host.lock().pairs.retain(|_, far| far.namespace != namespace);
        Ok(())
    }

    async fn plug(&self, link: u32, bridge: &Link, vlan: u16) -> Result<(), DriverError> {
        let plug = || {
            let mut host = self.host.lock();
            let gone = || refused("plug a link", std::io::ErrorKind::NotFound);
            let there = host.links.iter().any(|link| link.index == bridge.index);
            let link = host.links.iter_mut().find(|other| other.index == link);
            let link = link.filter(|_| there).ok_or_else(gone)?;
            (link.bridge, link.mtu, link.up) = (Some(bridge.index), bridge.mtu, true);
            let name = link.name.clone();
            host.vlans.insert(name, vlan);
            Ok(())
        };
        self.faults.call("links.plug", plug).await
    }

    async fn remove(&self, link: u32) -> Result<(), DriverError> {
        let remove = || {
            self.host.lock().remove(|other| other.index == link);
            Ok(())
        };
        self.faults.call("links.remove", remove).await
    }
}

impl Host {
    fn change(&mut self, link: u32, change: impl FnOnce(&mut Link)) -> Result<(), DriverError> {
        let found = self.links.iter_mut().find(|other| other.index == link);
        found.map(change).ok_or_else(|| refused("change a link", std::io::ErrorKind::NotFound))
    }

    fn is_taken(&self, name: &str) -> bool {
        self.links.iter().any(|link| link.is_called(name))
    }
}

#[async_trait]
impl Wires for SimLinks {
    async fn make_bridge(&self, new: NewBridge<'_>) -> Result<(), DriverError> {
        let make = || {
            let mut host = self.host.lock();
            if host.is_taken(new.name) {
                return Err(refused("make a bridge", std::io::ErrorKind::AlreadyExists));
            }
            let (name, alias) = (new.name.to_owned(), Some(new.alias.to_owned()));
            let mac = new.mac.unwrap_or_default().to_owned();
            let bridge = Link { name, alias, mac, is_bridge: true, up: true, ..Link::default() };
            host.add(bridge);
            Ok(())
        };
        self.faults.call("links.bridge", make).await
    }

    async fn add_name(&self, link: u32, name: &str) -> Result<(), DriverError> {
        let add = || {
            let mut host = self.host.lock();
            if host.is_taken(name) {
                return Err(refused("name a link", std::io::ErrorKind::AlreadyExists));
            }
            host.change(link, |link| link.other_names.push(name.to_owned()))
        };
        self.faults.call("links.name", add).await
    }

    async fn remove_name(&self, link: u32, name: &str) -> Result<(), DriverError> {
        let remove =
            || self.host.lock().change(link, |link| link.other_names.retain(|had| had != name));
        self.faults.call("links.name", remove).await
    }

    async fn join(&self, nic: u32, bridge: &Link) -> Result<(), DriverError> {
        let join = || self.host.lock().change(nic, |link| link.bridge = Some(bridge.index));
        self.faults.call("links.wire", join).await
    }

    async fn leave(&self, nic: u32) -> Result<(), DriverError> {
        let leave = || self.host.lock().change(nic, |link| link.bridge = None);
        self.faults.call("links.wire", leave).await
    }

    async fn leased(&self, nic: u32) -> Result<Vec<IpAddr>, DriverError> {
        let host = self.host.lock();
        let own = host.addresses.iter().filter(|(link, _)| *link == nic);
        Ok(own.map(|(_, ip)| *ip).filter(|ip| host.leased.contains(ip)).collect())
    }

    async fn hand_over(&self, from: u32, to: u32) -> Result<(), DriverError> {
        let hand_over = || {
            let host = &mut *self.host.lock();
            let leased = &host.leased;
            let moves = |(on, ip): &&mut (u32, IpAddr)| *on == from && !leased.contains(ip);
            for (link, _) in host.addresses.iter_mut().filter(moves) {
                *link = to;
            }
            Ok(())
        };
        self.faults.call("links.hand_over", hand_over).await
    }
}
