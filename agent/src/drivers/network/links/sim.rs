//! Simulated links, which outlive the simulated agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Counters, Link, Links, NewTap};
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
    made: u32,
    lacking: Option<String>,
}

impl SimLinks {
    /// Operations in `faults`: `links.list`, `links.make_tap`, `links.plug`, `links.remove`.
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

    /// The VLAN that a port was put into; 0: none.
    #[must_use]
    pub fn vlan(&self, port: &str) -> Option<u16> {
        self.host.lock().vlans.get(port).copied()
    }

    /// As after ports were taken out of their bridges.
    pub fn forget_vlans(&self) {
        self.host.lock().vlans.clear();
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
